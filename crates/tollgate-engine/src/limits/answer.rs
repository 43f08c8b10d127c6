//! The answer of a backend to all checks of a request.

use std::time::Duration;

use tollgate::stack::HeldPermits;
use tollgate::{Decision, Outcome};

use super::check::Check;
use super::store_failure::{CheckResult, StoreUnavailable, decisions};

/// The answer of a backend to all checks of a request. Applications use an [engine](crate::Engine) instead, whose
/// [decision](crate::RequestDecision) shows plainly which permits a request holds.
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
    /// Whether all checks were allowed, and charged. If not, nothing was charged.
    pub allowed: bool,
    /// The check that decided: of those that denied, the one with the longest wait; otherwise the tightest.
    pub decider: Option<usize>,
    /// The decision of that check.
    pub decision: Decision,
    /// The permits of concurrency limits, and the estimates, that the request holds.
    pub pass: HeldPermits,
    /// If a store was unavailable: why, and what decided instead. A denial by a limit that is
    /// [closed](StoreUnavailable::is_closed) then carries no information about that limit.
    pub unavailable: Option<StoreUnavailable>,
    /// Where the answer came from, which shows whether the store works.
    pub source: AnswerSource,
}

/// Where an answer came from.
///
/// ```
/// use tollgate::Decision;
/// use tollgate_engine::backend::{Answer, AnswerSource};
///
/// assert_eq!(Answer::new(None, Decision::UNLIMITED).source, AnswerSource::Asked);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnswerSource {
    /// The backend was queried: it works.
    Asked,
    /// The answer was local, and the backend's latest answer shows that it works.
    Local,
    /// The answer was cached, which carries no information about the backend.
    Cached,
}

impl Answer {
    /// Combines the decisions of checks, each made by itself: of those that denied, the one with the longest wait
    /// decides, or else the one with the fewest such requests remaining.
    pub fn from_decisions(checks: &[Check<'_>], decisions: &[Decision]) -> Self {
        let each = || checks.iter().zip(decisions).enumerate();
        let wait = |decision: &Decision| match decision.outcome {
            Outcome::Never => Duration::MAX,
            _ => decision.wait_or_max(),
        };
        let denied = each().filter(|(_, (_, decision))| !decision.is_allowed());
        // Of equals, the first check decides. `max_by_key` returns the last, hence `rev`.
        let longest = denied.rev().max_by_key(|(_, (_, decision))| wait(decision));
        let cost = |check: &Check<'_>| check.units().max(1);
        let tightest =
            || each().min_by_key(|(_, (check, decision))| decision.remaining / cost(check));
        match longest.or_else(tightest) {
            Some((number, (_, decision))) => Self::new(Some(number), *decision),
            None => Self::new(None, Decision::UNLIMITED),
        }
    }

    /// Combines the results of checks, for some of which the store may be unavailable.
    pub fn from_results(checks: &[Check<'_>], each: &[CheckResult]) -> Self {
        let mut answer = Self::from_decisions(checks, &decisions(each));
        let decider = answer.decider.and_then(|decider| each.get(decider));
        answer.unavailable = decider.and_then(|decider| decider.err());
        answer
    }

    /// A denial because the store is unavailable for this check, whose limit is closed then.
    pub fn unavailable(check: usize, unavailable: StoreUnavailable) -> Self {
        Self {
            unavailable: Some(unavailable),
            ..Self::new(Some(check), unavailable.decision())
        }
    }

    /// Whether the request is denied because the store is unavailable.
    pub fn is_unavailable(&self) -> bool {
        !self.allowed && self.unavailable.is_some_and(|store| store.is_closed())
    }

    /// An answer by the check that decided: of those that denied, the one with the longest wait; otherwise the
    /// tightest.
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

    /// An answer that was cached here, without a backend query.
    pub fn known(decider: Option<usize>, decision: Decision) -> Self {
        Self {
            source: AnswerSource::Cached,
            ..Self::new(decider, decision)
        }
    }
}
