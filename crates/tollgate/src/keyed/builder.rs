//! The settings of a keyed limiter before it is built.

use std::sync::Arc;
use std::time::Duration;

use tollgate_core::{Arithmetic, Gcra, LimitError, Rate, Timestamp, units};

use super::rate_cell::{IntervalTable, RateCell};
use super::table::Table;
use super::{KeyedLimiter, SingleRate, TierByKey};
use crate::Tier;
use crate::clock::{Clock, ClockChoice, DefaultClock, WithClock};
use crate::key_table::TableSettings;
use crate::key_table::hasher::KeyHasher;
use crate::striped_counters::Counters;
use crate::sync::AtomicU64;
use crate::tier::{ChooseTier, TierChooser, check_tier_algorithms};
use crate::wait_queue::key_queues::KeyQueues;
use crate::wait_queue::waiter_count::WaiterCount;

/// Builds a [`KeyedLimiter`]. [`KeyedLimiter::builder`] returns it.
///
/// ```
/// use tollgate::{WhenFull, KeyedLimiter, Rate};
///
/// let limiter = KeyedLimiter::builder(Rate::per_minute(60), 1_000_000)
///     .at_cap(WhenFull::DenyNew)
///     .build()?;
/// assert!(limiter.allow("user:42"));
/// # Ok::<(), tollgate::LimitError>(())
/// ```
pub type Builder<C = DefaultClock, T = SingleRate> =
    WithClock<TableSettings<FingerprintSettings<T>>, C>;

/// Settings that only a table of fingerprints has.
#[derive(Debug)]
pub struct FingerprintSettings<T = SingleRate> {
    hasher: KeyHasher,
    tier_of: T,
    /// The error of a tier that isn't for this limiter.
    tier_error: Option<LimitError>,
}

impl Builder {
    pub(super) fn new(rate: Rate, capacity: usize) -> Self {
        let table = FingerprintSettings {
            hasher: KeyHasher::random(),
            tier_of: SingleRate::new(),
            tier_error: None,
        };
        Self::from_settings(TableSettings::new(rate, capacity, table))
    }
}

impl<C, T> Builder<C, T> {
    /// Sets a function that returns the index of a key's tier in `tiers`, or `None` for the limiter's own rate.
    ///
    /// All keys have one type then. Every call runs the function, so it should be fast.
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
    pub fn tier_of<K, S, F>(self, tiers: S, choose: F) -> Builder<C, TierByKey<K>>
    where
        K: ?Sized + 'static,
        S: AsRef<[Tier]> + Send + Sync + 'static,
        F: for<'a> Fn(&'a S, &K) -> Option<&'a Tier> + Send + Sync + 'static,
    {
        let choice: Box<dyn ChooseTier<K>> = Box::new(TierChooser { tiers, choose });
        let settings = self.settings.map_table(|table| FingerprintSettings {
            hasher: table.hasher,
            tier_error: check_tier_algorithms(&*choice, crate::Algorithm::Gcra).err(),
            tier_of: TierByKey(choice),
        });
        WithClock {
            settings,
            clock: self.clock,
        }
    }

    /// Sets the seed of the hash.
    pub(super) fn with_seed(mut self, seed: u64) -> Self {
        self.settings.kind_settings.hasher = KeyHasher::with_seed(seed);
        self
    }
}

impl<C: ClockChoice, T> Builder<C, T> {
    /// Builds the limiter on the given clock, or on the default clock.
    ///
    /// # Errors
    /// If GCRA can't represent the rate, or a tier's algorithm isn't GCRA.
    pub fn build(self) -> Result<KeyedLimiter<C::Clock, T>, LimitError> {
        let builder = self.resolve_clock();
        let table = builder.table(builder.clock.now());
        builder.build_on(table)
    }
}

impl<C: Clock, T> Builder<C, T> {
    /// An empty table on a clock that shows this time.
    pub(super) fn table(&self, now: Timestamp) -> Table {
        Table::new(self.settings.capacity, now, Arc::new(IntervalTable::new()))
    }

    /// Builds the limiter on a table whose intervals may already have tags.
    pub(super) fn build_on(self, table: Table) -> Result<KeyedLimiter<C, T>, LimitError> {
        let Self { settings, clock } = self;
        let limit = Gcra::new(settings.rate)?;
        settings.kind_settings.tier_error.map_or(Ok(()), Err)?;
        // At most a year, so that no wait comes near the last time of a word.
        let longest_wait = settings.longest_wait.min(Duration::from_secs(31_536_000));
        Ok(KeyedLimiter {
            pace: RateCell::new(limit, table.intervals()),
            table,
            hasher: settings.kind_settings.hasher,
            counters: Counters::new(),
            at_cap: settings.at_cap,
            overflowed: AtomicU64::new(0),
            capacity: settings.capacity,
            longest_wait: units::from_time(Timestamp::ZERO + longest_wait),
            lines: KeyQueues::new(),
            waiting: WaiterCount::new(settings.max_waiters),
            clock,
            tier_of: settings.kind_settings.tier_of,
        })
    }
}
