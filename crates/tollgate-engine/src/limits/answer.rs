//! The answer of a backend to all checks of a request.

use std::time::Duration;

use tollgate::stack::HeldPermits;
use tollgate::{Decision, Outcome};

use super::check::Check;
use super::store_failure::{CheckResult, StoreUnavailable, decisions};

/// The answer to all checks of a request, as a backend gives it. Applications ask an [engine](crate::Engine), whose
/// [verdict](crate::RequestDecision) shows plainly what holds the slots of a request.
///
/// ```
/// use tollgate::Decision;
/// use tollgate_engine::backend::Answer;
///
/// let open = Answer::new(None, Decision::UNLIMITED);
/// assert!(open.allowed && open.unavailable.is_none());
/// ```
#[derive(Debug)]
#[non_exhaustive]
#[must_use = "it holds the slots of the request, and gives them back when it is dropped"]
pub struct Answer {
    /// Whether all passed, and were charged. If not, nothing was.
    pub allowed: bool,
    /// The check that decided: the tightest, or of those that refused the one that takes longest.
    pub decider: Option<usize>,
    /// What it said.
    pub decision: Decision,
    /// Slots of concurrency limits.
    pub pass: HeldPermits,
    /// If a store couldn't be asked: why, and what decided instead. A denial by a limit that is
    /// [closed](StoreUnavailable::is_closed) then says nothing about that limit.
    pub unavailable: Option<StoreUnavailable>,
    /// Where it is from: what that says about a store.
    pub source: AnswerSource,
}

/// Where an answer is from.
///
/// ```
/// use tollgate::Decision;
/// use tollgate_engine::backend::{Answer, AnswerSource};
///
/// assert_eq!(Answer::new(None, Decision::UNLIMITED).source, AnswerSource::Asked);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnswerSource {
    /// The backend was asked: it works.
    Asked,
    /// The backend was asked before, and its latest answer says that it works.
    Local,
    /// It was known here, which says nothing about the backend.
    Cached,
}

impl Answer {
    /// The answer of checks that said this, each by itself: of those that refused the one that takes
    /// longest, or else the one with the fewest such requests left.
    pub fn from_decisions(checks: &[Check<'_>], decisions: &[Decision]) -> Self {
        let said = || checks.iter().zip(decisions).enumerate();
        let wait = |decision: &Decision| match decision.outcome {
            Outcome::Never => Duration::MAX,
            _ => decision.wait_or_max(),
        };
        let refused = said().filter(|(_, (_, decision))| !decision.is_allowed());
        // Of equals the first: `max_by_key` takes the last.
        let gravest = refused
            .rev()
            .max_by_key(|(_, (_, decision))| wait(decision));
        let cost = |check: &Check<'_>| check.units().max(1);
        let tightest =
            || said().min_by_key(|(_, (check, decision))| decision.remaining / cost(check));
        match gravest.or_else(tightest) {
            Some((number, (_, decision))) => Self::new(Some(number), *decision),
            None => Self::new(None, Decision::UNLIMITED),
        }
    }

    /// The same of checks that the store couldn't be asked about, some of them.
    pub fn from_results(checks: &[Check<'_>], each: &[CheckResult]) -> Self {
        let mut answer = Self::from_decisions(checks, &decisions(each));
        let decider = answer.decider.and_then(|decider| each.get(decider));
        answer.unavailable = decider.and_then(|decider| decider.err());
        answer
    }

    /// A denial because the store couldn't be asked about this check, whose limit is closed then.
    pub fn unavailable(check: usize, unavailable: StoreUnavailable) -> Self {
        Self {
            unavailable: Some(unavailable),
            ..Self::new(Some(check), unavailable.decision())
        }
    }

    /// Whether it is denied because the store couldn't be asked.
    pub fn is_unavailable(&self) -> bool {
        !self.allowed && self.unavailable.is_some_and(|store| store.is_closed())
    }

    /// What the check that decided said: the tightest if all passed, or of those that refused the one
    /// that takes longest.
    pub fn new(decider: Option<usize>, decision: Decision) -> Self {
        Self {
            allowed: decision.is_allowed(),
            decider,
            decision,
            pass: HeldPermits::default(),
            unavailable: None,
            source: AnswerSource::Asked,
        }
    }

    /// The same that was known here, without asking the backend.
    pub fn known(decider: Option<usize>, decision: Decision) -> Self {
        Self {
            source: AnswerSource::Cached,
            ..Self::new(decider, decision)
        }
    }
}
