//! What can be chosen of a client, and how it is made.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tollgate::clock::Clock;
use tollgate_engine::backend::Memory;

use super::{ConnectError, Home, Redis};
use crate::address::Address;
use crate::direct::Direct;
use crate::fallback::{Breaker, StoreEvent};
use crate::host::Host;
use crate::local::Local;
use crate::nodes::Nodes;
use crate::options::Options;

/// Builds a [`Redis`]; made by [`Redis::builder`].
///
/// ```
/// use std::time::Duration;
/// use tollgate_redis::{Breaker, Redis};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
///
/// let redis = Redis::builder("redis+cluster://10.0.0.1,10.0.0.2")?
///     .timeout(Duration::from_millis(200)) // another region
///     .nodes(12)
///     .breaker(Breaker { of_calls: 50, ..Breaker::default() })
///     .on_event(|event| eprintln!("{event:?}"))
///     .build()?; // It connects in the background.
/// assert!(!redis.fallback_active());
/// # Ok(())
/// # }
/// ```
#[must_use = "a builder does nothing until it is built"]
pub struct RedisBuilder {
    pub(super) options: Options,
    #[cfg(feature = "simulation")]
    world: Option<Arc<dyn crate::simulation::World>>,
}

impl RedisBuilder {
    pub(crate) fn new(address: Address) -> Self {
        Self {
            options: Options::new(address),
            #[cfg(feature = "simulation")]
            world: None,
        }
    }

    /// How long a decision waits for the store: 25 ms unless said otherwise. Time in which this process
    /// couldn't run isn't counted.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.options.timeout = timeout;
        self
    }

    /// What all keys begin with: `tollgate` unless said otherwise.
    pub fn prefix(mut self, prefix: &str) -> Self {
        self.options.prefix = prefix.to_owned();
        self
    }

    /// How many denials are remembered and repeated without asking: 10,000 unless said otherwise, and 0 for none. Each is
    /// repeated for a second at most before one request asks the store again, so a reset or a refund by another node is seen
    /// within a second. While the store can't be asked, a denial that is known to hold decides.
    pub fn near_cache(mut self, refusals: usize) -> Self {
        self.options.near = refusals;
        self
    }

    /// For how long a node takes tokens of leased limits: a second unless said otherwise. What a node holds
    /// when its process dies is free again after that.
    pub fn lease_life(mut self, life: Duration) -> Self {
        self.options.terms.life = life.max(Duration::from_millis(10));
        self
    }

    /// The most that a node holds of a leased limit is this part of its burst: one of 10 unless said
    /// otherwise.
    pub fn lease_part(mut self, one_of: u64) -> Self {
        self.options.terms.part = one_of.max(1);
        self
    }

    /// How many keys may have a lease here: 100,000 unless said otherwise. Others ask each time.
    pub fn leased_keys(mut self, most: usize) -> Self {
        self.options.terms.most_keys = most;
        self
    }

    /// For how long a slot is held without a sign of life: a minute unless said otherwise. It is renewed
    /// three times in that; a dead holder's slot is free after it.
    pub fn slot_life(mut self, life: Duration) -> Self {
        self.options.slot_life = life.max(Duration::from_millis(30));
        self
    }

    /// How many nodes the fleet has, this one included. While the store can't be asked, a limit that is
    /// judged locally is divided by it, times two.
    ///
    /// Unless it is given, it is learned: each node leaves a sign of life in the store every five seconds, and is
    /// told how many there are. [`Redis::set_nodes`] changes it later.
    pub fn nodes(mut self, nodes: u64) -> Self {
        self.options.nodes = Some(nodes);
        self
    }

    /// When limits that circuit-break stop asking, and for how long.
    pub fn breaker(mut self, breaker: Breaker) -> Self {
        self.options.breaker = breaker;
        self
    }

    /// Tells this what happens to the store. It is logged in any case.
    pub fn on_event(mut self, tell: impl Fn(&StoreEvent<'_>) + Send + Sync + 'static) -> Self {
        self.options.on_event = Some(Box::new(tell));
        self
    }

    /// Decides by this clock instead of the store's: for tests and replays. Times are since 1970.
    pub fn clock(mut self, clock: impl Clock + 'static) -> Self {
        self.options.time = Some(Arc::new(move || clock.now()));
        self
    }

    /// Lives in a world that a test owns, whatever the URL says.
    #[cfg(feature = "simulation")]
    pub fn simulated(mut self, world: Arc<dyn crate::simulation::World>) -> Self {
        self.world = Some(world);
        self
    }

    /// Builds it, and connects in the background.
    ///
    /// # Errors
    /// If a certificate can't be read, or there is no Tokio runtime.
    pub fn build(mut self) -> Result<Redis, ConnectError> {
        let host = Host::system().map_err(|_| ConnectError::NoRuntime)?;
        #[cfg(feature = "simulation")]
        let host = match self.world.take() {
            Some(world) => host.simulated(world),
            None => host,
        };
        let local = Memory::builder().clock(host.clock()).wall(host.wall());
        let local = Arc::new(Local::new(local.build()));
        let direct = Direct::new(&self.options, Arc::clone(&local), host);
        let direct = direct.map_err(ConnectError::Store)?;
        let (prefix, known) = (&direct.naming.prefix, self.options.nodes);
        let nodes = Nodes::new(
            &direct.store,
            Arc::clone(&local),
            prefix,
            known,
            &direct.host,
        );
        let fallback = self.options.put_fallback_before(direct, local);
        Ok(Redis {
            home: Home::Store(Arc::new(fallback)),
            nodes: Some(nodes),
        })
    }
}

impl fmt::Debug for RedisBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisBuilder")
            .field("address", &self.options.address)
            .field("timeout", &self.options.timeout)
            .finish_non_exhaustive()
    }
}
