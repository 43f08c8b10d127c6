//! What can be chosen about a keyed concurrency limiter before it is built.

use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use tollgate_core::LimitError;

use super::KeyedConcurrency;
use super::shard::Shard;
use crate::AtCap;
use crate::clock::{ClockChoice, Clocked, DefaultClock};
use crate::concurrency::gate::Gate;
use crate::concurrency::home::PermitContext;
use crate::concurrency::stats::ConcurrencyCounters;
use crate::sharding::ShardLayout;
use crate::sync::{AtomicU64, Mutex, Padded};
use crate::table::hasher::KeyHasher;
use crate::wait_queue::waiting::Waiting;

/// Fewest keys worth a shard of their own.
const SHARD_KEYS: usize = 1_024;
/// Most shards: enough that threads rarely meet at one lock.
const MAX_SHARDS: usize = 256;
/// How many may wait on one key.
const DEFAULT_MAX_WAITERS_PER_KEY: usize = 1_024;

/// Builds a [`KeyedConcurrency`]; made by [`KeyedConcurrency::builder`].
///
/// ```
/// use std::time::Duration;
/// use tollgate::{AtCap, KeyedConcurrency};
///
/// // A bulkhead for each tenant.
/// let limiter = KeyedConcurrency::<String>::builder(5, 10_000)
///     .max_waiters_per_key(20)
///     .timeout(Duration::from_millis(100))
///     .at_cap(AtCap::DenyNew)
///     .build()?;
/// assert!(limiter.try_acquire("acme").is_ok());
/// # Ok::<(), tollgate::LimitError>(())
/// ```
pub type KeyedBuilder<K, C = DefaultClock> = Clocked<KeyedSettings<K>, C>;

/// What is chosen of a keyed concurrency limiter before it is built, but for its clock.
#[derive(Debug)]
pub struct KeyedSettings<K> {
    limit: u32,
    capacity: usize,
    at_cap: AtCap,
    max_waiters: usize,
    max_waiters_per_key: usize,
    timeout: Option<Duration>,
    keys: PhantomData<fn() -> K>,
}

impl<K> KeyedBuilder<K> {
    pub(super) fn new(limit: u32, capacity: usize) -> Self {
        Self::of(KeyedSettings {
            limit,
            capacity,
            at_cap: AtCap::default(),
            max_waiters: Waiting::DEFAULT_MAX,
            max_waiters_per_key: DEFAULT_MAX_WAITERS_PER_KEY,
            timeout: None,
            keys: PhantomData,
        })
    }
}

impl<K, C> KeyedBuilder<K, C> {
    /// What happens to new keys at the cap: [`AtCap::ShareOne`] unless said otherwise, or
    /// [`AtCap::DenyNew`].
    pub fn at_cap(mut self, at_cap: AtCap) -> Self {
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
    pub fn build(self) -> Result<KeyedConcurrency<K, C::Clock>, LimitError> {
        match self.settings.at_cap {
            AtCap::ShareOne | AtCap::DenyNew => Ok(self.finish()),
            // Whoever isn't counted has no permit to end, and a key in flight is never put aside.
            other => Err(other.refused_by("a KeyedConcurrency", "ShareOne or DenyNew")),
        }
    }

    pub(crate) fn finish(self) -> KeyedConcurrency<K, C::Clock> {
        let Clocked { settings, clock } = self.with_clock();
        let sizes = ShardLayout::for_threads(settings.capacity, SHARD_KEYS, MAX_SHARDS);
        let shard = || Padded(Mutex::new(Shard::new(sizes.room)));
        KeyedConcurrency {
            shards: (0..sizes.count).map(|_| shard()).collect(),
            sizes,
            hasher: KeyHasher::random(),
            limit: AtomicU64::new(u64::from(settings.limit)),
            at_cap: settings.at_cap,
            shared: Arc::new(Gate::new(settings.limit)),
            context: PermitContext {
                tally: ConcurrencyCounters::new(),
                observer: None,
                max_waiters: settings.max_waiters_per_key,
                timeout: settings.timeout,
                waiting_in_total: Some(Waiting::new(settings.max_waiters)),
                clock,
            },
        }
    }
}
