//! `Redis`: the store that limits of a fleet are kept in, with an answer for when it can't be asked.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tollgate::Timestamp;
use tollgate::clock::Manual;
use tollgate_engine::backend::{
    Answer, Backend, Check, CheckResult, Clocks, Limit, Memory, Refund, RefundResult, TableStats,
};

use crate::address::{Address, AddressError};
use crate::client_backend::ClientBackend;
use crate::client_builder::RedisBuilder;
use crate::error::{ConnectError, StoreError};
use crate::failure_counters::FailureStats;
use crate::fake_store::{FakeStore, memory};
use crate::fallback::{BreakerState, Fallback, FallbackStats, StoreEvent};
use crate::held_permits::HeldPermits;
use crate::host::{Host, HostClock, HostWall};
use crate::local_limits::LocalLimits;
use crate::store_client::StoreClient;

/// Limits of a fleet, kept in Redis or Valkey: a [`Backend`](tollgate_engine::backend::Backend) for the engine, and the source of
/// [limiters](Self::limiter) for those who have no policy. It is cheap to clone.
///
/// It never fails: a request that the store couldn't be asked about gets what its limit has chosen
/// ([`OnStoreFailure`](tollgate_engine::policy::OnStoreFailure)), and says so.
///
/// ```no_run
/// use tollgate::Rate;
/// use tollgate_redis::Redis;
///
/// # async fn run() -> Result<(), Box<dyn std::error::Error>> {
/// let redis = Redis::connect("redis://127.0.0.1:6379")?;
/// let logins = redis.limiter("logins", Rate::per_minute(5)).build()?;
/// let answer = logins.check("ada").await;
/// assert!(answer.allowed().is_some());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Redis {
    pub(crate) fallback: Arc<Fallback<ClientBackend, HostClock, HostWall>>,
}

/// What a [`Redis`] has counted.
///
/// ```
/// use tollgate_redis::RedisStats;
///
/// /// How many questions each round trip answered.
/// fn merged(stats: &RedisStats) -> u64 {
///     stats.queries / stats.round_trips.max(1)
/// }
/// assert_eq!(merged(&RedisStats::default()), 0);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RedisStats {
    /// Scripts that were run: round trips.
    pub round_trips: u64,
    /// Questions that they answered.
    pub queries: u64,
    /// Round trips that failed.
    pub round_trip_errors: u64,
    /// Questions that got no answer in time.
    pub timeouts: u64,
    /// Connections that were made.
    pub connects: u64,
    /// How often a key was asked about that holds what no limiter wrote: [`StoreError::ForeignKey`](crate::StoreError).
    pub foreign_keys: u64,
    /// Refusals that were repeated without asking.
    pub repeated_denials: u64,
    /// Tokens that this node holds of leased limits.
    pub leased_tokens: u64,
    /// Slots that this node holds.
    pub permits: usize,
    /// Slots that ran out while they were held, and that others have taken: the node was asleep or the store
    /// away for too long, or the store's clock stepped forward. What was free was taken again, and isn't lost.
    pub lost_permits: u64,
    /// Nodes of the fleet, as given or learned.
    pub nodes: u64,
    /// How many microseconds the store's clock is ahead of this machine's; of a cluster, that of the node which is
    /// farthest off. None as long as it isn't known.
    pub clock_offset_micros: Option<i64>,
    /// Whether rules that circuit-break ask the store.
    pub breaker: BreakerState,
    /// What was decided without the store.
    pub fallback: FallbackStats,
    /// Every question that failed, by what sort of failure it was: those that [`fallback`](Self::fallback)
    /// counts as errors, and those that were asked without a failure policy, as by
    /// [`try_check`](crate::RedisLimiter::try_check). What nobody waited for, such as the renewal of a lease,
    /// is only in [`failed_round_trips`](Self::round_trip_errors).
    pub failures: Vec<FailureStats>,
}

impl Redis {
    /// The store at a URL (see [`ClientAddress`](crate::ClientAddress)), with the defaults for all else.
    ///
    /// It connects in the background, on the Tokio runtime that this is called on, and goes on trying. That
    /// runtime, and whichever one asks, has to have I/O and time enabled (`Builder::enable_all`), or tasks and
    /// calls panic: a runtime doesn't tell whether it has.
    ///
    /// # Errors
    /// If the URL doesn't say where the store is, a certificate can't be read, or there is no runtime.
    pub fn connect(url: &str) -> Result<Self, ConnectError> {
        Self::builder(url)?.build()
    }

    /// Chooses more than where the store is.
    ///
    /// # Errors
    /// If the URL doesn't say where the store is.
    pub fn builder(url: &str) -> Result<RedisBuilder, AddressError> {
        Ok(RedisBuilder::new(url.parse()?))
    }

    /// A client without a store, in the memory of this process and by a clock that is set by hand: for tests of what
    /// uses it. It needs no runtime, and fails only when its [`FakeStore`] is told to. It decides as a store would, but
    /// for [`pace`](crate::RedisLimiter::pace), which books apart from what `check` has charged.
    ///
    /// ```
    /// use tollgate::{Rate, clock::Manual};
    /// use tollgate_redis::Redis;
    /// # use std::{pin::pin, task::{Context, Poll, Waker}};
    /// # fn now<T>(future: impl Future<Output = T>) -> T {
    /// #     match pin!(future).poll(&mut Context::from_waker(Waker::noop())) { Poll::Ready(done) => done, _ => panic!() }
    /// # }
    ///
    /// let clock = Manual::new();
    /// let redis = Redis::in_memory(clock.clone());
    /// let logins = redis.limiter("logins", Rate::per_minute(1)).build()?;
    /// # now(async {
    /// assert!(logins.check("ada").await.allowed().is_some());
    /// assert!(logins.check("ada").await.denied().is_some());
    /// clock.advance(std::time::Duration::from_secs(60));
    /// assert!(logins.check("ada").await.allowed().is_some());
    /// # });
    /// # Ok::<(), tollgate_redis::StoreLimitError>(())
    /// ```
    pub fn in_memory(clock: Manual) -> Self {
        RedisBuilder::new(Address::none()).in_memory(clock)
    }

    /// Whether requests are decided without the store: true if the latest request that needed it was.
    pub fn is_fallback_active(&self) -> bool {
        self.fallback.is_active()
    }

    /// From now on the fleet has so many nodes, this one included, whatever was said or learned before. This node's
    /// part of limits that are judged without the store shrinks at once; it grows when what was noted in the smaller
    /// one has run out.
    pub fn set_node_count(&self, nodes: u64) {
        match self.store_client() {
            Some(direct) => direct.nodes.fix_count(nodes),
            None => self.fallback.local().set_node_count(nodes),
        }
    }

    /// Waits until the store answers, and for so long at most. A failure that waiting doesn't mend is told
    /// at once: a wrong password, TLS where none is spoken, a user without the rights.
    ///
    /// It isn't needed: connections are made and mended in the background. It tells at the start of a
    /// process what else would be seen with the first requests.
    ///
    /// ```no_run
    /// use std::time::Duration;
    /// use tollgate_redis::Redis;
    ///
    /// # async fn run() -> Result<(), Box<dyn std::error::Error>> {
    /// let redis = Redis::connect("rediss://limits:secret@10.0.0.1")?;
    /// if let Err(error) = redis.ready(Duration::from_secs(2)).await {
    ///     // "the store answered with an error: wrong user or password; correct them in its URL, …"
    ///     eprintln!("starting without a store ({}): {error}", error.kind());
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Why it can't be asked.
    pub async fn ready(&self, within: Duration) -> Result<(), StoreError> {
        self.fallback.store().ready(within).await
    }

    /// Gives back all that this node has, so that others can have it at once: tokens of leased limits, slots (also those
    /// whose passes aren't dropped yet) and its sign of life. Call it at the end, after the last request; it takes five
    /// seconds at most. What can't be given back runs out by itself, which is all of it outside of a Tokio runtime.
    /// Returns [`Gift::Lost`] then.
    ///
    /// ```
    /// use tollgate::clock::Manual;
    /// use tollgate_engine::backend::RefundResult;
    /// use tollgate_redis::Redis;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// let redis = Redis::in_memory(Manual::new());
    /// assert_eq!(redis.close().await, RefundResult::Refunded);
    /// # }
    /// ```
    pub async fn close(&self) -> RefundResult {
        self.fallback.store().close().await
    }

    /// The store without a failure policy; none if there is no store.
    pub fn store_client(&self) -> Option<&StoreClient> {
        match self.fallback.store() {
            ClientBackend::Remote(direct) => Some(direct),
            ClientBackend::Fake(_) => None,
        }
    }

    /// The store of a test, to make it fail; none if there is a real one.
    pub fn fake_store(&self) -> Option<&FakeStore> {
        match self.fallback.store() {
            ClientBackend::Remote(_) => None,
            ClientBackend::Fake(fake) => Some(fake),
        }
    }

    /// What it has counted.
    pub fn stats(&self) -> RedisStats {
        let (fallback, store) = (&self.fallback, self.fallback.store());
        let (stats, holders) = (
            store.stats(),
            self.store_client().map(|direct| &*direct.holders),
        );
        RedisStats {
            round_trips: stats.calls.load(Ordering::Relaxed),
            queries: stats.questions.load(Ordering::Relaxed),
            round_trip_errors: stats.failed_calls.load(Ordering::Relaxed),
            timeouts: stats.timeouts.load(Ordering::Relaxed),
            connects: stats.connects.load(Ordering::Relaxed),
            foreign_keys: stats.strange_keys.load(Ordering::Relaxed),
            repeated_denials: store.remembered_denials().repeated(),
            leased_tokens: store.leased_tokens(),
            permits: holders.map_or(0, HeldPermits::held_count),
            lost_permits: holders.map_or(0, HeldPermits::lost_count),
            nodes: fallback.local().node_count(),
            clock_offset_micros: stats.skew.max_offset(),
            breaker: fallback.breaker_state(),
            fallback: fallback.stats(),
            failures: fallback.failures.stats(),
        }
    }

    /// The tables of this process's part of the limits, which decides while the store can't be asked: see
    /// [`Memory::tables`](tollgate_engine::backend::Memory::tables).
    pub fn local_tables(&self) -> Vec<TableStats> {
        self.fallback.local().memory().tables()
    }
}

impl RedisBuilder {
    /// Builds it, and connects in the background.
    ///
    /// # Errors
    /// If a certificate can't be read, or there is no Tokio runtime.
    pub fn build(self) -> Result<Redis, ConnectError> {
        let host = Host::system().map_err(|_| ConnectError::NoRuntime)?;
        #[cfg(feature = "simulation")]
        let host = match self.world.clone() {
            Some(world) => host.simulated(world),
            None => host,
        };
        let local = Memory::builder().clock(host.clock()).wall(host.wall());
        let local = Arc::new(LocalLimits::new(local.build()));
        let direct =
            StoreClient::new(&self, Arc::clone(&local), host).map_err(ConnectError::Store)?;
        Ok(self.with_fallback(ClientBackend::Remote(direct), local))
    }

    /// Builds a client without a store, by a clock that is set by hand: [`Redis::in_memory`] with what was
    /// chosen here, so that a test has the failure policy of what it tests. It doesn't matter what the URL
    /// says.
    ///
    /// ```
    /// use tollgate::{Rate, clock::Manual};
    /// use tollgate_redis::{Fault, Redis, RedisBuilder};
    ///
    /// /// As in production.
    /// fn chosen(builder: RedisBuilder) -> RedisBuilder {
    ///     builder.node_count(8)
    /// }
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let redis = chosen(Redis::builder("redis://any")?).in_memory(Manual::new());
    /// let calls = redis.limiter("calls", Rate::per_hour(40)).build()?;
    /// redis.fake_store().expect("it is in memory").inject_fault(Fault::Down);
    /// // This node's part: 40 ÷ 8 × 2.
    /// assert_eq!(calls.check("ada").await.decision.limit, 10);
    /// # Ok(())
    /// # }
    /// ```
    pub fn in_memory(self, clock: Manual) -> Redis {
        let local = Arc::new(LocalLimits::new(memory(&clock)));
        local.set_node_count(self.nodes.unwrap_or(1));
        let store = FakeStore::new(&self, &clock, Arc::clone(&local));
        self.with_fallback(ClientBackend::Fake(store), local)
    }

    /// Puts what was chosen for failures in front of a store.
    fn with_fallback(
        self,
        store: ClientBackend,
        local: Arc<LocalLimits<HostClock, HostWall>>,
    ) -> Redis {
        let on_event = self.on_event;
        let fallback = Fallback::with_local(store, local)
            .breaker(self.breaker)
            .on_event(move |event| {
                log_event(event);
                on_event.iter().for_each(|tell| tell(event));
            });
        Redis {
            fallback: Arc::new(fallback),
        }
    }
}

impl Backend for Redis {
    type Error = Infallible;

    fn ask<'a>(
        &'a self,
        checks: &'a [Check<'a>],
        each: Option<&'a mut Vec<CheckResult>>,
    ) -> impl Future<Output = Result<Answer, Infallible>> + Send + 'a {
        self.fallback.ask(checks, each)
    }

    fn peek<'a>(
        &'a self,
        checks: &'a [Check<'a>],
    ) -> impl Future<Output = Result<Vec<CheckResult>, Infallible>> + Send + 'a {
        self.fallback.peek(checks)
    }

    fn refund<'a>(
        &'a self,
        checks: &'a [Check<'a>],
        refund: Refund,
    ) -> impl Future<Output = Result<RefundResult, Infallible>> + Send + 'a {
        self.fallback.refund(checks, refund)
    }

    fn now(&self) -> Timestamp {
        self.fallback.store().now()
    }

    fn clocks(&self) -> Clocks {
        self.fallback.clocks()
    }

    fn supports(&self, limit: &Limit) -> Result<(), String> {
        self.fallback.supports(limit)
    }

    fn deny_epoch(&self) -> Option<u64> {
        self.fallback.deny_epoch()
    }
}

fn log_event(event: &StoreEvent<'_>) {
    match event {
        StoreEvent::Failed {
            error,
            suppressed,
        } => {
            tracing::warn!(target: "tollgate", suppressed, "rate-limit store failed: {error}");
        }
        StoreEvent::KeyFailed {
            error,
            suppressed,
        } => {
            tracing::warn!(target: "tollgate", suppressed, "rate-limit store: {error}");
        }
        StoreEvent::FallbackStarted => {
            tracing::warn!(target: "tollgate", "deciding without the rate-limit store");
        }
        StoreEvent::FallbackEnded { after } => {
            tracing::info!(target: "tollgate", ?after, "the rate-limit store answers again");
        }
        StoreEvent::CircuitOpened { open_for: stays } => {
            tracing::warn!(target: "tollgate", ?stays, "not asking the rate-limit store");
        }
        StoreEvent::CircuitClosed => {
            tracing::info!(target: "tollgate", "asking the rate-limit store again");
        }
    }
}
