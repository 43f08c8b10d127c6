//! `Lanes`: one rate in priority lanes, each with a guaranteed share; the rest is lent.

use std::fmt;

use tollgate_core::{Decision, Rate};

use crate::clock::{Clock, Monotonic};
use crate::wait_queue::{QueuedAcquire, SharedWaitQueue};

mod builder;
mod lane_shares;
#[cfg(test)]
mod tests;

pub use builder::{Builder, LanesError, Settings};
use lane_shares::LaneShares;

/// One rate in priority lanes.
///
/// Each lane has a guaranteed share: within it a request always passes, whatever the other lanes do.
/// What lanes leave unused is lent to those that want more, the highest first: while a lane has
/// waiters, no lower lane borrows. All lanes together keep to the rate and its burst. The lane that was
/// added first is the highest. A cost above its lane's part of the burst never passes.
///
/// Requests are decided immediately ([`allow`](Lane::allow), [`check`](Lane::check)) or wait
/// ([`acquire`](Lane::acquire)), first in, first out within a lane.
///
/// ```
/// use std::time::Duration;
/// use tollgate::{Lanes, Rate, clock::Manual};
///
/// let clock = Manual::new();
/// let lanes = Lanes::builder(Rate::per_second(100))
///     .lane("interactive", 60)
///     .lane("batch", 40)
///     .clock(clock.clone())
///     .build()?;
/// let batch = lanes.lane("batch").expect("was added");
/// let passed = || (0..200).filter(|_| batch.allow()).count();
/// // Its own burst; the other lane's stays untouched.
/// assert_eq!(passed(), 40);
/// clock.advance(Duration::from_secs(1));
/// // The other lane left its share of this second unused.
/// assert_eq!(passed(), 40);
/// let mut second = 0;
/// for _ in 0..100 {
///     clock.advance(Duration::from_millis(10));
///     second += passed();
/// }
/// assert_eq!(second, 100);
/// let interactive = lanes.lane("interactive").expect("was added");
/// assert_eq!((0..200).filter(|_| interactive.allow()).count(), 60);
/// # Ok::<(), tollgate::lanes::LanesError>(())
/// ```
pub struct Lanes<C: Clock = Monotonic> {
    names: Vec<String>,
    queue: SharedWaitQueue<LaneShares, C>,
}

/// One lane of [`Lanes`], with the methods of a limiter; made by [`Lanes::lane`].
///
/// ```
/// use tollgate::{Lanes, Rate, clock::Manual};
///
/// let lanes = Lanes::builder(Rate::per_second(10)).lane("a", 6).lane("b", 4).clock(Manual::new());
/// let lanes = lanes.build()?;
/// let passed: Vec<_> =
///     lanes.iter().map(|lane| (0..9).filter(|_| lane.allow()).count()).collect();
/// assert_eq!(passed, [6, 4]);
/// # Ok::<(), tollgate::lanes::LanesError>(())
/// ```
pub struct Lane<'a, C: Clock = Monotonic> {
    lanes: &'a Lanes<C>,
    number: u32,
}

impl Lanes {
    /// A builder without lanes; add them highest first.
    pub const fn builder(rate: Rate) -> Builder {
        Builder::new(rate)
    }
}

impl<C: Clock> Lanes<C> {
    /// The lane of this name, if it exists.
    pub fn lane(&self, name: &str) -> Option<Lane<'_, C>> {
        let number = self.names.iter().position(|known| known == name)?;
        self.lane_at(number)
    }

    /// All lanes, highest first.
    pub fn iter(&self) -> impl Iterator<Item = Lane<'_, C>> {
        (0..self.names.len()).filter_map(|number| self.lane_at(number))
    }

    /// The number of waiters in all lanes.
    pub fn waiters(&self) -> usize {
        self.queue.read(|queue| queue.waiting())
    }

    /// The clock of all lanes.
    pub const fn clock(&self) -> &C {
        self.queue.clock()
    }

    fn lane_at(&self, number: usize) -> Option<Lane<'_, C>> {
        let number = u32::try_from(number).ok()?;
        Some(Lane {
            lanes: self,
            number,
        })
    }
}

impl<'a, C: Clock> Lane<'a, C> {
    /// The lane's name.
    pub fn name(&self) -> &'a str {
        let number = usize::try_from(self.number).unwrap_or(usize::MAX);
        &self.lanes.names[number]
    }

    /// The lane's guaranteed rate.
    ///
    /// ```
    /// use tollgate::{Lanes, Rate};
    ///
    /// let lanes = Lanes::builder(Rate::per_second(100).burst(10)).lane("a", 60).lane("b", 40).build()?;
    /// let shares: Vec<_> = lanes.iter().map(|lane| lane.rate().to_string()).collect();
    /// assert_eq!(shares, ["60/s burst 6", "40/s burst 4"]);
    /// # Ok::<(), tollgate::lanes::LanesError>(())
    /// ```
    pub fn rate(&self) -> Rate {
        let number = self.number;
        self.lanes
            .queue
            .read(|queue| queue.discipline().rate_of(number))
    }

    /// Whether one request passes now; it is charged if so.
    #[must_use = "a request that isn't allowed mustn't pass"]
    pub fn allow(&self) -> bool {
        self.allow_n(1)
    }

    /// Whether a request of this cost passes now; it is charged if so.
    #[must_use = "a request that isn't allowed mustn't pass"]
    pub fn allow_n(&self, cost: u64) -> bool {
        self.lanes.queue.allow(&self.number, cost)
    }

    /// Decides one request.
    pub fn check(&self) -> Decision {
        self.check_n(1)
    }

    /// Decides a request of this cost. `retry_after` is this lane's, by its share or by what others
    /// leave unused if no further request comes; limit, remaining and `reset_after` are those of all
    /// lanes together.
    pub fn check_n(&self, cost: u64) -> Decision {
        self.lanes.queue.check(&self.number, cost)
    }

    /// Waits for one token in this lane's queue.
    pub fn acquire(&self) -> QueuedAcquire<'a, LaneShares, C> {
        self.acquire_n(1)
    }

    /// Waits for this many tokens in this lane's queue.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollgate::{Lanes, Rate, RateDenied, clock::Manual};
    ///
    /// let lanes = Lanes::builder(Rate::per_second(10)).lane("a", 6).lane("b", 4).clock(Manual::new());
    /// let lanes = lanes.build()?;
    /// let b = lanes.lane("b").expect("was added");
    /// assert_eq!(b.acquire_n(4).wait_blocking(), Ok(Duration::ZERO));
    /// // The other lane is full, so all new tokens can be borrowed: 10 a second.
    /// let denied = b.acquire().timeout(Duration::from_millis(99)).wait_blocking().unwrap_err();
    /// assert!(matches!(denied, RateDenied::DeadlineExceeded(_)));
    /// assert_eq!(denied.decision().wait_or_max(), Duration::from_millis(100));
    /// # Ok::<(), tollgate::lanes::LanesError>(())
    /// ```
    pub fn acquire_n(&self, cost: u64) -> QueuedAcquire<'a, LaneShares, C> {
        QueuedAcquire::new(&self.lanes.queue, self.number, cost)
    }

    /// The number of waiters in this lane.
    pub fn waiters(&self) -> usize {
        let number = self.number;
        self.lanes
            .queue
            .read(|queue| queue.waiting_of(Some(number)))
    }
}

impl<C: Clock> Clone for Lane<'_, C> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<C: Clock> Copy for Lane<'_, C> {}

impl<C: Clock> fmt::Debug for Lanes<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lanes")
            .field("names", &self.names)
            .field("waiters", &self.waiters())
            .finish_non_exhaustive()
    }
}

impl<C: Clock> fmt::Debug for Lane<'_, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lane")
            .field("name", &self.name())
            .field("rate", &self.rate())
            .finish_non_exhaustive()
    }
}
