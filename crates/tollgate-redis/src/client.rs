//! `Redis`: the store that keeps a fleet's limits, with a failure policy for when it is unreachable.

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

/// Limits of a fleet, kept in Redis or Valkey: a [`Backend`](tollgate_engine::backend::Backend) for the engine,
/// and the source of [limiters](Self::limiter) for programs without a policy. It is cheap to clone.
///
/// A decision never fails: if the store is unreachable, the limit's
/// [`OnStoreFailure`](tollgate_engine::policy::OnStoreFailure) decides, and the answer names it.
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

/// The counters of a [`Redis`].
///
/// ```
/// use tollgate_redis::RedisStats;
///
/// /// How many queries each round trip answered.
/// fn merged(stats: &RedisStats) -> u64 {
///     stats.queries / stats.round_trips.max(1)
/// }
/// assert_eq!(merged(&RedisStats::default()), 0);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RedisStats {
    /// Scripts that were run. Each is one round trip.
    pub round_trips: u64,
    /// Queries that the round trips answered. Concurrent queries share a round trip.
    pub queries: u64,
    /// Round trips that failed.
    pub round_trip_errors: u64,
    /// Queries that got no answer before their deadline.
    pub timeouts: u64,
    /// Connections that were made.
    pub connects: u64,
    /// How often a query met a key whose value no limiter wrote: [`StoreError::ForeignKey`](crate::StoreError).
    pub foreign_keys: u64,
    /// Denials that were repeated from memory, without a query.
    pub repeated_denials: u64,
    /// Tokens of leased limits that this node holds.
    pub leased_tokens: u64,
    /// Permits that this node holds.
    pub permits: usize,
    /// Permits that expired while they were held, and that other nodes have taken: the node was suspended or
    /// the store unreachable for too long, or the store's clock stepped forward. An expired permit that was
    /// still free is taken again, and isn't counted here.
    pub lost_permits: u64,
    /// Nodes of the fleet, as configured or learned.
    pub nodes: u64,
    /// How many microseconds the store's clock is ahead of this machine's clock. Of a cluster: the largest
    /// difference of any node. `None` until it is known.
    pub clock_offset_micros: Option<i64>,
    /// State of the circuit breaker: whether rules that circuit-break query the store.
    pub breaker: BreakerState,
    /// Decisions that were made without the store.
    pub fallback: FallbackStats,
    /// Every failed query by kind of failure: those that [`fallback`](Self::fallback) counts as errors, and
    /// those without a failure policy, such as [`try_check`](crate::RedisLimiter::try_check). Background work,
    /// such as the renewal of a lease, is only in [`round_trip_errors`](Self::round_trip_errors).
    pub failures: Vec<FailureStats>,
}

impl Redis {
    /// The store at a URL (see [`Address`](crate::Address)), with the defaults for everything else.
    ///
    /// It connects in the background, on the current Tokio runtime, and retries until it succeeds. This
    /// runtime, and each runtime that makes queries, needs I/O and time (`Builder::enable_all`). Without them
    /// tasks and calls panic, because a runtime doesn't report whether it has them.
    ///
    /// # Errors
    /// If the URL isn't a valid address, a certificate can't be read, or there is no runtime.
    pub fn connect(url: &str) -> Result<Self, ConnectError> {
        Self::builder(url)?.build()
    }

    /// A builder, to choose more than the store's address.
    ///
    /// # Errors
    /// If the URL isn't a valid address.
    pub fn builder(url: &str) -> Result<RedisBuilder, AddressError> {
        Ok(RedisBuilder::new(url.parse()?))
    }

    /// A client without a store, for tests: it keeps limits in this process, by a clock that the test sets. It
    /// needs no runtime, and fails only as its [`FakeStore`] injects. It decides as a store would, with one
    /// exception: [`reserve`](crate::RedisLimiter::reserve) counts apart from what `check` has charged.
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

    /// Whether requests are decided without the store: true if the latest request that needed the store was.
    pub fn is_fallback_active(&self) -> bool {
        self.fallback.is_active()
    }

    /// Sets the number of nodes in the fleet, this one included. It replaces the configured or learned number.
    /// This node's share of limits that are decided locally shrinks immediately. It grows only when all that
    /// was recorded in the smaller share has expired, so nothing is granted twice.
    pub fn set_node_count(&self, nodes: u64) {
        match self.store_client() {
            Some(direct) => direct.nodes.fix_count(nodes),
            None => self.fallback.local().set_node_count(nodes),
        }
    }

    /// Waits until the store answers, for at most `within`. A failure that waiting can't mend is returned
    /// immediately: a wrong password, TLS to a port without TLS, a user without the necessary rights.
    ///
    /// Calling it is optional: connections are made and repaired in the background. It reports at the start of
    /// a process the failures that otherwise appear with the first requests.
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
    /// Why the store can't be used.
    pub async fn ready(&self, within: Duration) -> Result<(), StoreError> {
        self.fallback.store().ready(within).await
    }

    /// Returns all that this node holds, so that other nodes can take it immediately: tokens of leased limits,
    /// permits (also those whose guards aren't dropped yet) and this node's entry in the registry. Call it at
    /// shutdown, after the last request. It takes at most five seconds. What can't be returned expires by
    /// itself; outside of a Tokio runtime that is everything. The result is then [`RefundResult::Lost`].
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

    /// The store without a failure policy; `None` if there is no store.
    pub fn store_client(&self) -> Option<&StoreClient> {
        match self.fallback.store() {
            ClientBackend::Remote(direct) => Some(direct),
            ClientBackend::Fake(_) => None,
        }
    }

    /// The fake store of a test, to inject faults; `None` if there is a real store.
    pub fn fake_store(&self) -> Option<&FakeStore> {
        match self.fallback.store() {
            ClientBackend::Remote(_) => None,
            ClientBackend::Fake(fake) => Some(fake),
        }
    }

    /// The counters of this client.
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

    /// The tables of this process's share of the limits, which decides while the store is unreachable: see
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

    /// Builds a client without a store, by a clock that the test sets: [`Redis::in_memory`] with this builder's
    /// settings, so that a test has the failure policy of production. The URL is ignored.
    ///
    /// ```
    /// use tollgate::{Rate, clock::Manual};
    /// use tollgate_redis::{Fault, Redis, RedisBuilder};
    ///
    /// /// The settings of production.
    /// fn chosen(builder: RedisBuilder) -> RedisBuilder {
    ///     builder.node_count(8)
    /// }
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let redis = chosen(Redis::builder("redis://any")?).in_memory(Manual::new());
    /// let calls = redis.limiter("calls", Rate::per_hour(40)).build()?;
    /// redis.fake_store().expect("it is in memory").inject_fault(Fault::Down);
    /// // This node's share: 40 × 2 ÷ 8.
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

    /// Puts the failure policy in front of a store.
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
        StoreEvent::Failed { error, suppressed } => {
            tracing::warn!(target: "tollgate", suppressed, "rate-limit store failed: {error}");
        }
        StoreEvent::KeyFailed { error, suppressed } => {
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
