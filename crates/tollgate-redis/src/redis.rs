//! `Redis`: the store that limits of a fleet are kept in, with an answer for when it can't be asked.

use std::convert::Infallible;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use futures_util::future::{Either, join3};
use tollgate::clock::{Clock, Manual, Wakeup};
use tollgate::{Decision, Rate, Timestamp};
use tollgate_engine::backend::{
    Answer, AskingOrFallback, Backend, Breaker, Check, Fallback, Limit, LimitKind, Local, Memory,
    StoreEvent,
};

use crate::address::{Address, AddressError};
use crate::direct::Direct;
use crate::error::StoreError;
use crate::failure::Failures;
use crate::host::{Host, HostClock, HostWall};
use crate::lease::Terms;
use crate::limiter::RedisLimiterBuilder;
use crate::nodes::Nodes;
use crate::noted::Noted;
use crate::rehearsal::Rehearsal;

/// Long enough for a healthy store in the same data centre whose machine is busy: with twice as many threads
/// as cores it may wait for its turn for some 10 milliseconds, and a call may wait for two others. Short enough
/// that a request whose store is away is hardly late.
const TIMEOUT: Duration = Duration::from_millis(25);

/// How long closing may take.
const CLOSING: Duration = Duration::from_secs(5);

/// Limits of a fleet, kept in Redis or Valkey: a [`Backend`] for the engine, and the source of
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
/// assert!(answer.passed().is_some());
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Redis {
    pub(crate) home: Home,
    /// None without a store.
    pub(crate) nodes: Option<Arc<Nodes>>,
}

/// Where the limits are.
#[derive(Clone)]
pub(crate) enum Home {
    Store(Arc<Fallback<Noted<Direct>, HostClock, HostWall>>),
    /// Of a test.
    Memory(Arc<Fallback<Noted<Rehearsal>, Manual, Manual>>),
}

/// Builds a [`Redis`]; made by [`Redis::builder`].
///
/// ```
/// use std::time::Duration;
/// use tollgate_engine::backend::Breaker;
/// use tollgate_redis::Redis;
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
    pub(crate) address: Address,
    pub(crate) timeout: Duration,
    pub(crate) prefix: String,
    pub(crate) near: usize,
    pub(crate) terms: Terms,
    pub(crate) slot_life: Duration,
    pub(crate) time: Option<Box<dyn Fn() -> Timestamp + Send + Sync>>,
    pub(crate) nodes: Option<u64>,
    breaker: Breaker,
    tell: Option<Box<Tell>>,
    #[cfg(feature = "simulation")]
    world: Option<Arc<dyn crate::simulation::World>>,
}

type Tell = dyn Fn(&StoreEvent<'_>) + Send + Sync;

impl Redis {
    /// The store at a URL (see [`Address`]), with all else as usual.
    ///
    /// It connects in the background, on the Tokio runtime that this is called on, and goes on trying. That
    /// runtime, and whichever one asks, has to have I/O and time enabled (`Builder::enable_all`), or tasks and
    /// calls panic: a runtime doesn't tell whether it has.
    ///
    /// # Errors
    /// If the URL says no place, a certificate can't be read, or there is no runtime.
    pub fn connect(url: &str) -> Result<Self, ConnectError> {
        Self::builder(url)?.build()
    }

    /// Chooses more than the place.
    ///
    /// # Errors
    /// If the URL says no place.
    pub fn builder(url: &str) -> Result<RedisBuilder, AddressError> {
        Ok(RedisBuilder::new(url.parse()?))
    }

    /// A limiter of its own, apart from any policy, kept under this name. Make it once and keep it: what it
    /// leases and remembers is its own.
    pub fn limiter(&self, name: &str, rate: Rate) -> RedisLimiterBuilder {
        RedisLimiterBuilder::new(self.clone(), name, rate)
    }

    /// A limiter of another kind: a quota, or slots.
    pub fn limiter_of(&self, name: &str, kind: LimitKind) -> RedisLimiterBuilder {
        RedisLimiterBuilder::of(self.clone(), name, kind)
    }

    /// Whether requests are decided without the store: the latest that wanted it was.
    pub fn fallback_active(&self) -> bool {
        match &self.home {
            Home::Store(fallback) => fallback.is_active(),
            Home::Memory(fallback) => fallback.is_active(),
        }
    }

    /// From now on the fleet has so many nodes, this one included, whatever was said or learned before. This node's
    /// part of limits that are judged without the store shrinks at once; it grows when what was noted in the smaller
    /// one has run out.
    pub fn set_nodes(&self, nodes: u64) {
        match (&self.nodes, &self.home) {
            (Some(own), _) => own.set(nodes),
            (None, Home::Store(fallback)) => fallback.local().set_nodes(nodes),
            (None, Home::Memory(fallback)) => fallback.local().set_nodes(nodes),
        }
    }

    /// Gives back all that this node has, so that others can have it at once: tokens of leased limits, slots, also those
    /// whose passes aren't dropped, and its sign of life. It is for the end, after the last request, and takes
    /// five seconds at most. What can't be given back runs out: all of it outside of a Tokio runtime.
    pub async fn close(&self) {
        let direct = match &self.home {
            Home::Store(fallback) => &fallback.store().inner,
            Home::Memory(fallback) => return fallback.store().inner.close(),
        };
        if Host::system().is_err() {
            return;
        }
        let leaving = async {
            if let Some(nodes) = &self.nodes {
                nodes.leave().await;
            }
        };
        let closing = join3(direct.leases.close(), direct.holders.close(), leaving);
        let _ = tokio::time::timeout(CLOSING, closing).await;
    }

    /// The store without a failure policy; none if there is no store.
    pub fn direct(&self) -> Option<&Direct> {
        match &self.home {
            Home::Store(fallback) => Some(&fallback.store().inner),
            Home::Memory(_) => None,
        }
    }
}

impl RedisBuilder {
    pub(crate) fn new(address: Address) -> Self {
        Self {
            address,
            timeout: TIMEOUT,
            prefix: "tollgate".to_owned(),
            near: 10_000,
            terms: Terms {
                life: Duration::from_secs(1),
                part: 10,
                most_keys: 100_000,
            },
            slot_life: Duration::from_secs(60),
            time: None,
            nodes: None,
            breaker: Breaker::default(),
            tell: None,
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
    pub fn prefix(mut self, prefix: &str) -> Self {
        self.prefix = prefix.to_owned();
        self
    }

    /// How many refusals are remembered and repeated without asking: 10,000 unless said otherwise, and 0
    /// for none. What another node gives back meanwhile isn't seen before the time that was told.
    pub fn near_cache(mut self, refusals: usize) -> Self {
        self.near = refusals;
        self
    }

    /// For how long a node takes tokens of leased limits: a second unless said otherwise. What a node holds
    /// when it dies is back after that.
    pub fn lease_life(mut self, life: Duration) -> Self {
        self.terms.life = life.max(Duration::from_millis(10));
        self
    }

    /// The most that a node holds of a leased limit is this part of its burst: one of 10 unless said
    /// otherwise.
    pub fn lease_part(mut self, one_of: u64) -> Self {
        self.terms.part = one_of.max(1);
        self
    }

    /// How many keys may have a lease here: 100,000 unless said otherwise. Others ask each time.
    pub fn leased_keys(mut self, most: usize) -> Self {
        self.terms.most_keys = most;
        self
    }

    /// For how long a slot is held without a sign of life: a minute unless said otherwise. It is renewed
    /// three times in that; a dead holder's slot is free after it.
    pub fn slot_life(mut self, life: Duration) -> Self {
        self.slot_life = life.max(Duration::from_millis(30));
        self
    }

    /// How many nodes the fleet has, this one included. While the store can't be asked, a limit that is
    /// judged locally is divided by it, times two.
    ///
    /// Unless it is said, it is learned: each node leaves a sign of life in the store every five seconds, and is
    /// told how many there are. [`Redis::set_nodes`] changes it later.
    pub fn nodes(mut self, nodes: u64) -> Self {
        self.nodes = Some(nodes);
        self
    }

    /// When limits that circuit-break stop asking, and for how long.
    pub fn breaker(mut self, breaker: Breaker) -> Self {
        self.breaker = breaker;
        self
    }

    /// Tells this what happens to the store. It is logged in any case.
    pub fn on_event(mut self, tell: impl Fn(&StoreEvent<'_>) + Send + Sync + 'static) -> Self {
        self.tell = Some(Box::new(tell));
        self
    }

    /// Decides by this clock instead of the store's: for tests and replays. Times are since 1970.
    pub fn clock(mut self, clock: impl Clock + 'static) -> Self {
        self.time = Some(Box::new(move || clock.now()));
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
        let (guard, said) = (self.guard(), self.nodes);
        let failures = Failures::new(host.clock(), host.wall());
        let inner = Direct::new(self, Arc::clone(&local), host).map_err(ConnectError::Store)?;
        let of = (&inner.store, Arc::clone(&local));
        let nodes = Nodes::new(of, &inner.prefix, said, &inner.host);
        let fallback = guard.before(Noted { inner, failures }, local);
        Ok(Redis {
            home: Home::Store(Arc::new(fallback)),
            nodes: Some(nodes),
        })
    }

    pub(crate) fn guard(&mut self) -> Guard {
        Guard {
            breaker: self.breaker,
            tell: self.tell.take(),
        }
    }
}

/// What was chosen for when the store can't be asked.
pub(crate) struct Guard {
    breaker: Breaker,
    tell: Option<Box<Tell>>,
}

impl Guard {
    /// Puts it in front of a store.
    pub(crate) fn before<B, C, W>(
        self,
        store: Noted<B>,
        local: Arc<Local<C, W>>,
    ) -> Fallback<Noted<B>, C, W>
    where
        B: Backend<Error = StoreError>,
        C: Clock + 'static,
        W: Clock + 'static,
    {
        let tell = self.tell;
        Fallback::with_local(store, local)
            .breaker(self.breaker)
            .on_event(move |event| {
                log(event);
                if let Some(tell) = &tell {
                    tell(event);
                }
            })
    }
}

fn log(event: &StoreEvent<'_>) {
    match event {
        StoreEvent::Failed { error, untold } => {
            tracing::warn!(target: "tollgate", untold, "rate-limit store failed: {error}");
        }
        StoreEvent::FallbackBegan => {
            tracing::warn!(target: "tollgate", "deciding without the rate-limit store");
        }
        StoreEvent::FallbackEnded { after } => {
            tracing::info!(target: "tollgate", ?after, "the rate-limit store answers again");
        }
        StoreEvent::CircuitOpened { stays } => {
            tracing::warn!(target: "tollgate", ?stays, "not asking the rate-limit store");
        }
        StoreEvent::CircuitClosed => {
            tracing::info!(target: "tollgate", "asking the rate-limit store again");
        }
        other => tracing::info!(target: "tollgate", "{other:?}"),
    }
}

/// Why there is no [`Redis`].
///
/// ```
/// use tollgate_redis::{ConnectError, Redis};
///
/// // Outside a runtime there is nothing to connect on.
/// let error = Redis::connect("redis://127.0.0.1").unwrap_err();
/// assert_eq!(error, ConnectError::NoRuntime);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConnectError {
    /// The URL says no place.
    Address(AddressError),
    /// It was called outside a Tokio runtime.
    NoRuntime,
    /// What the store was to be reached by can't be used.
    Store(StoreError),
}

impl fmt::Display for ConnectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(error) => error.fmt(f),
            Self::NoRuntime => f.write_str(
                "there is no Tokio runtime here to connect on: call this from async code, or within \
                 `Runtime::enter`",
            ),
            Self::Store(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for ConnectError {}

impl From<AddressError> for ConnectError {
    fn from(error: AddressError) -> Self {
        Self::Address(error)
    }
}

impl Backend for Redis {
    type Error = Infallible;
    type Asking<'a> = Deciding<'a>;

    fn check<'a>(&'a self, checks: &'a [Check<'a>]) -> Self::Asking<'a> {
        match &self.home {
            Home::Store(fallback) => Deciding(Either::Left(fallback.check(checks))),
            Home::Memory(fallback) => Deciding(Either::Right(fallback.check(checks))),
        }
    }

    async fn check_each<'a>(
        &'a self,
        checks: &'a [Check<'a>],
    ) -> Result<(Answer, Vec<Decision>), Infallible> {
        match &self.home {
            Home::Store(fallback) => fallback.check_each(checks).await,
            Home::Memory(fallback) => fallback.check_each(checks).await,
        }
    }

    async fn peek<'a>(&'a self, checks: &'a [Check<'a>]) -> Result<Vec<Decision>, Infallible> {
        match &self.home {
            Home::Store(fallback) => fallback.peek(checks).await,
            Home::Memory(fallback) => fallback.peek(checks).await,
        }
    }

    async fn give_back<'a>(&'a self, checks: &'a [Check<'a>]) -> Result<(), Infallible> {
        match &self.home {
            Home::Store(fallback) => Backend::give_back(&**fallback, checks).await,
            Home::Memory(fallback) => Backend::give_back(&**fallback, checks).await,
        }
    }

    fn now(&self) -> Timestamp {
        match &self.home {
            Home::Store(fallback) => Backend::now(&**fallback),
            Home::Memory(fallback) => Backend::now(&**fallback),
        }
    }

    fn wake_at(&self, at: Timestamp, waker: &Waker) -> Option<Wakeup> {
        match &self.home {
            Home::Store(fallback) => fallback.wake_at(at, waker),
            Home::Memory(fallback) => fallback.wake_at(at, waker),
        }
    }

    fn supports(&self, limit: &Limit) -> Result<(), String> {
        match &self.home {
            Home::Store(fallback) => fallback.supports(limit),
            Home::Memory(fallback) => fallback.supports(limit),
        }
    }

    fn epoch(&self) -> u64 {
        match &self.home {
            Home::Store(fallback) => fallback.epoch(),
            Home::Memory(fallback) => fallback.epoch(),
        }
    }
}

/// An answer on its way: from the store, or the one without it.
///
/// ```
/// use tollgate::clock::Manual;
/// use tollgate_engine::backend::Backend;
/// use tollgate_redis::{Deciding, Redis};
///
/// let redis = Redis::in_memory(Manual::new());
/// let deciding: Deciding<'_> = redis.check(&[]);
/// # drop(deciding);
/// ```
#[must_use = "a question that isn't awaited isn't asked"]
pub struct Deciding<'a>(Either<FromStore<'a>, FromMemory<'a>>);

type FromStore<'a> = AskingOrFallback<'a, Noted<Direct>, HostClock, HostWall>;
type FromMemory<'a> = AskingOrFallback<'a, Noted<Rehearsal>, Manual, Manual>;

impl Future for Deciding<'_> {
    type Output = Result<Answer, Infallible>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(context)
    }
}

impl fmt::Debug for Deciding<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Deciding").finish_non_exhaustive()
    }
}

impl fmt::Debug for Redis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Redis");
        match &self.home {
            Home::Store(fallback) => shown.field("store", fallback),
            Home::Memory(fallback) => shown.field("memory", fallback),
        };
        shown.finish_non_exhaustive()
    }
}

impl fmt::Debug for RedisBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisBuilder")
            .field("address", &self.address)
            .field("timeout", &self.timeout)
            .finish_non_exhaustive()
    }
}
