//! The settings of a keyed concurrency limiter before it is built.

use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use tollgate_core::LimitError;

use super::KeyedConcurrencyLimiter;
use super::shard::Shard;
use crate::WhenFull;
use crate::clock::{ClockChoice, DefaultClock, WithClock};
use crate::concurrency::gate::Gate;
use crate::concurrency::permit_source::PermitSettings;
use crate::concurrency::stats::ConcurrencyCounters;
use crate::key_table::hasher::KeyHasher;
use crate::sharding::ShardLayout;
use crate::sync::{AtomicU64, Mutex, Padded};
use crate::wait_queue::waiter_count::WaiterCount;

/// The fewest keys that are worth a shard of their own.
const KEYS_PER_SHARD: usize = 1_024;
/// The most shards: enough that threads rarely contend for one lock.
const MAX_SHARDS: usize = 256;
/// The default bound on waiters of one key.
const DEFAULT_MAX_WAITERS_PER_KEY: usize = 1_024;

/// Builds a [`KeyedConcurrencyLimiter`]; made by [`KeyedConcurrencyLimiter::builder`].
///
/// ```
/// use std::time::Duration;
/// use tollgate::{WhenFull, KeyedConcurrencyLimiter};
///
/// // A bulkhead for each tenant.
/// let limiter = KeyedConcurrencyLimiter::<String>::builder(5, 10_000)
///     .max_waiters_per_key(20)
///     .timeout(Duration::from_millis(100))
///     .at_cap(WhenFull::DenyNew)
///     .build()?;
/// assert!(limiter.try_acquire("acme").is_ok());
/// # Ok::<(), tollgate::LimitError>(())
/// ```
pub type KeyedBuilder<K, C = DefaultClock> = WithClock<KeyedSettings<K>, C>;

/// The settings of a keyed concurrency limiter, except its clock.
#[derive(Debug)]
pub struct KeyedSettings<K> {
    limit: u32,
    capacity: usize,
    at_cap: WhenFull,
    max_waiters: usize,
    max_waiters_per_key: usize,
    timeout: Option<Duration>,
    keys: PhantomData<fn() -> K>,
}

impl<K> KeyedBuilder<K> {
    pub(super) fn new(limit: u32, capacity: usize) -> Self {
        Self::from_settings(KeyedSettings {
            limit,
            capacity,
            at_cap: WhenFull::default(),
            max_waiters: WaiterCount::DEFAULT_MAX,
            max_waiters_per_key: DEFAULT_MAX_WAITERS_PER_KEY,
            timeout: None,
            keys: PhantomData,
        })
    }
}

impl<K, C> KeyedBuilder<K, C> {
    /// What happens to new keys when the table is full: [`WhenFull::SharedBucket`] by default, or
    /// [`WhenFull::DenyNew`].
    pub fn at_cap(mut self, at_cap: WhenFull) -> Self {
        self.settings.at_cap = at_cap;
        self
    }

    /// The most waiters on all keys together. The default is 65,536.
    pub fn max_waiters(mut self, most: usize) -> Self {
        self.settings.max_waiters = most;
        self
    }

    /// The most waiters on one key, so that a single key can't fill the whole queue. The default is
    /// 1,024.
    pub fn max_waiters_per_key(mut self, most: usize) -> Self {
        self.settings.max_waiters_per_key = most;
        self
    }

    /// The timeout of calls that set none. Without it, such calls wait without a bound.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.settings.timeout = Some(timeout);
        self
    }
}

impl<K, C: ClockChoice> KeyedBuilder<K, C> {
    /// Builds it on the chosen clock, or on the default one.
    ///
    /// # Errors
    /// If [`at_cap`](Self::at_cap) got a choice that this limiter doesn't support.
    pub fn build(self) -> Result<KeyedConcurrencyLimiter<K, C::Clock>, LimitError> {
        match self.settings.at_cap {
            WhenFull::SharedBucket | WhenFull::DenyNew => Ok(self.build_unchecked()),
            // An uncounted request would have no permit to end, and a key in flight can't be evicted.
            other => {
                Err(other.unsupported_by("a KeyedConcurrencyLimiter", "SharedBucket or DenyNew"))
            }
        }
    }

    pub(crate) fn build_unchecked(self) -> KeyedConcurrencyLimiter<K, C::Clock> {
        let WithClock { settings, clock } = self.resolve_clock();
        let sizes = ShardLayout::for_threads(settings.capacity, KEYS_PER_SHARD, MAX_SHARDS);
        let shard = || Padded(Mutex::new(Shard::new(sizes.capacity_per_shard)));
        KeyedConcurrencyLimiter {
            shards: (0..sizes.count).map(|_| shard()).collect(),
            shard_layout: sizes,
            hasher: KeyHasher::random(),
            limit: AtomicU64::new(u64::from(settings.limit)),
            at_cap: settings.at_cap,
            overflow_gate: Arc::new(Gate::new(settings.limit)),
            context: PermitSettings {
                counters: ConcurrencyCounters::new(),
                observer: None,
                max_waiters: settings.max_waiters_per_key,
                timeout: settings.timeout,
                total_waiters: Some(WaiterCount::new(settings.max_waiters)),
                clock,
            },
        }
    }
}
