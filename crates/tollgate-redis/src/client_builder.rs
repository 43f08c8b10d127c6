//! What is chosen of a client: all that its parts are made by.

use std::sync::Arc;
use std::time::Duration;

use derive_more::Debug;
use tollgate::Clock;

use crate::address::Address;
use crate::fallback::{BreakerThresholds, EventListener, StoreEvent};
use crate::host::CallerClock;
use crate::lease::LeaseTerms;

/// Long enough for a healthy store in the same data centre whose machine is busy: with twice as many threads
/// as cores it may wait for its turn for some 10 milliseconds, and a call may wait for two others. Short enough
/// that a request whose store is away is hardly late.
const DEFAULT_TIMEOUT: Duration = Duration::from_millis(25);

/// Builds a [`Redis`](crate::Redis); made by [`Redis::builder`](crate::Redis::builder).
///
/// ```
/// use std::time::Duration;
/// use tollgate_redis::{BreakerThresholds, Redis};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
///
/// let redis = Redis::builder("redis+cluster://10.0.0.1,10.0.0.2")?
///     .timeout(Duration::from_millis(200)) // another region
///     .node_count(12)
///     .breaker(BreakerThresholds { min_calls: 50, ..BreakerThresholds::default() })
///     .on_event(|event| eprintln!("{event:?}"))
///     .build()?; // It connects in the background.
/// assert!(!redis.is_fallback_active());
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[debug("RedisBuilder({address:?}, {timeout:?})")]
#[must_use = "a builder does nothing until it is built"]
pub struct RedisBuilder {
    pub(crate) address: Address,
    pub(crate) timeout: Duration,
    /// What all keys begin with.
    pub(crate) prefix: String,
    /// How many refusals are remembered.
    pub(crate) max_remembered_denials: usize,
    pub(crate) terms: LeaseTerms,
    pub(crate) slot_life: Duration,
    /// Instead of the store's clock.
    pub(crate) time: Option<CallerClock>,
    /// Unless it is to be learned.
    pub(crate) nodes: Option<u64>,
    pub(crate) breaker: BreakerThresholds,
    pub(crate) on_event: Option<Box<EventListener>>,
    #[cfg(feature = "simulation")]
    pub(crate) world: Option<Arc<dyn crate::simulation::World>>,
}

impl RedisBuilder {
    /// What is usual.
    pub(crate) fn new(address: Address) -> Self {
        Self {
            address,
            timeout: DEFAULT_TIMEOUT,
            prefix: "tollgate".to_owned(),
            max_remembered_denials: 10_000,
            terms: LeaseTerms {
                duration: Duration::from_secs(1),
                burst_divisor: 10,
                max_keys: 100_000,
            },
            slot_life: Duration::from_secs(60),
            time: None,
            nodes: None,
            breaker: BreakerThresholds::default(),
            on_event: None,
            #[cfg(feature = "simulation")]
            world: None,
        }
    }

    /// How long a decision waits for the store: 25 ms unless said otherwise. Time in which this process
    /// couldn't run isn't counted.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// What all keys begin with: `tollgate` unless said otherwise.
    pub fn key_prefix(mut self, prefix: &str) -> Self {
        self.prefix = prefix.to_owned();
        self
    }

    /// How many denials are remembered and repeated without asking: 10,000 unless said otherwise, and 0 for none. Each is
    /// repeated for a second at most before one request asks the store again, so a reset or a refund by another node is seen
    /// within a second. While the store can't be asked, a denial that is known to hold decides.
    pub fn deny_cache(mut self, refusals: usize) -> Self {
        self.max_remembered_denials = refusals;
        self
    }

    /// For how long a node takes tokens of leased limits: a second unless said otherwise. What a node holds
    /// when its process dies is free again after that.
    pub fn lease_duration(mut self, life: Duration) -> Self {
        self.terms.duration = life.max(Duration::from_millis(10));
        self
    }

    /// The most that a node holds of a leased limit is this part of its burst: one of 10 unless said
    /// otherwise.
    pub fn lease_divisor(mut self, one_of: u64) -> Self {
        self.terms.burst_divisor = one_of.max(1);
        self
    }

    /// How many keys may have a lease here: 100,000 unless said otherwise. Others ask each time.
    pub fn max_leased_keys(mut self, most: usize) -> Self {
        self.terms.max_keys = most;
        self
    }

    /// For how long a slot is held without a sign of life: a minute unless said otherwise. It is renewed
    /// three times in that; a dead holder's slot is free after it.
    pub fn permit_ttl(mut self, life: Duration) -> Self {
        self.slot_life = life.max(Duration::from_millis(30));
        self
    }

    /// How many nodes the fleet has, this one included. While the store can't be asked, a limit that is
    /// judged locally is divided by it, times two.
    ///
    /// Unless it is given, it is learned: each node leaves a sign of life in the store every five seconds, and is
    /// told how many there are. [`Redis::set_node_count`](crate::Redis::set_node_count) changes it later.
    pub fn node_count(mut self, nodes: u64) -> Self {
        self.nodes = Some(nodes);
        self
    }

    /// When limits that circuit-break stop asking, and for how long.
    pub fn breaker(mut self, breaker: BreakerThresholds) -> Self {
        self.breaker = breaker;
        self
    }

    /// Tells this what happens to the store. It is logged in any case.
    pub fn on_event(mut self, tell: impl Fn(&StoreEvent<'_>) + Send + Sync + 'static) -> Self {
        self.on_event = Some(Box::new(tell));
        self
    }

    /// Decides by this clock instead of the store's: for tests and replays. Times are since 1970.
    pub fn clock(mut self, clock: impl Clock + 'static) -> Self {
        self.time = Some(Arc::new(clock));
        self
    }

    /// Lives in a world that a test owns, whatever the URL says.
    #[cfg(feature = "simulation")]
    pub fn simulated(mut self, world: Arc<dyn crate::simulation::World>) -> Self {
        self.world = Some(world);
        self
    }
}
