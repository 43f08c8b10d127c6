//! The middleware in front of a node: the real guard, without a framework around it.

use std::any::Any;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;
use tollgate_core::Decision;
use tollgate_engine::Engine;
use tollgate_engine::observer::{Event, Observer};
use tollgate_engine::policy::OnStoreFailure;
use tollgate_engine::verdict::{Cause, Permits};
use tollgate_http::guard::{
    self, Admission, ExtraFacts, PolicyLimits, RequestPermit, ResponseFormat, ResponseHead, Settle,
};
use tollgate_redis::Redis;

use super::scenario::FinalCost;

/// The guard in front of a node's engine.
pub(super) struct Guard {
    guard: guard::RequestLimiter<GuardRequest, PolicyLimits<Redis>>,
    seen: LastDecision,
}

/// The engine's latest decision. Its middleware answers in the same step on the only thread, so the decision
/// belongs to that request.
#[derive(Clone, Default)]
pub(super) struct LastDecision(Arc<Mutex<Option<EngineDecision>>>);

/// An engine's decision about a request.
#[derive(Clone, Copy)]
pub(super) struct EngineDecision {
    pub(super) rule: Option<usize>,
    pub(super) decision: Decision,
    pub(super) fallback: Option<OnStoreFailure>,
}

/// The middleware's answer to a request.
pub(super) struct Answer {
    pub(super) said: EngineDecision,
    /// What an allowed request holds, or the status of the denial.
    pub(super) came: Result<Passed, u16>,
}

/// What an allowed request holds.
pub(super) struct Passed(RequestPermit<Option<Permits>>);

/// A request with nothing but facts.
pub(super) struct GuardRequest(ExtraFacts);

/// A response head with status 200.
struct OkResponse;

impl Guard {
    /// A guard in front of this engine, which `seen` observes.
    pub(super) fn new(engine: &Arc<Engine<Redis>>, seen: LastDecision) -> Self {
        let limits = PolicyLimits::new(Arc::clone(engine));
        // Without header fields: a list of all limits queries the store about some of them once more, so a
        // history with the middleware would draw other random numbers than the same one without it.
        let answers = ResponseFormat::new().dialects([]);
        Self {
            guard: guard::RequestLimiter::new(limits)
                .response_format(answers)
                .settle(Settle::ReportedByHandler),
            seen,
        }
    }

    /// The answer to a request with these facts.
    ///
    /// # Panics
    /// If the answer isn't the engine's.
    pub(super) async fn ask(&self, facts: ExtraFacts) -> Answer {
        let ask = GuardRequest(facts);
        let asked = self.guard.ask(&ask);
        let admission = self.guard.admission_of(&ask, asked).await;
        let said = self.seen.take().expect("the engine has just said so");
        let came = match admission {
            Admission::Passed(ticket) => Ok(Passed(ticket)),
            Admission::Refused(denial) => Err(self.guard.denied_response(&ask, &denial).status),
            Admission::Failed(why) => panic!("{why}"),
        };
        Answer { said, came }
    }
}

impl Passed {
    /// Runs for this long, half of it while the response is sent, and then settles.
    pub(super) async fn run(self, time: Duration, ends: FinalCost) {
        let Self(ticket) = self;
        let end = Instant::now() + time;
        tokio::time::sleep(time / 2).await;
        let usage = ticket.usage().cloned();
        match (ends, usage) {
            (FinalCost::Cost(cost), Some(usage)) => {
                let (_, rest) = ticket.replied(&OkResponse);
                tokio::time::sleep_until(end).await;
                usage.set(cost);
                drop(rest);
            }
            // The client has disconnected before it had an answer.
            _ => {
                tokio::time::sleep_until(end).await;
                drop(ticket);
            }
        }
    }
}

impl LastDecision {
    fn take(&self) -> Option<EngineDecision> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl Observer for LastDecision {
    fn on_decision(&self, event: &Event<'_>) {
        let said = EngineDecision {
            rule: rule_of(&event.cause),
            decision: event.decision,
            fallback: event.fallback,
        };
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(said);
    }
}

/// The number of the rule that decided; `None` if no rule did.
pub(super) fn rule_of(cause: &Cause<'_>) -> Option<usize> {
    match cause {
        Cause::Rule(name) | Cause::StoreFailure(name) => name[1..].parse().ok(),
        _ => None,
    }
}

impl guard::Request for GuardRequest {
    fn peer(&self) -> Option<SocketAddr> {
        None
    }

    fn method(&self) -> &str {
        "GET"
    }

    fn path(&self) -> &str {
        "/"
    }

    fn host(&self) -> Option<&str> {
        None
    }

    fn route(&self) -> Option<&str> {
        None
    }

    fn header_lines<'r>(&'r self, _: &'r str) -> impl DoubleEndedIterator<Item = &'r [u8]> {
        std::iter::empty()
    }

    fn extension<T: Send + Sync + 'static>(&self) -> Option<&T> {
        (&self.0 as &dyn Any).downcast_ref()
    }
}

impl ResponseHead for OkResponse {
    fn status(&self) -> u16 {
        200
    }

    fn line(&self, _: &str) -> Option<&[u8]> {
        None
    }

    fn used(&self) -> Option<u64> {
        None
    }
}
