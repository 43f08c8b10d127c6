//! The decision of a limit: allowed or denied, the remaining tokens, and when to retry.

use core::fmt;
use core::time::Duration;

/// Whether a request may pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// The request may pass, and its cost was charged.
    Allowed,
    /// The request may not pass now; nothing was charged. [`Decision::retry_after`] is the wait.
    Denied,
    /// The request can never pass: its cost exceeds what the limit can hold.
    Never,
}

/// The result of one check.
///
/// ```
/// use core::time::Duration;
/// use tollgate_core::{Arithmetic, Gcra, Rate, TatState, Timestamp};
///
/// let limit = Gcra::new(Rate::per_second(10).burst(5))?;
/// let mut state = TatState::default();
/// let decision = limit.decide(&mut state, Timestamp::ZERO, 4);
/// assert!(decision.is_allowed());
/// assert_eq!(decision.limit, 5);
/// assert_eq!(decision.remaining, 1);
/// assert_eq!(decision.reset_after, Duration::from_millis(400));
///
/// let denied = limit.decide(&mut state, Timestamp::ZERO, 2);
/// assert_eq!(denied.retry_after, Some(Duration::from_millis(100)));
/// # Ok::<(), tollgate_core::LimitError>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[must_use = "a request that is denied mustn't pass"]
pub struct Decision {
    /// Whether the request may pass.
    pub outcome: Outcome,
    /// The most that can pass at one instant: the burst, or the count of the window. [`u64::MAX`] stands for "no
    /// limit", so check [`is_unlimited`](Self::is_unlimited) before you display it.
    pub limit: u64,
    /// The largest cost that would pass now, after this decision.
    pub remaining: u64,
    /// How long until the same cost would pass, if no other request takes the tokens. Zero when allowed; `None` when it
    /// never passes. Also zero for a concurrency limit, because the end of the requests in flight is unknown.
    pub retry_after: Option<Duration>,
    /// How long until the limit is as if never used, if no further request uses it.
    pub reset_after: Duration,
}

impl Decision {
    /// Builds a decision. The crates that store states call this; callers of limits only read decisions. A wait of
    /// [`Duration::MAX`] means never.
    pub const fn new(
        outcome: Outcome,
        limit: u64,
        remaining: u64,
        wait: Duration,
        reset_after: Duration,
    ) -> Self {
        Self {
            outcome,
            limit,
            remaining,
            retry_after: finite_wait(wait),
            reset_after,
        }
    }

    /// [`retry_after`](Self::retry_after) as a number that can be compared: [`Duration::MAX`] means never.
    ///
    /// ```
    /// use core::time::Duration;
    /// use tollgate_core::{Decision, Outcome};
    ///
    /// let never = Decision::new(Outcome::Never, 5, 5, Duration::MAX, Duration::ZERO);
    /// assert_eq!((never.retry_after, never.wait_or_max()), (None, Duration::MAX));
    /// ```
    pub const fn wait_or_max(&self) -> Duration {
        match self.retry_after {
            Some(wait) => wait,
            None => Duration::MAX,
        }
    }

    /// Replaces [`retry_after`](Self::retry_after) by another wait. [`Duration::MAX`] means never.
    ///
    /// ```
    /// use core::time::Duration;
    /// use tollgate_core::Decision;
    ///
    /// let mut decision = Decision::UNLIMITED;
    /// decision.set_wait(Duration::from_secs(2));
    /// assert_eq!(decision.retry_after, Some(Duration::from_secs(2)));
    /// ```
    pub const fn set_wait(&mut self, wait: Duration) {
        self.retry_after = finite_wait(wait);
    }

    /// The decision of an unlimited limit.
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

    /// Whether the limit is unlimited. Its counts mean nothing then.
    pub const fn is_unlimited(&self) -> bool {
        self.limit == u64::MAX
    }

    /// The value of the header `Retry-After`: [`retry_after`](Self::retry_after) in whole seconds, rounded up so that a
    /// client that waits this long isn't too early. Zero when allowed; `None` when the request can never pass.
    ///
    /// ```
    /// use core::time::Duration;
    /// use tollgate_core::{Decision, Outcome};
    ///
    /// let denied = |wait| Decision::new(Outcome::Denied, 5, 0, wait, wait);
    /// assert_eq!(denied(Duration::from_millis(1_001)).retry_after_secs(), Some(2));
    /// let never = Decision::new(Outcome::Never, 5, 5, Duration::MAX, Duration::ZERO);
    /// assert_eq!(never.retry_after_secs(), None);
    /// ```
    pub const fn retry_after_secs(&self) -> Option<u64> {
        match self.outcome {
            Outcome::Never => None,
            _ => ceil_secs(self.wait_or_max()),
        }
    }

    /// The value of reset headers: [`reset_after`](Self::reset_after) in whole seconds, rounded up. `None` if the limit
    /// never resets.
    ///
    /// ```
    /// use core::time::Duration;
    /// use tollgate_core::{Decision, Outcome};
    ///
    /// let allowed = Decision::new(Outcome::Allowed, 5, 4, Duration::ZERO, Duration::from_millis(100));
    /// assert_eq!(allowed.reset_after_secs(), Some(1));
    /// ```
    pub const fn reset_after_secs(&self) -> Option<u64> {
        ceil_secs(self.reset_after)
    }
}

/// A finite wait; `None` for [`Duration::MAX`].
const fn finite_wait(wait: Duration) -> Option<Duration> {
    match wait {
        Duration::MAX => None,
        _ => Some(wait),
    }
}

/// Whole seconds, rounded up; `None` for a time that never comes.
const fn ceil_secs(time: Duration) -> Option<u64> {
    match (time.as_secs(), time.subsec_nanos()) {
        (u64::MAX, _) => None,
        (secs, 0) => Some(secs),
        (secs, _) => Some(secs + 1),
    }
}

/// A count for display. The largest count stands for "no limit".
struct DisplayCount(u64);

impl fmt::Debug for DisplayCount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            u64::MAX => f.write_str("unlimited"),
            count => count.fmt(f),
        }
    }
}

impl fmt::Debug for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Decision")
            .field("outcome", &self.outcome)
            .field("limit", &DisplayCount(self.limit))
            .field("remaining", &DisplayCount(self.remaining))
            .field("retry_after", &self.retry_after)
            .field("reset_after", &self.reset_after)
            .finish()
    }
}

/// A wait for display: rounded up to milliseconds if it is that long.
fn round_up_to_millis(wait: Duration) -> Duration {
    const MILLI: u32 = 1_000_000;
    if wait < Duration::from_millis(1) {
        return wait;
    }
    let over = wait.subsec_nanos() % MILLI;
    let more = if over == 0 { 0 } else { MILLI - over };
    wait.saturating_add(Duration::from_nanos(u64::from(more)))
}

/// The text for logs and terminals.
///
/// ```
/// use tollgate_core::{Arithmetic, Decision, Gcra, Rate, Timestamp};
///
/// let (limit, mut state) = (Gcra::new(Rate::per_minute(1))?, Default::default());
/// let said = [(); 2].map(|()| limit.decide(&mut state, Timestamp::ZERO, 1).to_string());
/// assert_eq!(said, ["allowed, 0 of 1 left", "denied, retry after 60s"]);
/// assert_eq!(Decision::UNLIMITED.to_string(), "allowed, unlimited");
/// # Ok::<(), tollgate_core::LimitError>(())
/// ```
impl fmt::Display for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            limit, remaining, ..
        } = self;
        match (self.outcome, self.wait_or_max()) {
            (Outcome::Allowed, _) if self.is_unlimited() => f.write_str("allowed, unlimited"),
            (Outcome::Allowed, _) => write!(f, "allowed, {remaining} of {limit} left"),
            (Outcome::Denied, Duration::MAX) => f.write_str("denied, and it never passes"),
            (Outcome::Denied, Duration::ZERO) => {
                f.write_str("denied, until another gives back what it holds")
            }
            (Outcome::Denied, wait) => {
                write!(f, "denied, retry after {:?}", round_up_to_millis(wait))
            }
            (Outcome::Never, _) => {
                write!(f, "denied, and it never passes: it costs more than {limit}")
            }
        }
    }
}
