//! The keys of `CL.THROTTLE`, which brings its limit along: in memory, or in the store.
//!
//! A key has one theoretical arrival time (TAT), whatever limit a command brings, as in redis-cell. In memory it is a
//! GCRA whose tokens are nanoseconds: a request costs the time that its tokens take, and the burst is the tolerance. In
//! a store a script of its own keeps it.

use std::collections::HashMap;
use std::fmt::Write;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tollgate::clock::Clock;
use tollgate::snapshot::{
    LoadCounts, SnapshotError, SnapshotReader, SnapshotTimes, SnapshotWriter,
};
use tollgate::{Algorithm, KeyedLimiter, LimitError, Rate, Tier};
use tollgate_engine::backend::TableStats;
use tollgate_engine::policy::OnStoreFailure;
use tollgate_redis::{Redis, RedisLimiter, StoreError, StoreLimitError};

use crate::cl_throttle::{ThrottleLimit, ThrottleOutcome};

/// How many prepared limits are cached.
const CACHED_LIMITS: usize = 1_024;

/// A table of keys whose limits come along with each command.
pub(crate) trait ThrottleKeys: Send + Sync + 'static {
    /// A prepared limit.
    type Limit: Send + Sync;

    /// Prepares a limit for charges.
    fn prepare_limit(&self, limit: ThrottleLimit) -> Result<Self::Limit, String>;

    /// Charges a key. The error says why the store can't be reached.
    fn charge(
        &self,
        limit: &Self::Limit,
        key: &[u8],
        quantity: u64,
    ) -> impl Future<Output = Result<ThrottleOutcome, String>> + Send;

    /// The time until a key is like a new one.
    fn debt_of(&self, key: &[u8]) -> impl Future<Output = Result<Duration, String>> + Send;

    /// Resets a key. Returns whether it had spent anything.
    fn reset_key(&self, key: &[u8]) -> impl Future<Output = Result<bool, String>> + Send;

    /// The number of keys that have spent something, if it is known here.
    fn active_keys(&self) -> Option<usize>;

    /// The statistics of the table.
    fn table_stats(&self) -> TableStats;
}

/// The name of the table in metrics.
const TABLE_NAME: &str = "throttle";

/// The keys in this process.
pub(crate) struct LocalThrottleKeys<C: Clock>(KeyedLimiter<C>);

/// A prepared limit of keys in this process.
#[derive(Debug)]
pub(crate) struct LocalThrottleLimit {
    limit: ThrottleLimit,
    tier: Tier,
}

/// A rate whose tokens are nanoseconds.
fn nanosecond_rate(burst: u64) -> Rate {
    Rate::new(1, Duration::from_nanos(1)).burst(burst)
}

impl<C: Clock> LocalThrottleKeys<C> {
    /// A table of at most this many keys; further keys share one limit.
    pub(crate) fn new(keys: usize, clock: C) -> Result<Self, LimitError> {
        // Each command brings its own tolerance, so the builder's rate is never used.
        let builder = KeyedLimiter::builder(nanosecond_rate(1), keys);
        Ok(Self(builder.clock(clock).build()?))
    }

    /// Restores the keys of a snapshot, as of these times. Returns how many.
    pub(crate) fn load(
        keys: usize,
        clock: C,
        file: &mut SnapshotReader,
        times: SnapshotTimes,
    ) -> Result<(Self, LoadCounts), SnapshotError> {
        let builder = KeyedLimiter::builder(nanosecond_rate(1), keys);
        let (limiter, loaded) = builder.clock(clock).load(file, times)?;
        Ok((Self(limiter), loaded))
    }

    /// Saves the keys that are active at these times. Returns how many.
    pub(crate) fn save(
        &self,
        file: &mut SnapshotWriter,
        times: SnapshotTimes,
    ) -> Result<u64, SnapshotError> {
        self.0.save(file, times)
    }

    /// A number that grows with every charge.
    pub(crate) fn allowed_count(&self) -> u64 {
        self.0.stats().allowed
    }
}

impl<C: Clock + 'static> ThrottleKeys for LocalThrottleKeys<C> {
    type Limit = LocalThrottleLimit;

    fn prepare_limit(&self, limit: ThrottleLimit) -> Result<LocalThrottleLimit, String> {
        let tier = Tier::new(Algorithm::Gcra, nanosecond_rate(limit.tolerance));
        Ok(LocalThrottleLimit {
            limit,
            tier: tier.map_err(|error| error.to_string())?,
        })
    }

    async fn charge(
        &self,
        limit: &LocalThrottleLimit,
        key: &[u8],
        quantity: u64,
    ) -> Result<ThrottleOutcome, String> {
        let key = self.0.key(key).at(&limit.tier);
        let key = key.map_err(|error| error.to_string())?;
        let decision = key.check_n(limit.limit.time(quantity));
        Ok(ThrottleOutcome {
            is_allowed: decision.is_allowed(),
            debt: decision.reset_after,
            wait: None,
        })
    }

    async fn debt_of(&self, key: &[u8]) -> Result<Duration, String> {
        Ok(self.0.key(key).peek().reset_after)
    }

    async fn reset_key(&self, key: &[u8]) -> Result<bool, String> {
        let key = self.0.key(key);
        let owed = key.peek().reset_after;
        key.reset();
        Ok(owed > Duration::ZERO)
    }

    fn active_keys(&self) -> Option<usize> {
        Some(self.0.len())
    }

    fn table_stats(&self) -> TableStats {
        TableStats::of(TABLE_NAME, &self.0)
    }
}

/// The keys in the store.
pub(crate) struct StoreThrottleKeys {
    /// A limiter with any rate, for operations that don't depend on the rate; the others share its keys.
    base_limiter: RedisLimiter,
    limits: Mutex<HashMap<ThrottleLimit, Arc<RedisLimiter>>>,
}

impl StoreThrottleKeys {
    pub(crate) fn new(redis: &Redis, on_failure: OnStoreFailure) -> Result<Self, StoreLimitError> {
        let any = redis.limiter("cl.throttle", Rate::per_second(1));
        let any = any.carry_over_time().on_store_failure(on_failure);
        Ok(Self {
            base_limiter: any.build()?,
            limits: Mutex::default(),
        })
    }
}

/// The error of an unreachable store.
fn store_unreachable(error: &StoreError) -> String {
    format!("the store can't be asked: {error}")
}

impl ThrottleKeys for StoreThrottleKeys {
    type Limit = Arc<RedisLimiter>;

    fn prepare_limit(&self, limit: ThrottleLimit) -> Result<Arc<RedisLimiter>, String> {
        let mut limits = self.limits.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(ready) = limits.get(&limit) {
            return Ok(Arc::clone(ready));
        }
        let ready = self.base_limiter.with_rate(limit.rate());
        let ready = Arc::new(ready.map_err(|error| error.to_string())?);
        if limits.len() >= CACHED_LIMITS {
            limits.clear();
        }
        limits.insert(limit, Arc::clone(&ready));
        Ok(ready)
    }

    async fn charge(
        &self,
        limit: &Arc<RedisLimiter>,
        key: &[u8],
        quantity: u64,
    ) -> Result<ThrottleOutcome, String> {
        let key = text_of_key(key);
        let verdict = limit.check_n(&key, quantity).await;
        if verdict.fallback == Some(OnStoreFailure::Closed) {
            return Err("the store can't be asked, and nothing passes without it".to_owned());
        }
        let decision = verdict.decision;
        Ok(ThrottleOutcome {
            is_allowed: decision.is_allowed(),
            debt: decision.reset_after,
            wait: verdict.fallback.map(|_| decision.wait_or_max()),
        })
    }

    async fn debt_of(&self, key: &[u8]) -> Result<Duration, String> {
        let left = self.base_limiter.peek(&text_of_key(key)).await;
        Ok(left.map_err(|error| store_unreachable(&error))?.reset_after)
    }

    async fn reset_key(&self, key: &[u8]) -> Result<bool, String> {
        let owed = self.debt_of(key).await?;
        let reset = self.base_limiter.reset(&text_of_key(key)).await;
        reset.map_err(|error| store_unreachable(&error))?;
        Ok(owed > Duration::ZERO)
    }

    /// The keys are in the store, and aren't counted.
    fn active_keys(&self) -> Option<usize> {
        None
    }

    /// The keys are in the store, and none are here.
    fn table_stats(&self) -> TableStats {
        TableStats::empty(TABLE_NAME)
    }
}

/// A key as text: any bytes are valid, and different keys have different texts.
fn text_of_key(key: &[u8]) -> String {
    match std::str::from_utf8(key) {
        Ok(text) if !text.starts_with('\0') => text.to_owned(),
        _ => key.iter().fold("\0".to_owned(), |mut text, byte| {
            // Writing to a string can't fail.
            let _ = write!(text, "{byte:02x}");
            text
        }),
    }
}
