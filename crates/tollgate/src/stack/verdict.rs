//! What came of a request that met many limits.

use std::fmt;
use std::time::Duration;

use tollgate_core::{Decision, Outcome};

use super::{Level, Pass};

/// What sort of limit it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Kind {
    /// So many in a time: passes again once time has passed.
    Rate,
    /// A total over a long period: passes again in the next.
    Quota,
    /// So many at once: passes again when another request is done.
    Concurrency,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Rate => "rate limit",
            Self::Quota => "quota",
            Self::Concurrency => "concurrency limit",
        })
    }
}

/// The limit that refused a request, and what it said. Nothing was charged anywhere.
///
/// If several refused, it is the one that takes longest to pass.
///
/// ```
/// use std::sync::Arc;
/// use tollgate::{ConcurrencyLimiter, Kind, Level, Stack};
///
/// let (slots, stack) = (Arc::new(ConcurrencyLimiter::new(1)), Stack::new());
/// let levels = [Level::new("uploads", &slots)];
/// let pass = stack.allow(&levels);
/// let verdict = stack.check(&levels);
/// let refusal = verdict.refusal().expect("the only slot is taken");
/// assert_eq!(refusal.kind, Kind::Concurrency);
/// assert_eq!(refusal.to_string(), "concurrency limit \"uploads\": 1 of 1 in use");
/// # drop(pass);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Refusal<'a> {
    /// Which level it is, of those that were given.
    pub index: usize,
    /// The name of the level.
    pub name: &'a str,
    /// What sort of limit it is.
    pub kind: Kind,
    /// What it said. A concurrency limit can't know a `retry_after`: zero, which is "as soon as
    /// another request is done".
    pub decision: Decision,
}

impl<'a> Refusal<'a> {
    pub(super) fn new(index: usize, level: &Level<'a>, decision: Decision) -> Self {
        Self {
            index,
            name: level.name,
            kind: level.limit.kind(),
            decision,
        }
    }
}

impl fmt::Display for Refusal<'_> {
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
            (_, Kind::Concurrency) => write!(f, "{} of {limit} in use", limit - remaining),
            (_, Kind::Quota) => write!(
                f,
                "{remaining} of {limit} left; retry after {:?}",
                decision.retry_after
            ),
            (_, Kind::Rate) => write!(f, "retry after {:?}", decision.retry_after),
        }
    }
}

impl std::error::Error for Refusal<'_> {}

/// The answer over all levels of a request.
#[derive(Debug)]
#[must_use = "a verdict that is dropped gives back the slots that it holds"]
pub struct Verdict<'a> {
    decision: Decision,
    decider: Option<usize>,
    refusal: Option<Refusal<'a>>,
    pass: Option<Pass>,
}

impl<'a> Verdict<'a> {
    pub(super) fn allowed((decider, decision): (Option<usize>, Decision), pass: Pass) -> Self {
        Self {
            decision,
            decider,
            refusal: None,
            pass: Some(pass),
        }
    }

    pub(super) fn refused(refusal: Refusal<'a>) -> Self {
        Self {
            decision: refusal.decision,
            decider: Some(refusal.index),
            refusal: Some(refusal),
            pass: None,
        }
    }

    /// The same with each limit by the name of its kind.
    #[cfg(feature = "quota")]
    pub(crate) fn named_by_kind(self) -> Verdict<'static> {
        Verdict {
            decision: self.decision,
            decider: self.decider,
            refusal: self.refusal.map(|refusal| Refusal {
                index: refusal.index,
                name: match refusal.kind {
                    Kind::Rate => "rate",
                    Kind::Quota => "quota",
                    Kind::Concurrency => "concurrency",
                },
                kind: refusal.kind,
                decision: refusal.decision,
            }),
            pass: self.pass,
        }
    }

    /// Whether the request may pass.
    pub fn is_allowed(&self) -> bool {
        self.refusal.is_none()
    }

    /// One decision for all: of a request that passed, the limit with the fewest such requests left;
    /// of one that was refused, the limit that refused, with the largest `retry_after`.
    pub fn decision(&self) -> &Decision {
        &self.decision
    }

    /// Which level the decision is of, of those that were given; none if there were none.
    ///
    /// ```
    /// use tollgate::{Level, Limiter, Rate, Stack};
    ///
    /// let (wide, narrow) = (Limiter::new(Rate::per_hour(9)), Limiter::new(Rate::per_hour(1)));
    /// let verdict = Stack::new().check(&[Level::new("wide", &wide), Level::new("narrow", &narrow)]);
    /// assert_eq!(verdict.decider(), Some(1));
    /// ```
    pub fn decider(&self) -> Option<usize> {
        self.decider
    }

    /// Which limit refused, if one did.
    pub fn refusal(&self) -> Option<&Refusal<'a>> {
        self.refusal.as_ref()
    }

    /// What holds the slots of the request while it runs; none if it was refused.
    pub fn into_pass(self) -> Option<Pass> {
        self.pass
    }
}

/// The tightest of all levels met so far, and the worst refusal.
#[derive(Debug, Default)]
pub(super) struct Worst<'a> {
    refusal: Option<Refusal<'a>>,
    tightest: Option<(u64, usize, Decision)>,
}

impl<'a> Worst<'a> {
    pub(super) fn meet(&mut self, index: usize, level: &Level<'a>, decision: Decision) {
        if !decision.is_allowed() {
            if self
                .refusal
                .is_none_or(|worst| graver(&decision, &worst.decision))
            {
                self.refusal = Some(Refusal::new(index, level, decision));
            }
            return;
        }
        let requests = decision.remaining / level.cost.max(1);
        if self.tightest.is_none_or(|(fewest, ..)| requests < fewest) {
            self.tightest = Some((requests, index, decision));
        }
    }

    pub(super) fn refusal(&self) -> Option<Refusal<'a>> {
        self.refusal
    }

    /// Of a request that meets no limit: no limit.
    pub(super) fn tightest(&self) -> (Option<usize>, Decision) {
        match self.tightest {
            Some((_, index, decision)) => (Some(index), decision),
            None => (None, Decision::UNLIMITED),
        }
    }
}

fn graver(one: &Decision, other: &Decision) -> bool {
    let wait = |decision: &Decision| match decision.outcome {
        Outcome::Never => Duration::MAX,
        _ => decision.retry_after,
    };
    wait(one) > wait(other)
}
