//! What can be chosen about an exact-key limiter before it is built.

use std::marker::PhantomData;
use std::time::Duration;

use tollgate_core::{LimitError, Rate};

use super::ExactKeyedLimiter;
use super::tables::Tables;
use crate::acquire::Waiting;
use crate::clock::{Clock, Monotonic};
use crate::keyed::counters::Counters;
use crate::keyed::hasher::KeyHasher;
use crate::limiter::DefaultClock;
use crate::{Algorithm, AtCap};

/// Builds an [`ExactKeyedLimiter`]; made by [`ExactKeyedLimiter::builder`].
///
/// ```
/// use tollgate::{Algorithm, AtCap, ExactKeyedLimiter, Rate};
///
/// let limiter = ExactKeyedLimiter::builder(Rate::per_minute(60), 10_000)
///     .algorithm(Algorithm::SlidingCounter)
///     .at_cap(AtCap::DenyNew)
///     .build()?;
/// assert!(limiter.allow("user:42"));
/// # Ok::<(), tollgate::LimitError>(())
/// ```
#[derive(Debug)]
#[must_use = "a builder does nothing until it is built"]
pub struct ExactKeyedBuilder<K, C = DefaultClock> {
    rate: Rate,
    capacity: usize,
    algorithm: Algorithm,
    at_cap: AtCap,
    longest_wait: Duration,
    max_waiters: usize,
    clock: C,
    keys: PhantomData<fn() -> K>,
}

impl<K> ExactKeyedBuilder<K> {
    pub(super) fn new(rate: Rate, capacity: usize) -> Self {
        Self {
            rate,
            capacity,
            algorithm: Algorithm::default(),
            at_cap: AtCap::default(),
            longest_wait: Duration::from_secs(60),
            max_waiters: Waiting::DEFAULT_MAX,
            clock: DefaultClock::new(),
            keys: PhantomData,
        }
    }

    /// Builds it on the default clock.
    ///
    /// # Errors
    /// If the algorithm can't represent the rate.
    pub fn build(self) -> Result<ExactKeyedLimiter<K>, LimitError> {
        self.clock(Monotonic::new()).build()
    }
}

impl<K, C> ExactKeyedBuilder<K, C> {
    /// How it counts: [`Algorithm::Gcra`] unless said otherwise.
    pub fn algorithm(mut self, algorithm: Algorithm) -> Self {
        self.algorithm = algorithm;
        self
    }

    /// What happens to new keys at the cap: [`AtCap::ShareOne`] unless said otherwise.
    pub fn at_cap(mut self, at_cap: AtCap) -> Self {
        self.at_cap = at_cap;
        self
    }

    /// How far ahead a reservation or a wait may act: a minute unless said otherwise. A key is
    /// active, and keeps its slot, until what it has booked is over.
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
    pub fn clock<D: Clock>(self, clock: D) -> ExactKeyedBuilder<K, D> {
        ExactKeyedBuilder {
            rate: self.rate,
            capacity: self.capacity,
            algorithm: self.algorithm,
            at_cap: self.at_cap,
            longest_wait: self.longest_wait,
            max_waiters: self.max_waiters,
            clock,
            keys: PhantomData,
        }
    }
}

impl<K, C: Clock> ExactKeyedBuilder<K, C> {
    /// Builds it on the clock that was given.
    ///
    /// # Errors
    /// If the algorithm can't represent the rate.
    pub fn build(self) -> Result<ExactKeyedLimiter<K, C>, LimitError> {
        let now = self.clock.now();
        let tables = Tables::new(self.algorithm, self.rate, self.capacity, self.at_cap, now)?;
        Ok(ExactKeyedLimiter {
            tables,
            hasher: KeyHasher::random(),
            counters: Counters::new(),
            capacity: self.capacity,
            longest_wait: self.longest_wait,
            waiting: Waiting::new(self.max_waiters),
            clock: self.clock,
        })
    }
}
