//! The decision about a request with several limits.

use std::fmt;
use std::time::Duration;

use tollgate_core::{Decision, Outcome, Timestamp};

use super::limit::ClockReading;
use super::{HeldPermits, Limit};

/// The kind of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LimitKind {
    /// Requests per period: allows again as tokens come back.
    Rate,
    /// A total over a long period: allows again in the next period.
    Quota,
    /// Requests in flight: allows again when another request ends.
    Concurrency,
}

impl fmt::Display for LimitKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Rate => "rate limit",
            Self::Quota => "quota",
            Self::Concurrency => "concurrency limit",
        })
    }
}

/// The limit that denied a request, with its decision. Nothing was charged to any limit.
///
/// If several limits denied, this is the one with the longest wait.
///
/// ```
/// use std::sync::Arc;
/// use tollgate::{ConcurrencyLimiter, Limit, CompositeLimiter, stack::LimitKind};
///
/// let (permits, composite) = (Arc::new(ConcurrencyLimiter::new(1)), CompositeLimiter::new());
/// let limits = [Limit::new("uploads", &permits)];
/// let pass = composite.allow(&limits);
/// let verdict = composite.check(&limits);
/// let denial = verdict.denial().expect("the only permit is taken");
/// assert_eq!(denial.kind, LimitKind::Concurrency);
/// assert_eq!(denial.to_string(), "concurrency limit \"uploads\": 1 of 1 in use");
/// # drop(pass);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LimitDenial<'a> {
    /// The index of the limit in the request's list.
    pub index: usize,
    /// The name of the limit.
    pub name: &'a str,
    /// The kind of the limit.
    pub kind: LimitKind,
    /// The limit's decision. A concurrency limit can't know when a request will end, so its
    /// `retry_after` is zero: retry as soon as another request is done.
    pub decision: Decision,
}

impl<'a> LimitDenial<'a> {
    pub(super) fn new(index: usize, level: &Limit<'a>, decision: Decision) -> Self {
        Self {
            index,
            name: level.name,
            kind: level.limit.kind(),
            decision,
        }
    }
}

impl fmt::Display for LimitDenial<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            name,
            kind,
            decision,
            ..
        } = self;
        write!(f, "{kind} {name:?}: ")?;
        let Decision {
            limit, remaining, ..
        } = decision;
        match (decision.outcome, kind) {
            (Outcome::Never, _) => write!(
                f,
                "the cost is above the {limit} that can pass at once, so it never will"
            ),
            (_, LimitKind::Concurrency) => write!(f, "{} of {limit} in use", limit - remaining),
            (_, LimitKind::Quota) => write!(
                f,
                "{remaining} of {limit} left; retry after {:?}",
                decision.wait_or_max()
            ),
            (_, LimitKind::Rate) => write!(f, "retry after {:?}", decision.wait_or_max()),
        }
    }
}

impl std::error::Error for LimitDenial<'_> {}

/// The decision over all limits of a request: all were charged, or one denied.
///
/// Match on it, and keep [`Allowed::permits`] for as long as the request runs: dropping them releases
/// the permits of concurrency limits.
///
/// ```
/// use std::sync::Arc;
/// use tollgate::{ConcurrencyLimiter, Limit, CompositeLimiter, stack::CompositeDecision};
///
/// let (permits, composite) = (Arc::new(ConcurrencyLimiter::new(1)), CompositeLimiter::new());
/// let limits = [Limit::new("uploads", &permits)];
/// match composite.check(&limits) {
///     CompositeDecision::Allowed(passed) => {
///         // The request runs here, or in a task into which `passed.permits` is moved.
///         assert!(composite.check(&limits).denial().is_some());
///         passed.permits.success();
///     }
///     CompositeDecision::Denied(denial) => println!("{denial}"),
/// }
/// ```
#[derive(Debug)]
#[must_use = "dropping it releases the permits: match on it, and keep the permits while the request runs"]
pub enum CompositeDecision<'a> {
    /// All limits had room, and were charged.
    Allowed(Allowed),
    /// A limit had no room. Nothing was charged to any limit.
    Denied(LimitDenial<'a>),
}

/// A request that all limits allowed.
///
/// ```
/// use tollgate::{Limit, Limiter, Rate, CompositeLimiter};
///
/// let (wide, narrow) = (Limiter::new(Rate::per_hour(9)), Limiter::new(Rate::per_hour(2)));
/// let limits = [Limit::new("wide", &wide), Limit::new("narrow", &narrow)];
/// let passed = CompositeLimiter::new().check(&limits).allowed().expect("the first");
/// assert_eq!((passed.deciding_limit, passed.decision.remaining), (Some(1), 1));
/// ```
#[derive(Debug)]
#[non_exhaustive]
#[must_use = "dropping it releases the permits"]
pub struct Allowed {
    /// The permits that the request holds while it runs.
    pub permits: HeldPermits,
    /// The decision of the most restrictive limit: the one that has room for the fewest requests like
    /// this.
    pub decision: Decision,
    /// The index of that limit in the request's list; none if the list was empty.
    pub deciding_limit: Option<usize>,
}

impl<'a> CompositeDecision<'a> {
    pub(super) fn new(met: &MostRestrictive<'_>, pass: HeldPermits) -> Self {
        let (decider, decision) = met.tightest();
        Self::Allowed(Allowed {
            permits: pass,
            decision,
            deciding_limit: decider,
        })
    }

    /// The same decision, with the limit named by its kind.
    #[cfg(feature = "quota")]
    pub(crate) fn named_by_kind(self) -> CompositeDecision<'static> {
        match self {
            Self::Allowed(passed) => CompositeDecision::Allowed(passed),
            Self::Denied(refusal) => CompositeDecision::Denied(LimitDenial {
                index: refusal.index,
                name: match refusal.kind {
                    LimitKind::Rate => "rate",
                    LimitKind::Quota => "quota",
                    LimitKind::Concurrency => "concurrency",
                },
                kind: refusal.kind,
                decision: refusal.decision,
            }),
        }
    }

    /// One decision for all limits. When allowed, it is that of the limit that has room for the fewest
    /// requests like this; when denied, that of the denying limit with the longest `retry_after`.
    pub const fn decision(&self) -> &Decision {
        match self {
            Self::Allowed(passed) => &passed.decision,
            Self::Denied(refusal) => &refusal.decision,
        }
    }

    /// The index of the limit that [`decision`](Self::decision) is of; none if the request has no
    /// limits.
    pub const fn deciding_limit(&self) -> Option<usize> {
        match self {
            Self::Allowed(passed) => passed.deciding_limit,
            Self::Denied(refusal) => Some(refusal.index),
        }
    }

    /// The permits and the decision if the request was allowed.
    pub fn allowed(self) -> Option<Allowed> {
        match self {
            Self::Allowed(passed) => Some(passed),
            Self::Denied(_) => None,
        }
    }

    /// The limit that denied the request, if any.
    pub const fn denial(&self) -> Option<&LimitDenial<'a>> {
        match self {
            Self::Allowed(_) => None,
            Self::Denied(refusal) => Some(refusal),
        }
    }
}

/// The most restrictive limit so far, and the denial with the longest wait.
#[derive(Debug, Default)]
pub(super) struct MostRestrictive<'a> {
    refusal: Option<LimitDenial<'a>>,
    tightest: Option<(u64, usize, Decision)>,
}

impl<'a> MostRestrictive<'a> {
    /// Collects the decisions of all limits.
    pub(super) fn of(
        levels: &[Limit<'a>],
        seen: &mut ClockReading,
        decide: impl Fn(&Limit<'a>, Timestamp) -> Decision,
    ) -> Self {
        let mut worst = Self::default();
        for (index, level) in levels.iter().enumerate() {
            let now = level.limit.now(seen);
            worst.add(index, level, decide(level, now));
        }
        worst
    }

    fn add(&mut self, index: usize, level: &Limit<'a>, decision: Decision) {
        if !decision.is_allowed() {
            if self
                .refusal
                .is_none_or(|worst| is_longer_wait(&decision, &worst.decision))
            {
                self.refusal = Some(LimitDenial::new(index, level, decision));
            }
            return;
        }
        let requests = decision.remaining / level.cost.max(1);
        if self.tightest.is_none_or(|(fewest, ..)| requests < fewest) {
            self.tightest = Some((requests, index, decision));
        }
    }

    pub(super) fn denial(&self) -> Option<LimitDenial<'a>> {
        self.refusal
    }

    /// The limit with the fewest requests left. A request without limits is unlimited.
    fn tightest(&self) -> (Option<usize>, Decision) {
        match self.tightest {
            Some((_, index, decision)) => (Some(index), decision),
            None => (None, Decision::UNLIMITED),
        }
    }
}

fn is_longer_wait(one: &Decision, other: &Decision) -> bool {
    let wait = |decision: &Decision| match decision.outcome {
        Outcome::Never => Duration::MAX,
        _ => decision.wait_or_max(),
    };
    wait(one) > wait(other)
}
