//! The denial of a reservation or a wait: a value with the decision.

use std::fmt;
use std::time::Duration;

use tollgate_core::{Decision, Outcome};

/// The denial of a reservation or a wait: nothing was reserved and nothing was charged.
///
/// ```
/// use std::time::Duration;
/// use tollgate::{Limiter, Rate, RateDenied, clock::Manual};
///
/// let limiter = Limiter::with_clock(Rate::per_second(1), Manual::new());
/// assert!(limiter.allow());
/// // The wait would be a second, so half a second of patience fails at once.
/// let patience = Duration::from_millis(500);
/// let denied = limiter.acquire().timeout(patience).wait_blocking().unwrap_err();
/// assert!(matches!(denied, RateDenied::DeadlineExceeded(_)));
/// assert_eq!(denied.decision().wait_or_max(), Duration::from_secs(1));
/// assert_eq!(
///     denied.to_string(),
///     "rate limit: the wait of 1s is longer than the deadline allows"
/// );
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RateDenied {
    /// The cost is above what the limit can hold, so a retry is pointless.
    ExceedsBurst(Decision),
    /// The wait would exceed the deadline, or the deadline has already passed.
    DeadlineExceeded(Decision),
    /// It would act further ahead than reservations may: than the limiter's `longest_wait`, or than its algorithm can
    /// book.
    TooFarAhead(Decision),
    /// The key is blocked, so its waiters are denied.
    Blocked(Decision),
    /// The queue is full.
    QueueFull(Decision),
    /// The request was shed: dropped from a queue that had been too long for too long.
    Dropped(Decision),
}

impl RateDenied {
    /// The denial for a decision that doesn't pass in time.
    pub(crate) fn from_decision(decision: Decision) -> Self {
        match decision.outcome {
            Outcome::Never => Self::ExceedsBurst(decision),
            Outcome::Allowed | Outcome::Denied => Self::DeadlineExceeded(decision),
        }
    }

    /// The decision of the limit: remaining, `retry_after`, `reset_after`.
    pub const fn decision(&self) -> &Decision {
        match self {
            Self::ExceedsBurst(decision)
            | Self::DeadlineExceeded(decision)
            | Self::TooFarAhead(decision)
            | Self::Blocked(decision)
            | Self::QueueFull(decision)
            | Self::Dropped(decision) => decision,
        }
    }
}

impl fmt::Display for RateDenied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ExceedsBurst(decision) => write!(
                f,
                "rate limit: the cost is above the {} that can pass at once, so it never will",
                decision.limit
            ),
            Self::DeadlineExceeded(decision) if decision.wait_or_max() == Duration::ZERO => {
                f.write_str("rate limit: the deadline has passed already")
            }
            Self::DeadlineExceeded(decision) => write!(
                f,
                "rate limit: the wait of {:?} is longer than the deadline allows",
                decision.wait_or_max()
            ),
            Self::TooFarAhead(decision) => write!(
                f,
                "rate limit: the wait of {:?} is longer than a reservation may be made ahead; use `acquire`, \
                 which waits as long as it takes",
                decision.wait_or_max()
            ),
            Self::Blocked(decision) => write!(
                f,
                "rate limit: the key is blocked; retry after {:?}",
                decision.wait_or_max()
            ),
            Self::QueueFull(decision) => write!(
                f,
                "rate limit: too many are waiting already; retry after {:?}",
                decision.wait_or_max()
            ),
            Self::Dropped(decision) => write!(
                f,
                "rate limit: shed from a line that stood for too long; retry after {:?}",
                decision.wait_or_max()
            ),
        }
    }
}

impl std::error::Error for RateDenied {}
