//! The terms of a hold: how long it lasts, and what it means if it is never settled.

use std::time::Duration;

/// For how long a [`Hold`](super::Hold) may be settled, and what it means if it is dropped before.
///
/// A hold that is dropped is charged its whole estimate. So a client that disconnects early, and so ends the task that
/// would have settled the hold, has paid for what it may have used. Where nothing can have been used before the hold is
/// settled, [`refund_on_drop`](Self::refund_on_drop) gives everything back instead. Slots of concurrency limits are
/// free in any case once it is dropped.
///
/// ```
/// use std::time::Duration;
/// use tollgate::{Level, Limiter, Rate, Stack, stack::Terms, clock::Manual};
///
/// let limiter = Limiter::with_clock(Rate::per_minute(1_000), Manual::new());
/// let (stack, minute) = (Stack::new(), Duration::from_secs(60));
/// let levels = [Level::estimated("tokens", &limiter, 400)];
///
/// drop(stack.hold(&levels, minute)); // as `Terms::within(minute)`
/// assert_eq!(limiter.peek().remaining, 600);
///
/// drop(stack.hold(&levels, Terms::within(minute).refund_on_drop()));
/// assert_eq!(limiter.peek().remaining, 600);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "terms do nothing until something is held by them"]
pub struct Terms {
    pub(super) longest: Duration,
    pub(super) dropped: Dropped,
}

/// What it means that a hold wasn't settled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dropped {
    Charged,
    /// Nothing was spent, if its time isn't over.
    Refunded,
    /// Nothing was spent.
    AlwaysRefunded,
}

impl Terms {
    /// It may be settled for so long; after that all of it counts as spent, and if it is dropped before, too. What is
    /// settled later is charged as far as it is more.
    pub const fn within(longest: Duration) -> Self {
        Self {
            longest,
            dropped: Dropped::Charged,
        }
    }

    pub(crate) const fn longest(self) -> Duration {
        self.longest
    }

    /// If it is dropped before its time is over, nothing was spent.
    pub const fn refund_on_drop(mut self) -> Self {
        self.dropped = Dropped::Refunded;
        self
    }

    /// Nothing was spent if it is dropped, or at the end of its time, once somebody [ends](super::Pass::expire) it then; what
    /// is settled later is charged. Until it ends it is held.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollgate::{Level, Limiter, Rate, Stack, clock::Manual, stack::Terms};
    ///
    /// let clock = Manual::new();
    /// let limiter = Limiter::with_clock(Rate::per_day(1_000), clock.clone());
    /// let terms = Terms::within(Duration::from_secs(60)).refund_unsettled();
    /// let hold = Stack::new().hold(&[Level::estimated("tokens", &limiter, 400)], terms).expect("room");
    /// clock.advance(Duration::from_secs(61));
    /// drop(hold);
    /// assert_eq!(limiter.peek().remaining, 1_000);
    /// ```
    pub const fn refund_unsettled(mut self) -> Self {
        self.dropped = Dropped::AlwaysRefunded;
        self
    }
}

impl From<Duration> for Terms {
    fn from(longest: Duration) -> Self {
        Self::within(longest)
    }
}
