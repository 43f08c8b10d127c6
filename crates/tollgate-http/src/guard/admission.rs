//! The path of a request through a request limiter, from its arrival to its permit or its denial.

use std::time::Duration;

use tollgate::{Decision, Outcome};

use super::blocking::{OffenderKey, TarpitPermit};
use super::builder::{Prechecks, RequestLimiter};
use super::denial::Denial;
use super::events;
use super::fields::HeaderFields;
use super::missing_key::MissingKey;
use super::request::Request;
use super::response::{self, DeniedResponse};
use super::ticket::ResponseWatch;
use super::{
    Admission, AskOutcome, FastCheck, LimitOutcome, Mode, Outdated, RequestLimits, RequestPermit,
    Terms,
};
use crate::waiter_limit::WaiterPermit;
use crate::{DenyReason, retry_after};

/// An admission that takes time: a question to the limits, or a delay in the tarpit.
#[derive(derive_more::Debug)]
pub struct PendingAdmission<Q>(#[debug(skip)] PendingStep<Q>);

/// The permit of an allowed request to wait for the service. Dropping it lets another waiter in.
#[derive(Debug)]
pub struct ServiceWaitPermit<'a>(
    #[expect(dead_code, reason = "dropping it is its use")] WaiterPermit<'a>,
);

/// What [`RequestLimiter::ask`] returns: an admission, or one that takes time.
pub type AskedAdmission<H, Q> = AskOutcome<Admission<H>, Box<PendingAdmission<Q>>>;

enum PendingStep<Q> {
    Limits {
        question: Q,
        cost: Option<u64>,
        offender: Offender,
    },
    Tarpit(TarpittedDenial),
}

/// A denied request that is delayed in the tarpit.
struct TarpittedDenial {
    denial: Box<Denial>,
    stuck: TarpitPermit,
}

/// The keys under which a denial counts for blocks and for the tarpit.
#[derive(Clone, Copy, Debug, Default)]
struct Offender {
    block: Option<u64>,
    pit: Option<u64>,
}

impl<R: Request + ?Sized, L: RequestLimits<R>> RequestLimiter<R, L> {
    /// The fast path: the header fields for a request that passes and needs nothing else.
    ///
    /// Adapters call this first. It decides about most requests without moving them in memory, and moving a request
    /// takes longer than deciding.
    ///
    /// # Errors
    /// Any other result: what [`ask`](Self::ask) returns.
    #[inline(always)]
    pub fn glance(
        &self,
        request: &R,
    ) -> Result<HeaderFields, AskedAdmission<L::Held, L::Question>> {
        let is_simple = self.before.is_none() && self.after.is_none() && !events::is_tracing();
        if !is_simple {
            return Err(self.ask(request));
        }
        match self.limits().check_fast(request, &self.terms(None)) {
            FastCheck::Passed(fields) => Ok(fields),
            FastCheck::Over(asked) => Err(self.apply_outcome(asked, None, Offender::default())),
            FastCheck::Unclear => Err(self.ask(request)),
        }
    }

    /// Decides about a request, or returns an admission that takes time.
    pub fn ask(&self, request: &R) -> AskedAdmission<L::Held, L::Question> {
        match &self.before {
            None => self.ask_limits(request, None, Offender::default()),
            Some(before) => self.ask_with_prechecks(before, request),
        }
    }

    /// Decides after the prechecks: exemptions, lists, blocks and the cost.
    fn ask_with_prechecks(
        &self,
        before: &Prechecks<R>,
        request: &R,
    ) -> AskedAdmission<L::Held, L::Question> {
        if before.exempt.iter().any(|is_exempt| is_exempt(request)) {
            return AskOutcome::Now(Admission::Passed(RequestPermit::without_limits()));
        }
        let offender = match Offender::of(before, request) {
            Ok(offender) => offender,
            Err(doubled) => {
                let denial = Box::new(Denial::missing_key("", doubled));
                return self.deny_or_tarpit(denial, Offender::default());
            }
        };
        if let Some(denial) = check_lists(before, request, offender) {
            let block = None;
            return self.deny_or_tarpit(denial, Offender { block, ..offender });
        }
        let cost = before.cost.as_ref().map(|cost| cost(request));
        self.ask_limits(request, cost, offender)
    }

    fn ask_limits(
        &self,
        request: &R,
        cost: Option<u64>,
        offender: Offender,
    ) -> AskedAdmission<L::Held, L::Question> {
        let asked = self.limits().ask(request, &self.terms(cost));
        self.apply_outcome(asked, cost, offender)
    }

    #[inline(always)]
    const fn terms(&self, cost: Option<u64>) -> Terms<'_> {
        Terms {
            cost,
            answers: &self.answers,
            may_wait: matches!(self.mode, Mode::Enforce),
        }
    }

    /// Turns a result of the limits into an admission.
    fn apply_outcome(
        &self,
        asked: AskOutcome<LimitOutcome<L::Held>, L::Question>,
        cost: Option<u64>,
        offender: Offender,
    ) -> AskedAdmission<L::Held, L::Question> {
        match asked {
            AskOutcome::Now(LimitOutcome::Denied(denial)) => self.deny_or_tarpit(denial, offender),
            AskOutcome::Now(judged) => AskOutcome::Now(self.admission(judged)),
            AskOutcome::Later(question) => {
                AskOutcome::Later(Box::new(PendingAdmission(PendingStep::Limits {
                    question,
                    cost,
                    offender,
                })))
            }
        }
    }

    /// Waits for an admission. Dropping the future leaves all queues.
    ///
    /// # Errors
    /// The limits have changed since the question was made, and need more facts of the request: ask again.
    pub async fn answer(
        &self,
        later: Box<PendingAdmission<L::Question>>,
    ) -> Result<Admission<L::Held>, Outdated> {
        let TarpittedDenial { denial, stuck } = match later.0 {
            PendingStep::Tarpit(held_up) => held_up,
            PendingStep::Limits {
                question,
                cost,
                offender,
            } => {
                let terms = self.terms(cost);
                let denial = match self.limits().answer(question, &terms).await {
                    LimitOutcome::Denied(denial) => denial,
                    LimitOutcome::Outdated => return Err(Outdated),
                    judged => return Ok(self.admission(judged)),
                };
                match self.handle_denial(denial, offender) {
                    Ok(admission) => return Ok(admission),
                    Err(held_up) => held_up,
                }
            }
        };
        if let Some(pit) = self.before.as_ref().and_then(|before| before.pit.as_ref()) {
            pit.delay(stuck).await;
        }
        Ok(Admission::Refused(denial))
    }

    /// Waits for an admission, and asks again if the limits have changed.
    ///
    /// This is for adapters whose futures may borrow the request. A future that has to be `Send` can't borrow a
    /// request whose body isn't `Sync`.
    pub async fn admission_of(
        &self,
        request: &R,
        mut asked: AskedAdmission<L::Held, L::Question>,
    ) -> Admission<L::Held> {
        loop {
            let answered = match asked {
                AskOutcome::Now(admission) => return admission,
                AskOutcome::Later(later) => self.answer(later).await,
            };
            asked = match answered {
                Ok(admission) => return admission,
                Err(Outdated) => self.ask(request),
            };
        }
    }

    /// Whether an admission may take time. If so, adapters make the service ready in the call, so that a request in a
    /// queue doesn't hold a permit of the service.
    #[inline]
    pub fn takes_time(&self) -> bool {
        let before = self.before.as_ref();
        self.limits().takes_time() || before.is_some_and(|before| before.pit.is_some())
    }

    /// A permit to wait for the service to become ready, for a request that passed.
    ///
    /// # Errors
    /// The [maximum number](Self::max_waiters) of requests wait already: the request is denied.
    pub fn wait_for_service(&self) -> Result<ServiceWaitPermit<'_>, Box<Denial>> {
        self.service_waiters
            .try_acquire()
            .map(ServiceWaitPermit)
            .ok_or_else(|| {
                let (most, none) = (self.service_waiters.most as u64, Duration::ZERO);
                let decision = Decision::new(Outcome::Denied, most, 0, none, none);
                let denial = Denial::new(DenyReason::Shed, "requests-waiting", decision)
                    .with_shown_limit(None);
                self.log.denied(&denial, self.mode);
                Box::new(denial)
            })
    }

    /// The permit of an allowed request.
    ///
    /// # Errors
    /// The response to a request that isn't allowed.
    #[inline]
    pub fn admit(
        &self,
        request: &R,
        admission: Admission<L::Held>,
    ) -> Result<RequestPermit<L::Held>, DeniedResponse> {
        match admission {
            Admission::Passed(ticket) => Ok(ticket),
            Admission::Refused(denial) => Err(self.denied_response(request, &denial)),
            Admission::Failed(_) => Err(response::server_error(request)),
        }
    }

    /// The response to a denied request.
    pub fn denied_response(&self, request: &R, denial: &Denial) -> DeniedResponse {
        // The random time changes only the retry delay: the other fields still show the limit's own times.
        let retry_seconds = match (&self.spread, retry_after(&denial.decision)) {
            (Some(spread), Some(_)) => {
                let mut later = denial.decision;
                later.set_wait(
                    later
                        .wait_or_max()
                        .saturating_add(spread.extra_wait(denial)),
                );
                retry_after(&later)
            }
            (_, seconds) => seconds,
        };
        let mut refused = if request.is_grpc() {
            response::grpc_refused(denial, retry_seconds)
        } else {
            self.answers.refused(denial, retry_seconds)
        };
        if let Some(change) = &self.handler {
            change(request, denial, &mut refused);
        }
        refused
    }

    #[inline(always)]
    fn admission(&self, judged: LimitOutcome<L::Held>) -> Admission<L::Held> {
        match judged {
            LimitOutcome::Exempt => Admission::Passed(RequestPermit::without_limits()),
            LimitOutcome::Passed { held, fields } => {
                let after = self.after.as_ref();
                let watch = after.map(|after| Box::new(ResponseWatch::new(after)));
                Admission::Passed(RequestPermit::new(held, fields, watch))
            }
            LimitOutcome::Denied(denial) => Admission::Refused(denial),
            // Only `answer` returns this, and it handles it. If it came here, there would be no way to ask again, so
            // it is a denial.
            LimitOutcome::Outdated => {
                Admission::Refused(Box::new(Denial::store_unreachable(&Outdated)))
            }
            LimitOutcome::Failed(why) => {
                self.log.mistake(&why);
                match self.mode {
                    Mode::Enforce => Admission::Failed(why),
                    // In shadow mode the mistake is logged, and clients don't notice it.
                    Mode::Shadow => Admission::Passed(RequestPermit::without_limits()),
                }
            }
        }
    }

    #[cold]
    fn deny_or_tarpit(
        &self,
        denial: Box<Denial>,
        offender: Offender,
    ) -> AskedAdmission<L::Held, L::Question> {
        match self.handle_denial(denial, offender) {
            Ok(admission) => AskOutcome::Now(admission),
            Err(held_up) => {
                AskOutcome::Later(Box::new(PendingAdmission(PendingStep::Tarpit(held_up))))
            }
        }
    }

    /// Logs a denial and counts it for blocks. The error is a denial that the tarpit delays.
    #[cold]
    fn handle_denial(
        &self,
        denial: Box<Denial>,
        offender: Offender,
    ) -> Result<Admission<L::Held>, TarpittedDenial> {
        self.log.denied(&denial, self.mode);
        if self.mode == Mode::Shadow {
            return Ok(Admission::Passed(RequestPermit::without_limits()));
        }
        let Some(before) = &self.before else {
            return Ok(Admission::Refused(denial));
        };
        // The client isn't responsible for a failed server, and a request without a key is over no limit.
        let is_offence = !matches!(
            denial.reason,
            DenyReason::Shed | DenyReason::Store | DenyReason::MissingKey
        );
        if let (true, Some(blocks), Some(key)) = (is_offence, &before.blocks, offender.block) {
            blocks.record_denial(key);
        }
        // Denials for size or by a list have no retry time, so a client can't retry too early.
        let retry_delay = denial
            .wait()
            .filter(|_| is_offence && denial.reason != DenyReason::TooLarge);
        if let (Some(wait), Some(pit), Some(key)) = (retry_delay, &before.pit, offender.pit)
            && let Some(stuck) = pit.try_enter(key, wait)
        {
            return Err(TarpittedDenial { denial, stuck });
        }
        Ok(Admission::Refused(denial))
    }
}

/// Denies requests on a deny list or under a block, whatever the limits decide.
fn check_lists<R: Request + ?Sized>(
    before: &Prechecks<R>,
    request: &R,
    offender: Offender,
) -> Option<Box<Denial>> {
    if before.deny.iter().any(|is_listed| is_listed(request)) {
        return Some(Box::new(Denial::blocked("denied", None)));
    }
    let key = offender.block?;
    let left = before.blocks.as_ref()?.blocked_for(key)?;
    Some(Box::new(Denial::blocked("blocked", Some(left)).key(key)))
}

impl Offender {
    fn of<R: Request + ?Sized>(before: &Prechecks<R>, request: &R) -> Result<Self, MissingKey> {
        let blocks = before.blocks.as_ref().map(|blocks| &blocks.whom);
        let pit = before.pit.as_ref().map(|pit| &pit.whom);
        let of = |whom: Option<&OffenderKey<R>>| whom.map_or(Ok(None), |whom| whom(request));
        Ok(Self {
            block: of(blocks)?,
            pit: of(pit)?,
        })
    }
}
