//! The way of a request through a guard, from its arrival to its ticket or its refusal.

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

/// What has to be asked, or waited for, before it is known what becomes of a request.
#[derive(derive_more::Debug)]
pub struct PendingAdmission<Q>(#[debug(skip)] PendingStep<Q>);

/// The place of a request that passed and waits for the service. Dropping it frees the place.
#[derive(Debug)]
pub struct ServiceWaitPermit<'a>(
    #[expect(dead_code, reason = "dropping it is its use")] WaiterPermit<'a>,
);

/// What came of asking a guard.
pub type AskedAdmission<H, Q> = AskOutcome<Admission<H>, Box<PendingAdmission<Q>>>;

enum PendingStep<Q> {
    Limits {
        question: Q,
        cost: Option<u64>,
        offender: Offender,
    },
    Tarpit(TarpittedDenial),
}

/// A request that is refused, and waits for that.
struct TarpittedDenial {
    denial: Box<Denial>,
    stuck: TarpitPermit,
}

/// Whom a refusal is noted of.
#[derive(Clone, Copy, Debug, Default)]
struct Offender {
    block: Option<u64>,
    pit: Option<u64>,
}

impl<R: Request + ?Sized, L: RequestLimits<R>> RequestLimiter<R, L> {
    /// What the answer to a request says of the limit, if it passes and nothing else is to be done for it.
    ///
    /// Carriers begin with this: for most requests it takes one look, for which none is moved in memory, and moving one takes
    /// longer than deciding.
    ///
    /// # Errors
    /// What came of [asking](Self::ask).
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

    /// What becomes of a request, or what has to be asked first.
    pub fn ask(&self, request: &R) -> AskedAdmission<L::Held, L::Question> {
        match &self.before {
            None => self.ask_limits(request, None, Offender::default()),
            Some(before) => self.ask_with_prechecks(before, request),
        }
    }

    /// The same after all that is looked at before limits are asked.
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

    /// What becomes of a request of which limits say this.
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

    /// What becomes of a request, in time. Dropping this gives back all places in lines.
    ///
    /// # Errors
    /// The limits have changed since it was asked, and want to know more of the request: ask again.
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

    /// What becomes of a request of which this came of asking, in time: it is asked about again if the limits have changed. For
    /// carriers whose futures may borrow a request; where they have to be `Send` and its body isn't `Sync`, they can't.
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

    /// Whether it may take time until it is known what becomes of a request. If so, carriers make the service behind it ready in the
    /// call, so that nobody who waits holds a place there.
    #[inline]
    pub fn takes_time(&self) -> bool {
        let before = self.before.as_ref();
        self.limits().takes_time() || before.is_some_and(|before| before.pit.is_some())
    }

    /// A place among those who passed and wait for the service to become ready.
    ///
    /// # Errors
    /// As many wait as [may](Self::max_waiters): the request is denied.
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

    /// The ticket of a request that may go on, or the answer to one that may not.
    ///
    /// # Errors
    /// The answer.
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

    /// The answer to a request that was refused.
    pub fn denied_response(&self, request: &R, denial: &Denial) -> DeniedResponse {
        let told = match (&self.spread, retry_after(&denial.decision)) {
            (Some(spread), Some(_)) => {
                let mut later = denial.decision;
                later.set_wait(
                    later
                        .wait_or_max()
                        .saturating_add(spread.extra_wait(denial)),
                );
                retry_after(&later)
            }
            (_, told) => told,
        };
        let mut refused = if request.is_grpc() {
            response::grpc_refused(denial, told)
        } else {
            self.answers.refused(denial, told)
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
            // Only said of what takes time: here it would have no one to ask again.
            LimitOutcome::Outdated => {
                Admission::Refused(Box::new(Denial::store_unreachable(&Outdated)))
            }
            LimitOutcome::Failed(why) => {
                self.log.mistake(&why);
                match self.mode {
                    Mode::Enforce => Admission::Failed(why),
                    // Who tries it out hears of the mistake, and its clients don't.
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

    /// What becomes of one that is over a limit, or its place in the tarpit.
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
        // What the server lacks is nobody's offence, and a request without a key is over no limit.
        let is_offence = !matches!(
            denial.reason,
            DenyReason::Shed | DenyReason::Store | DenyReason::MissingKey
        );
        if let (true, Some(blocks), Some(key)) = (is_offence, &before.blocks, offender.block) {
            blocks.record_denial(key);
        }
        // Of what is too large, or on a list, nobody was told when to come again, so nobody comes too early.
        let told = denial
            .wait()
            .filter(|_| is_offence && denial.reason != DenyReason::TooLarge);
        if let (Some(wait), Some(pit), Some(key)) = (told, &before.pit, offender.pit)
            && let Some(stuck) = pit.try_enter(key, wait)
        {
            return Err(TarpittedDenial { denial, stuck });
        }
        Ok(Admission::Refused(denial))
    }
}

/// Who isn't served, whatever its limit says.
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
