//! What a limit answers: whether, how much is left, when to come back.

use core::time::Duration;

/// Whether a request may pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// It may pass, and its cost was charged.
    Allowed,
    /// Not now; nothing was charged. [`Decision::retry_after`] says when.
    Denied,
    /// Not now and not later: the cost is above what the limit can ever hold.
    Never,
}

/// The answer to one check.
///
/// ```
/// use core::time::Duration;
/// use tollgate_core::{Algorithm, Gcra, Rate, Tat, Timestamp};
///
/// let limit = Gcra::new(Rate::per_second(10).burst(5))?;
/// let mut state = Tat::default();
/// let decision = limit.decide(&mut state, Timestamp::ZERO, 4);
/// assert!(decision.is_allowed());
/// assert_eq!(decision.limit, 5);
/// assert_eq!(decision.remaining, 1);
/// assert_eq!(decision.reset_after, Duration::from_millis(400));
///
/// let refused = limit.decide(&mut state, Timestamp::ZERO, 2);
/// assert_eq!(refused.retry_after, Duration::from_millis(100));
/// # Ok::<(), tollgate_core::LimitError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Decision {
    /// Whether the request may pass.
    pub outcome: Outcome,
    /// The most that can pass at once: the burst, or the window's count.
    pub limit: u64,
    /// The largest cost that would pass now, after this decision.
    pub remaining: u64,
    /// How long until the same cost would pass, if nobody else takes it:
    /// zero when allowed, [`Duration::MAX`] when never.
    pub retry_after: Duration,
    /// How long until the limit is as if never used, if nobody uses it.
    pub reset_after: Duration,
}

impl Decision {
    /// Builds an answer; holders of state use this, callers read it.
    pub const fn new(
        outcome: Outcome,
        limit: u64,
        remaining: u64,
        retry_after: Duration,
        reset_after: Duration,
    ) -> Self {
        Self {
            outcome,
            limit,
            remaining,
            retry_after,
            reset_after,
        }
    }

    /// The answer of a limit that limits nothing.
    pub const UNLIMITED: Self = Self::new(
        Outcome::Allowed,
        u64::MAX,
        u64::MAX,
        Duration::ZERO,
        Duration::ZERO,
    );

    /// Whether the request may pass.
    pub const fn is_allowed(&self) -> bool {
        matches!(self.outcome, Outcome::Allowed)
    }
}
