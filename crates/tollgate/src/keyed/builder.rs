//! What can be chosen about a keyed limiter before it is built.

use std::sync::Arc;
use std::time::Duration;

use tollgate_core::{Arithmetic, Gcra, LimitError, Rate, Timestamp, units};

use super::counters::Counters;
use super::hasher::KeyHasher;
use super::intervals::Intervals;
use super::pace::PaceCell;
use super::table::Table;
use super::{ByKey, KeyedLimiter, OneRate};
use crate::acquire::Waiting;
use crate::clock::{Clock, Monotonic};
use crate::limiter::DefaultClock;
use crate::sync::AtomicU64;
use crate::tier::{Choice, Chooses, all_for};
use crate::{AtCap, Tier};

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
pub struct Builder<C = DefaultClock, T = OneRate> {
    rate: Rate,
    capacity: usize,
    at_cap: AtCap,
    longest_wait: Duration,
    max_waiters: usize,
    hasher: KeyHasher,
    intervals: Arc<Intervals>,
    clock: C,
    tier_of: T,
    /// A tier that isn't for this limiter.
    misfit: Option<LimitError>,
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
            tier_of: OneRate::new(),
            misfit: None,
        }
    }
}

impl<T> Builder<DefaultClock, T> {
    /// Builds it on the default clock.
    ///
    /// # Errors
    /// If GCRA can't represent the rate, or a tier isn't one of GCRA.
    pub fn build(self) -> Result<KeyedLimiter<Monotonic, T>, LimitError> {
        self.clock(Monotonic::new()).build()
    }
}

impl<C, T> Builder<C, T> {
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
    pub fn clock<D: Clock>(self, clock: D) -> Builder<D, T> {
        Builder {
            rate: self.rate,
            capacity: self.capacity,
            at_cap: self.at_cap,
            longest_wait: self.longest_wait,
            max_waiters: self.max_waiters,
            hasher: self.hasher,
            intervals: self.intervals,
            clock,
            tier_of: self.tier_of,
            misfit: self.misfit,
        }
    }

    /// Each key's tier is the one of these that this function says, or none for the limiter's own rate.
    ///
    /// Keys are of one type then. The function is asked with every call, so it should be quick.
    ///
    /// ```
    /// use tollgate::{Algorithm, KeyedLimiter, Rate, Tier, clock::Manual};
    ///
    /// let staff = Tier::new(Algorithm::Gcra, Rate::per_hour(100))?;
    /// let limiter = KeyedLimiter::builder(Rate::per_hour(1), 1_000)
    ///     .tier_of([staff], |[staff], user: &str| user.starts_with("staff:").then_some(staff))
    ///     .clock(Manual::new())
    ///     .build()?;
    /// assert!(limiter.allow("guest") && !limiter.allow("guest"));
    /// assert!(limiter.key("staff:7").allow_n(100));
    /// # Ok::<(), tollgate::LimitError>(())
    /// ```
    pub fn tier_of<K, S, F>(self, tiers: S, choose: F) -> Builder<C, ByKey<K>>
    where
        K: ?Sized + 'static,
        S: AsRef<[Tier]> + Send + Sync + 'static,
        F: for<'a> Fn(&'a S, &K) -> Option<&'a Tier> + Send + Sync + 'static,
    {
        let choice: Box<dyn Chooses<K>> = Box::new(Choice { tiers, choose });
        Builder {
            rate: self.rate,
            capacity: self.capacity,
            at_cap: self.at_cap,
            longest_wait: self.longest_wait,
            max_waiters: self.max_waiters,
            hasher: self.hasher,
            intervals: self.intervals,
            clock: self.clock,
            misfit: all_for(&*choice, crate::Algorithm::Gcra).err(),
            tier_of: ByKey(choice),
        }
    }

    /// With the hash of this seed, and these intervals under the tags that they had.
    pub(super) fn adopting(mut self, seed: u64, intervals: Intervals) -> Self {
        self.hasher = KeyHasher::with_seed(seed);
        self.intervals = Arc::new(intervals);
        self
    }
}

impl<C: Clock, T> Builder<C, T> {
    /// Builds it on the clock that was given.
    ///
    /// # Errors
    /// If GCRA can't represent the rate, or a tier isn't one of GCRA.
    pub fn build(self) -> Result<KeyedLimiter<C, T>, LimitError> {
        let limit = Gcra::new(self.rate)?;
        self.misfit.map_or(Ok(()), Err)?;
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
            tier_of: self.tier_of,
        })
    }
}
