//! The settings of a fair limiter before it is built.

use std::time::Duration;

use tollgate_core::{Arithmetic, Gcra, LimitError, Rate};

use super::FairLimiter;
use super::anchored_bucket::AnchoredBucket;
use super::codel::Codel;
use super::fair_queueing::FairQueueing;
use crate::clock::{Clock, ClockChoice, DefaultClock, WithClock};
use crate::key_table::hasher::KeyHasher;
use crate::wait_queue::SharedWaitQueue;

/// Builds a [`FairLimiter`]; made by [`FairLimiter::builder`].
///
/// ```
/// use std::time::Duration;
/// use tollgate::{FairLimiter, Rate, clock::Manual};
///
/// let limiter = FairLimiter::builder(Rate::per_second(100).burst(10))
///     .max_waiters(10_000)
///     .max_waiters_per_client(100)
///     .codel(Duration::from_millis(50), Duration::from_millis(500))
///     .clock(Manual::new())
///     .build()?;
/// assert!(limiter.allow("acme"));
/// # Ok::<(), tollgate::LimitError>(())
/// ```
pub type Builder<C = DefaultClock> = WithClock<Settings, C>;

/// The settings of a fair limiter, except its clock.
#[derive(Debug)]
pub struct Settings {
    rate: Rate,
    max_waiters: usize,
    max_waiters_per_client: usize,
    codel: Option<Codel>,
    start_empty: bool,
}

impl Builder {
    pub(super) fn new(rate: Rate) -> Self {
        Self::from_settings(Settings {
            rate,
            max_waiters: 65_536,
            max_waiters_per_client: 1_024,
            codel: None,
            start_empty: false,
        })
    }
}

impl<C> Builder<C> {
    /// The most waiters, 65,536 by default; one more gets
    /// [`RateDenied::QueueFull`](crate::RateDenied::QueueFull).
    pub fn max_waiters(mut self, most: usize) -> Self {
        self.settings.max_waiters = most;
        self
    }

    /// The most waiters of one client, 1,024 by default.
    pub fn max_waiters_per_client(mut self, most: usize) -> Self {
        self.settings.max_waiters_per_client = most;
        self
    }

    /// Sheds waiters of a standing queue (CoDel, for each client). When all of a client's requests have
    /// waited longer than `target` for a whole `interval`, the first is dropped with
    /// [`RateDenied::Dropped`](crate::RateDenied::Dropped), then more and more often until the queue is
    /// short. A burst that clears within the interval loses nothing, and neither does a client with a
    /// single waiter.
    pub fn codel(mut self, target: Duration, interval: Duration) -> Self {
        self.settings.codel = Some(Codel { target, interval });
        self
    }

    /// Starts with an empty bucket instead of a full burst.
    pub fn start_empty(mut self) -> Self {
        self.settings.start_empty = true;
        self
    }
}

impl<C: ClockChoice> Builder<C> {
    /// Builds it on the chosen clock, or on the default one.
    ///
    /// # Errors
    /// If GCRA can't represent the rate.
    pub fn build(self) -> Result<FairLimiter<C::Clock>, LimitError> {
        let limit = Gcra::new(self.settings.rate)?;
        let clock = self.clock.into_clock();
        let now = clock.now();
        let mut meter = AnchoredBucket::new(limit, now);
        if self.settings.start_empty {
            meter = meter.emptied(now);
        }
        let fair = FairQueueing::new(
            meter,
            now,
            self.settings.max_waiters_per_client,
            self.settings.codel,
        );
        Ok(FairLimiter {
            queue: SharedWaitQueue::new(fair, self.settings.max_waiters, clock),
            hasher: KeyHasher::random(),
        })
    }
}
