//! What can be chosen about a keyed limiter before it is built.

use std::sync::Arc;
use std::time::Duration;

use tollgate_core::{Arithmetic, Gcra, LimitError, Rate, Timestamp, units};

use super::KeyedLimiter;
use super::counters::Counters;
use super::hasher::KeyHasher;
use super::intervals::Intervals;
use super::pace::PaceCell;
use super::table::Table;
use crate::acquire::Waiting;
use crate::clock::{Clock, Monotonic};
use crate::limiter::DefaultClock;
use crate::sync::AtomicU64;

/// What happens to a new key when every slot that it may have holds an active key.
///
/// Keys that are there keep their limits, whatever the policy, except under
/// [`EvictNearestIdle`](Self::EvictNearestIdle).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum AtCap {
    /// All keys without a slot share one bucket of the rate: the default. A flood of new keys can't
    /// get more than one key's worth through, and a rightful new key has a chance. A [`KeyedLimiter`]
    /// has one for each rate that they are asked at.
    #[default]
    ShareOne,
    /// New keys are denied until a slot is free.
    DenyNew,
    /// New keys pass without being counted: availability over protection.
    AdmitNew,
    /// The key that is idle next makes room, though it is active: for those who expect an LRU. In a
    /// [`KeyedLimiter`] that is the next of the eight that stand in the new key's way.
    ///
    /// This is a way around the limit: whoever can make up new keys can flush its own spent key out
    /// of the table and start it afresh. Blocked keys are never evicted.
    EvictNearestIdle,
}

/// Builds a [`KeyedLimiter`]; made by [`KeyedLimiter::builder`].
///
/// ```
/// use tollgate::{AtCap, KeyedLimiter, Rate};
///
/// let limiter = KeyedLimiter::builder(Rate::per_minute(60), 1_000_000)
///     .at_cap(AtCap::DenyNew)
///     .build()?;
/// assert!(limiter.allow("user:42"));
/// # Ok::<(), tollgate::LimitError>(())
/// ```
#[derive(Debug)]
#[must_use = "a builder does nothing until it is built"]
pub struct Builder<C = DefaultClock> {
    rate: Rate,
    capacity: usize,
    at_cap: AtCap,
    longest_wait: Duration,
    max_waiters: usize,
    hasher: KeyHasher,
    intervals: Arc<Intervals>,
    clock: C,
}

impl Builder {
    pub(super) fn new(rate: Rate, capacity: usize) -> Self {
        Self {
            rate,
            capacity,
            at_cap: AtCap::default(),
            longest_wait: Duration::from_secs(60),
            max_waiters: Waiting::DEFAULT_MAX,
            hasher: KeyHasher::random(),
            intervals: Arc::new(Intervals::new()),
            clock: DefaultClock::new(),
        }
    }

    /// Builds it on the default clock.
    ///
    /// # Errors
    /// If GCRA can't represent the rate.
    pub fn build(self) -> Result<KeyedLimiter, LimitError> {
        self.clock(Monotonic::new()).build()
    }
}

impl<C> Builder<C> {
    /// What happens to new keys at the cap: [`AtCap::ShareOne`] unless said otherwise.
    pub fn at_cap(mut self, at_cap: AtCap) -> Self {
        self.at_cap = at_cap;
        self
    }

    /// How far ahead a reservation may act: a minute unless said otherwise. A wait takes as long as it
    /// takes.
    pub fn longest_wait(mut self, longest: Duration) -> Self {
        self.longest_wait = longest;
        self
    }

    /// How many may wait at once, on all keys together. The default is 65,536.
    pub fn max_waiters(mut self, most: usize) -> Self {
        self.max_waiters = most;
        self
    }

    /// Reads this clock instead of the default one.
    pub fn clock<D: Clock>(self, clock: D) -> Builder<D> {
        Builder {
            rate: self.rate,
            capacity: self.capacity,
            at_cap: self.at_cap,
            longest_wait: self.longest_wait,
            max_waiters: self.max_waiters,
            hasher: self.hasher,
            intervals: self.intervals,
            clock,
        }
    }

    /// With the hash of this seed, and these intervals under the tags that they had.
    pub(super) fn adopting(mut self, seed: u64, intervals: Intervals) -> Self {
        self.hasher = KeyHasher::with_seed(seed);
        self.intervals = Arc::new(intervals);
        self
    }
}

impl<C: Clock> Builder<C> {
    /// Builds it on the clock that was given.
    ///
    /// # Errors
    /// If GCRA can't represent the rate.
    pub fn build(self) -> Result<KeyedLimiter<C>, LimitError> {
        let limit = Gcra::new(self.rate)?;
        // A year at most, so that no wait comes near the end of a word's time.
        let longest_wait = self.longest_wait.min(Duration::from_secs(31_536_000));
        Ok(KeyedLimiter {
            pace: PaceCell::new(limit, &self.intervals),
            table: Table::new(self.capacity, self.clock.now(), self.intervals),
            hasher: self.hasher,
            counters: Counters::new(),
            at_cap: self.at_cap,
            overflowed: AtomicU64::new(0),
            capacity: self.capacity,
            longest_wait: units::of(Timestamp::ZERO + longest_wait),
            lines: crate::line::of_keys::KeyLines::new(),
            waiting: Waiting::new(self.max_waiters),
            clock: self.clock,
        })
    }
}
