//! The settings of a stored-key limiter before it is built.

use tollgate_core::{LimitError, Rate};

use super::StoredKeyLimiter;
use super::algorithm_table::AlgorithmTable;
use super::table::{TableConfig, Timeline};
use super::table_algorithm::KeyTiers;
use crate::clock::{Clock, ClockChoice, DefaultClock, WithClock};
use crate::key_table::TableSettings;
use crate::key_table::hasher::KeyHasher;
use crate::striped_counters::Counters;
use crate::tier::{TierChooser, check_tier_algorithms};
use crate::wait_queue::key_queues::KeyQueues;
use crate::wait_queue::waiter_count::WaiterCount;
use crate::{Algorithm, Tier};

/// Builds a [`StoredKeyLimiter`]. [`StoredKeyLimiter::builder`] returns it.
///
/// ```
/// use tollgate::{Algorithm, WhenFull, StoredKeyLimiter, Rate};
///
/// let limiter = StoredKeyLimiter::builder(Rate::per_minute(60), 10_000)
///     .algorithm(Algorithm::SlidingCounter)
///     .at_cap(WhenFull::DenyNew)
///     .build()?;
/// assert!(limiter.allow("user:42"));
/// # Ok::<(), tollgate::LimitError>(())
/// ```
pub type Builder<K, C = DefaultClock> = WithClock<TableSettings<StoredKeySettings<K>>, C>;

/// Settings that only a table of stored keys has.
#[derive(Debug)]
pub struct StoredKeySettings<K> {
    pub(super) algorithm: Algorithm,
    key_tiers: KeyTiers<K>,
}

impl<K> Builder<K> {
    pub(super) fn new(rate: Rate, capacity: usize) -> Self {
        let table = StoredKeySettings {
            algorithm: Algorithm::default(),
            key_tiers: KeyTiers(None),
        };
        Self::from_settings(TableSettings::new(rate, capacity, table))
    }
}

impl<K, C> Builder<K, C> {
    /// The algorithm; [`Algorithm::Gcra`] by default.
    pub fn algorithm(mut self, algorithm: Algorithm) -> Self {
        self.settings.kind_settings.algorithm = algorithm;
        self
    }

    /// Sets a function that returns the index of a key's tier in `tiers`, or `None` for the limiter's own rate.
    ///
    /// It runs when a key is new (which clones the key even for a peek). It runs again when the key comes back after it
    /// was idle or at another rate, until the key passes. In between the key stays at its tier, so a check costs no
    /// more than without the function. The function runs under a lock and must not call the limiter.
    ///
    /// ```
    /// use tollgate::{Algorithm, StoredKeyLimiter, Rate, Tier, clock::Manual};
    ///
    /// let staff = Tier::new(Algorithm::Gcra, Rate::per_hour(100))?;
    /// let limiter = StoredKeyLimiter::builder(Rate::per_hour(1), 1_000)
    ///     .tier_of([staff], |[staff], user: &String| user.starts_with("staff:").then_some(staff))
    ///     .clock(Manual::new())
    ///     .build()?;
    /// assert!(limiter.allow("guest") && !limiter.allow("guest"));
    /// assert!(limiter.key("staff:7").allow_n(100));
    /// # Ok::<(), tollgate::LimitError>(())
    /// ```
    pub fn tier_of<S, F>(mut self, tiers: S, choose: F) -> Self
    where
        K: 'static,
        S: AsRef<[Tier]> + Send + Sync + 'static,
        F: for<'a> Fn(&'a S, &K) -> Option<&'a Tier> + Send + Sync + 'static,
    {
        self.settings.kind_settings.key_tiers =
            KeyTiers(Some(Box::new(TierChooser { tiers, choose })));
        self
    }
}

impl<K, C: ClockChoice> Builder<K, C> {
    /// Builds the limiter on the given clock, or on the default clock.
    ///
    /// # Errors
    /// If the algorithm can't represent the rate, or a tier has another algorithm.
    pub fn build(self) -> Result<StoredKeyLimiter<K, C::Clock>, LimitError> {
        let builder = self.resolve_clock();
        let timeline = Timeline::of(
            builder.settings.kind_settings.algorithm,
            builder.clock.now(),
        );
        builder.build_on(timeline)
    }
}

impl<K, C: Clock> Builder<K, C> {
    /// Builds the limiter with a table whose states have this timeline.
    pub(super) fn build_on(
        self,
        timeline: Option<Timeline>,
    ) -> Result<StoredKeyLimiter<K, C>, LimitError> {
        let Self { settings, clock } = self;
        if let Some(choice) = &settings.kind_settings.key_tiers.0 {
            check_tier_algorithms(&**choice, settings.kind_settings.algorithm)?;
        }
        let plan = TableConfig {
            capacity: settings.capacity,
            at_cap: settings.at_cap,
            rate_of: settings.kind_settings.key_tiers,
        };
        Ok(StoredKeyLimiter {
            tables: AlgorithmTable::new(
                settings.kind_settings.algorithm,
                settings.rate,
                plan,
                timeline,
            )?,
            algorithm: settings.kind_settings.algorithm,
            hasher: KeyHasher::random(),
            counters: Counters::new(),
            capacity: settings.capacity,
            longest_wait: settings.longest_wait,
            lines: KeyQueues::new(),
            waiting: WaiterCount::new(settings.max_waiters),
            clock,
        })
    }
}
