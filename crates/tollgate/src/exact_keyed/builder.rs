//! What can be chosen about an exact-key limiter before it is built.

use std::time::Duration;

use tollgate_core::{LimitError, Rate};

use super::ExactKeyedLimiter;
use super::table::Plan;
use super::tables::Tables;
use super::tier::{RateOf, Tier};
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
pub struct Builder<K, C = DefaultClock> {
    rate: Rate,
    pub(super) capacity: usize,
    pub(super) algorithm: Algorithm,
    at_cap: AtCap,
    longest_wait: Duration,
    max_waiters: usize,
    pub(super) clock: C,
    rate_of: RateOf<K>,
}

impl<K> Builder<K> {
    pub(super) fn new(rate: Rate, capacity: usize) -> Self {
        Self {
            rate,
            capacity,
            algorithm: Algorithm::default(),
            at_cap: AtCap::default(),
            longest_wait: Duration::from_secs(60),
            max_waiters: Waiting::DEFAULT_MAX,
            clock: DefaultClock::new(),
            rate_of: RateOf(None),
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

impl<K, C> Builder<K, C> {
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

    /// How far ahead a reservation may act: a minute unless said otherwise. A wait takes as long as it takes.
    /// A key is active, and keeps its slot, until what it has booked is over.
    pub fn longest_wait(mut self, longest: Duration) -> Self {
        self.longest_wait = longest;
        self
    }

    /// How many may wait at once, on all keys together. The default is 65,536.
    pub fn max_waiters(mut self, most: usize) -> Self {
        self.max_waiters = most;
        self
    }

    /// A rate compiled for the algorithm that was chosen so far, for [`rate_of`](Self::rate_of).
    ///
    /// # Errors
    /// If the algorithm can't represent the rate.
    pub fn tier(&self, rate: Rate) -> Result<Tier, LimitError> {
        Tier::new(self.algorithm, rate)
    }

    /// Each key's rate is what this function says of it: a tier of this builder, or nothing for the
    /// limiter's own rate.
    ///
    /// It is asked when a key is new (which clones the key even for a look), and again when the key
    /// comes back after it was idle or at another rate, until it passes; in between the key stays at
    /// its tier, so a check costs no more than without it. It runs under a lock and must not call the
    /// limiter.
    ///
    /// # Panics
    /// A check panics if the function returns a tier that was made for another algorithm.
    ///
    /// ```
    /// use tollgate::{ExactKeyedLimiter, Rate, clock::Manual};
    ///
    /// let builder = ExactKeyedLimiter::builder(Rate::per_hour(1), 1_000);
    /// let staff = builder.tier(Rate::per_hour(100))?;
    /// let limiter = builder
    ///     .rate_of(move |user: &String| user.starts_with("staff:").then(|| staff.clone()))
    ///     .clock(Manual::new())
    ///     .build()?;
    /// assert!(limiter.allow("guest") && !limiter.allow("guest"));
    /// assert!(limiter.check_n("staff:7", 100).is_allowed());
    /// # Ok::<(), tollgate::LimitError>(())
    /// ```
    pub fn rate_of(
        mut self,
        function: impl Fn(&K) -> Option<Tier> + Send + Sync + 'static,
    ) -> Self {
        self.rate_of = RateOf(Some(Box::new(function)));
        self
    }

    /// Reads this clock instead of the default one.
    pub fn clock<D: Clock>(self, clock: D) -> Builder<K, D> {
        Builder {
            rate: self.rate,
            capacity: self.capacity,
            algorithm: self.algorithm,
            at_cap: self.at_cap,
            longest_wait: self.longest_wait,
            max_waiters: self.max_waiters,
            clock,
            rate_of: self.rate_of,
        }
    }
}

impl<K, C: Clock> Builder<K, C> {
    /// Builds it on the clock that was given.
    ///
    /// # Errors
    /// If the algorithm can't represent the rate.
    pub fn build(self) -> Result<ExactKeyedLimiter<K, C>, LimitError> {
        let now = self.clock.now();
        self.build_with(|algorithm, rate, plan| Tables::new(algorithm, rate, plan, now))
    }

    /// Builds it around the table that is made of the algorithm, the rate and the rest.
    pub(super) fn build_with<E>(
        self,
        tables: impl FnOnce(Algorithm, Rate, Plan<K>) -> Result<Tables<K>, E>,
    ) -> Result<ExactKeyedLimiter<K, C>, E> {
        let plan = Plan {
            capacity: self.capacity,
            at_cap: self.at_cap,
            rate_of: self.rate_of,
        };
        Ok(ExactKeyedLimiter {
            tables: tables(self.algorithm, self.rate, plan)?,
            hasher: KeyHasher::random(),
            counters: Counters::new(),
            capacity: self.capacity,
            longest_wait: self.longest_wait,
            lines: crate::line::of_keys::KeyLines::new(),
            waiting: Waiting::new(self.max_waiters),
            clock: self.clock,
        })
    }
}
