//! The keys of `CL.THROTTLE`, which brings its limit along: in memory, or in the store.

use std::collections::HashMap;
use std::fmt::Write;
use std::sync::{Arc, Mutex, PoisonError};

use tollgate::clock::Clock;
use tollgate::snapshot::{Loaded, SnapshotError, SnapshotReader, SnapshotWriter, Times};
use tollgate::{Algorithm, Decision, KeyedLimiter, LimitError, Rate, Tier};
use tollgate_engine::backend::TableStats;
use tollgate_engine::policy::OnStoreFailure;
use tollgate_redis::{Redis, RedisLimiter};

/// Limits that are kept ready at the same time.
const LIMITS: usize = 1_024;

/// Where keys are kept that bring their limits along.
pub(crate) trait Cells: Send + Sync + 'static {
    /// A limit, ready to be asked.
    type Limit: Send + Sync;

    /// Gets a limit ready.
    fn limit(&self, rate: Rate) -> Result<Self::Limit, String>;

    /// Charges a key. It fails if nobody could be asked.
    fn charge(
        &self,
        limit: &Self::Limit,
        key: &[u8],
        cost: u64,
    ) -> impl Future<Output = Result<Decision, String>> + Send;

    /// The table of keys.
    fn table(&self) -> TableStats;
}

/// What the table is called in metrics.
const TABLE: &str = "throttle";

/// Keys in this process.
pub(crate) struct Here<C: Clock>(KeyedLimiter<C>);

impl<C: Clock> Here<C> {
    /// So many keys at most; those beyond share one limit.
    pub(crate) fn new(keys: usize, clock: C) -> Result<Self, LimitError> {
        // Each call brings its own limit; this is nobody's.
        let builder = KeyedLimiter::builder(Rate::per_second(1), keys);
        Ok(Self(builder.clock(clock).build()?))
    }

    /// The same with the keys of a snapshot, as they are at these times; how many.
    pub(crate) fn load(
        keys: usize,
        clock: C,
        (file, times): (&mut SnapshotReader, Times),
    ) -> Result<(Self, Loaded), SnapshotError> {
        let builder = KeyedLimiter::builder(Rate::per_second(1), keys);
        let (limiter, loaded) = builder.clock(clock).load(file, times)?;
        Ok((Self(limiter), loaded))
    }

    /// Writes the keys that are active at these times, and says how many they are.
    pub(crate) fn save(
        &self,
        file: &mut SnapshotWriter,
        times: Times,
    ) -> Result<u64, SnapshotError> {
        self.0.save(file, times)
    }

    /// A number that grows with what keys spend.
    pub(crate) fn changes(&self) -> u64 {
        self.0.stats().allowed
    }
}

impl<C: Clock + 'static> Cells for Here<C> {
    type Limit = Tier;

    fn limit(&self, rate: Rate) -> Result<Tier, String> {
        Tier::new(Algorithm::Gcra, rate).map_err(|error| error.to_string())
    }

    async fn charge(&self, limit: &Tier, key: &[u8], cost: u64) -> Result<Decision, String> {
        let key = self.0.key(key).at(limit);
        Ok(key.map_err(|error| error.to_string())?.check_n(cost))
    }

    fn table(&self) -> TableStats {
        TableStats::of(TABLE, &self.0)
    }
}

/// Keys in the store.
pub(crate) struct There {
    redis: Redis,
    limits: Mutex<HashMap<Rate, Arc<RedisLimiter>>>,
    on_failure: OnStoreFailure,
}

impl There {
    pub(crate) fn new(redis: Redis, on_failure: OnStoreFailure) -> Self {
        let limits = Mutex::default();
        Self {
            redis,
            limits,
            on_failure,
        }
    }
}

impl Cells for There {
    type Limit = Arc<RedisLimiter>;

    fn limit(&self, rate: Rate) -> Result<Arc<RedisLimiter>, String> {
        let mut limits = self.limits.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(limit) = limits.get(&rate) {
            return Ok(Arc::clone(limit));
        }
        // One name for all: a key has one state, whatever limit it is asked by, as in redis-cell.
        let builder = self.redis.limiter("cl.throttle", rate);
        let limit = builder.on_store_failure(self.on_failure).build();
        let limit = Arc::new(limit.map_err(|error| error.to_string())?);
        if limits.len() >= LIMITS {
            limits.clear();
        }
        limits.insert(rate, Arc::clone(&limit));
        Ok(limit)
    }

    async fn charge(
        &self,
        limit: &Arc<RedisLimiter>,
        key: &[u8],
        cost: u64,
    ) -> Result<Decision, String> {
        let key = text_of(key);
        let verdict = limit.check_n(&key, cost).await;
        if verdict.fallback == Some(OnStoreFailure::Closed) {
            return Err("the store can't be asked, and nothing passes without it".to_owned());
        }
        Ok(verdict.decision)
    }

    /// Keys are in the store, and none is here.
    fn table(&self) -> TableStats {
        TableStats::empty(TABLE)
    }
}

/// A key as text: any bytes, and no two alike.
fn text_of(key: &[u8]) -> String {
    match std::str::from_utf8(key) {
        Ok(text) if !text.starts_with('\0') => text.to_owned(),
        _ => key.iter().fold("\0".to_owned(), |mut text, byte| {
            // Text never fails to be written to a string.
            let _ = write!(text, "{byte:02x}");
            text
        }),
    }
}
