//! What can be chosen about a keyed concurrency limiter before it is built.

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

/// Fewest keys worth a shard of their own.
const KEYS_PER_SHARD: usize = 1_024;
/// Most shards: enough that threads rarely meet at one lock.
const MAX_SHARDS: usize = 256;
/// How many may wait on one key.
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

/// What is chosen of a keyed concurrency limiter before it is built, but for its clock.
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
    /// What happens to new keys at the cap: [`WhenFull::SharedBucket`] unless said otherwise, or
    /// [`WhenFull::DenyNew`].
    pub fn at_cap(mut self, at_cap: WhenFull) -> Self {
        self.settings.at_cap = at_cap;
        self
    }

    /// How many may wait at once, on all keys together. The default is 65,536.
    pub fn max_waiters(mut self, most: usize) -> Self {
        self.settings.max_waiters = most;
        self
    }

    /// How many may wait at once on one key, so that one can't fill the queue of all. The default
    /// is 1,024.
    pub fn max_waiters_per_key(mut self, most: usize) -> Self {
        self.settings.max_waiters_per_key = most;
        self
    }

    /// How long a wait may take if the call doesn't say: without end, unless this is given.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.settings.timeout = Some(timeout);
        self
    }
}

impl<K, C: ClockChoice> KeyedBuilder<K, C> {
    /// Builds it on the clock that was given, or the default one.
    ///
    /// # Errors
    /// If [`at_cap`](Self::at_cap) was given a choice that this limiter doesn't have.
    pub fn build(self) -> Result<KeyedConcurrencyLimiter<K, C::Clock>, LimitError> {
        match self.settings.at_cap {
            WhenFull::SharedBucket | WhenFull::DenyNew => Ok(self.build_unchecked()),
            // Whoever isn't counted has no permit to end, and a key in flight is never put aside.
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
