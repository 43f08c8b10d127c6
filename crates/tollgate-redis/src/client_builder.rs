//! The builder of a client, with all its settings.

use std::sync::Arc;
use std::time::Duration;

use derive_more::Debug;
use tollgate::Clock;

use crate::address::Address;
use crate::fallback::{BreakerThresholds, EventListener, StoreEvent};
use crate::host::CallerClock;
use crate::lease::LeaseTerms;

/// Long enough for a healthy store in the same data centre on a busy machine: with twice as many threads as
/// cores it may wait some 10 milliseconds to be scheduled, and a query may wait for two others. Short enough
/// that a request is hardly delayed while the store is unreachable.
const DEFAULT_TIMEOUT: Duration = Duration::from_millis(25);

/// Builds a [`Redis`](crate::Redis). [`Redis::builder`](crate::Redis::builder) makes it.
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
    /// Prefix of all keys in the store.
    pub(crate) prefix: String,
    /// How many denials are remembered; 0 for none.
    pub(crate) max_remembered_denials: usize,
    pub(crate) terms: LeaseTerms,
    pub(crate) slot_life: Duration,
    /// Replaces the store's clock.
    pub(crate) time: Option<CallerClock>,
    /// `None`: learned from the registry of nodes.
    pub(crate) nodes: Option<u64>,
    pub(crate) breaker: BreakerThresholds,
    pub(crate) on_event: Option<Box<EventListener>>,
    #[cfg(feature = "simulation")]
    pub(crate) world: Option<Arc<dyn crate::simulation::World>>,
}

impl RedisBuilder {
    /// The defaults.
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

    /// How long a decision waits for the store; 25 ms by default. Time in which this process couldn't run isn't
    /// counted.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Prefix of all keys in the store; `tollgate` by default.
    pub fn key_prefix(mut self, prefix: &str) -> Self {
        self.prefix = prefix.to_owned();
        self
    }

    /// How many denials are remembered and repeated without a query; 10,000 by default, 0 for none. A denial is
    /// repeated for at most a second, then one request queries the store again. So a reset or a refund by
    /// another node takes effect within a second. While the store is unreachable, a remembered denial that
    /// hasn't expired decides.
    pub fn deny_cache(mut self, refusals: usize) -> Self {
        self.max_remembered_denials = refusals;
        self
    }

    /// For how long a node leases tokens; a second by default. If its process dies, the tokens that it held are
    /// free again after this time.
    pub fn lease_duration(mut self, life: Duration) -> Self {
        self.terms.duration = life.max(Duration::from_millis(10));
        self
    }

    /// The most that a node holds of a leased limit is the burst divided by this; 10 by default.
    pub fn lease_divisor(mut self, one_of: u64) -> Self {
        self.terms.burst_divisor = one_of.max(1);
        self
    }

    /// How many keys may have a lease in this process; 100,000 by default. Other keys query the store for each
    /// request.
    pub fn max_leased_keys(mut self, most: usize) -> Self {
        self.terms.max_keys = most;
        self
    }

    /// How long a permit is held without a renewal; a minute by default. A holder renews it three times in that
    /// duration. A dead holder's permit is free after it.
    pub fn permit_ttl(mut self, life: Duration) -> Self {
        self.slot_life = life.max(Duration::from_millis(30));
        self
    }

    /// How many nodes the fleet has, this one included. While the store is unreachable, a node enforces twice
    /// its even share of each limit that is decided locally: the limit × 2 ÷ nodes, at most the limit.
    ///
    /// By default it is learned: each node renews an entry in the store every five seconds, and reads how many
    /// there are. [`Redis::set_node_count`](crate::Redis::set_node_count) changes it later.
    pub fn node_count(mut self, nodes: u64) -> Self {
        self.nodes = Some(nodes);
        self
    }

    /// When limits that circuit-break stop querying the store, and for how long.
    pub fn breaker(mut self, breaker: BreakerThresholds) -> Self {
        self.breaker = breaker;
        self
    }

    /// Calls this for each event of the store. Events are logged in any case.
    pub fn on_event(mut self, tell: impl Fn(&StoreEvent<'_>) + Send + Sync + 'static) -> Self {
        self.on_event = Some(Box::new(tell));
        self
    }

    /// Decides by this clock instead of the store's: for tests and replays. Its times count from 1970.
    pub fn clock(mut self, clock: impl Clock + 'static) -> Self {
        self.time = Some(Arc::new(clock));
        self
    }

    /// Runs in a world that a test simulates, whatever the URL is.
    #[cfg(feature = "simulation")]
    pub fn simulated(mut self, world: Arc<dyn crate::simulation::World>) -> Self {
        self.world = Some(world);
        self
    }
}
