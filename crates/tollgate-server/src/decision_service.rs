//! What decides for every protocol: the engine, the keys that bring their limits along, and what requests hold.

use std::convert::Infallible;
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tollgate::clock::Clock;
use tollgate_engine::backend::{Backend, Memory, RefundResult, TableStats};
use tollgate_engine::engine::DescriptorRequest;
use tollgate_engine::verdict::Permits;
use tollgate_engine::{DecideOptions, Engine, Facts, Policy, PolicyError, RequestDecision};
use tollgate_http::HeaderDialect;
use tollgate_redis::{Redis, RedisStats};

use crate::denial_log::{DenialLogger, DenialObserver};
use crate::request_bounds::RequestBounds;
use crate::reservations::{CapacityExceeded, Reservations, ReservedCapacity};
use crate::settings::Settings;
use crate::throttle_keys::{LocalThrottleKeys, StoreThrottleKeys, ThrottleKeys};

/// A store is given so long to answer when nobody asks it anything else.
const STORE_PROBE_TIMEOUT: Duration = Duration::from_secs(1);

/// Decides requests, and keeps what they hold.
pub(crate) struct Decider<B: CounterStore> {
    pub(crate) engine: Engine<B>,
    pub(crate) throttle_keys: B::Cells,
    pub(crate) reservations: Reservations,
    pub(crate) bounds: RequestBounds,
    /// How many count apart: limits that come along with a request are divided by it, as those of the policy are.
    pub(crate) replicas: u32,
    /// The policy in force, before it was divided.
    undivided_policy: Mutex<Arc<Policy>>,
}

/// The limits that a service starts with.
pub(crate) struct InitialLimits<B: CounterStore> {
    pub(crate) engine: Engine<B>,
    pub(crate) cells: B::Cells,
    /// The policy, before it was divided.
    pub(crate) whole: Policy,
}

/// So many of those that are refused most are told.
const TOP_DENIED_KEYS: usize = 128;

impl<B: CounterStore> Decider<B> {
    pub(crate) fn new(
        limits: InitialLimits<B>,
        settings: &Settings,
        denials: &Arc<DenialLogger>,
    ) -> Self {
        let engine = limits
            .engine
            .with_observer(DenialObserver(Arc::clone(denials)));
        let engine = engine
            .with_counters(settings.max_named_limiters)
            .with_top_keys(TOP_DENIED_KEYS);
        Self {
            engine: engine.with_bounds(tollgate_engine::Bounds {
                descriptors: settings.bounds.max_descriptors,
                ..tollgate_engine::Bounds::default()
            }),
            throttle_keys: limits.cells,
            reservations: Reservations::new(settings.bounds.max_reservations),
            bounds: settings.bounds.clone(),
            replicas: settings.replicas.max(1),
            undivided_policy: Mutex::new(Arc::new(limits.whole)),
        }
    }

    /// Puts another policy in force, a part of it if several share its limits: what is lost by that.
    pub(crate) fn apply_policy(&self, policy: Policy) -> Result<Vec<String>, PolicyError> {
        // Locked until it is in force: of two, the one that is told is the one that came last.
        let mut whole = self
            .undivided_policy
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let divided = policy.share_for_replicas(self.replicas);
        self.engine.reload(divided.policy)?;
        *whole = Arc::new(policy);
        Ok(divided.notes)
    }

    /// The policy in force, before it was divided.
    pub(crate) fn undivided_policy(&self) -> Arc<Policy> {
        let whole = self
            .undivided_policy
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        Arc::clone(&whole)
    }
}

/// What a backend tells of itself.
#[derive(Debug, Default)]
pub(crate) struct BackendStats {
    /// Where the limits are counted.
    pub(crate) backend: &'static str,
    pub(crate) tables: Vec<TableStats>,
    /// Slots that are held now.
    pub(crate) in_flight: u64,
    /// All at nothing without a store.
    pub(crate) store: RedisStats,
    /// Whether the last requests were decided without the store that there is.
    pub(crate) is_fallback_active: bool,
}

/// On which conditions a request is decided whose answer tells of its limits in these dialects: of all of them, or if
/// there are none only of the one that decides.
pub(crate) const fn conditions_for(dialects: &[HeaderDialect]) -> DecideOptions<'static> {
    match dialects {
        [] => DecideOptions::new(),
        _ => DecideOptions::new().listing_limits(),
    }
}

/// Decides where that may take its time.
async fn decide_async<'f, B: Backend<Error = Infallible>>(
    engine: &Engine<B>,
    facts: &'f Facts<'f>,
    dialects: &[HeaderDialect],
) -> RequestDecision<'f> {
    let Ok(verdict) = engine
        .decide_with_conditions(conditions_for(dialects), facts)
        .await;
    match verdict {
        Some(verdict) => verdict,
        // Only said on the condition that some facts alone are known.
        None => {
            let Ok(verdict) = engine.decide_async(facts).await;
            verdict
        }
    }
}

/// Who answers: memory, or a store.
pub(crate) trait CounterStore: Backend<Error = Infallible> + Sized + 'static {
    /// Who keeps keys that bring their limits along.
    type Cells: ThrottleKeys;

    /// It answers at once, if no rule lets requests wait.
    const IS_LOCAL: bool;

    /// Decides a request whose answer tells of limits in these dialects. It waits where its rule says so.
    fn decide<'f>(
        engine: &Engine<Self>,
        facts: &'f Facts<'f>,
        dialects: &[HeaderDialect],
    ) -> impl Future<Output = RequestDecision<'f>> + Send;

    /// What metrics show of it.
    fn backend_stats(&self) -> BackendStats;

    /// Asks whether it is there, as a request would: without an answer in time, why not.
    fn probe(&self) -> impl Future<Output = Result<(), String>> + Send;
}

impl<C: Clock + 'static, W: Clock + 'static> CounterStore for Memory<C, W> {
    type Cells = LocalThrottleKeys<C>;
    const IS_LOCAL: bool = true;

    #[inline]
    async fn decide<'f>(
        engine: &Engine<Self>,
        facts: &'f Facts<'f>,
        dialects: &[HeaderDialect],
    ) -> RequestDecision<'f> {
        match dialects {
            // In a box: few policies let requests wait, and every connection has room for the largest step.
            _ if engine.has_waiting_rules() => {
                Box::pin(decide_async(engine, facts, dialects)).await
            }
            [] => engine.decide(facts),
            _ => engine.decide_listing_limits(facts),
        }
    }

    fn backend_stats(&self) -> BackendStats {
        BackendStats {
            backend: "memory",
            tables: self.tables(),
            in_flight: self.in_flight(),
            ..BackendStats::default()
        }
    }

    async fn probe(&self) -> Result<(), String> {
        Ok(())
    }
}

impl CounterStore for Redis {
    type Cells = StoreThrottleKeys;
    const IS_LOCAL: bool = false;

    async fn decide<'f>(
        engine: &Engine<Self>,
        facts: &'f Facts<'f>,
        dialects: &[HeaderDialect],
    ) -> RequestDecision<'f> {
        decide_async(engine, facts, dialects).await
    }

    fn backend_stats(&self) -> BackendStats {
        let store = self.stats();
        BackendStats {
            backend: "redis",
            tables: self.local_tables(),
            in_flight: store.permits as u64,
            is_fallback_active: self.is_fallback_active(),
            store,
        }
    }

    async fn probe(&self) -> Result<(), String> {
        let answered = self.ready(STORE_PROBE_TIMEOUT).await;
        answered.map_err(|error| error.to_string())
    }
}

impl<B: CounterStore> Decider<B> {
    /// Decides a request, and keeps what it holds for as long as nobody gives it back. If no more may be held, it is
    /// not decided: a slot that nobody keeps would be free at once.
    pub(crate) async fn check<'f>(
        &self,
        facts: &'f Facts<'f>,
        dialects: &[HeaderDialect],
    ) -> Result<RequestDecision<'f>, CapacityExceeded> {
        let room = self.reserve_capacity(Some(facts), None)?;
        let mut verdict = B::decide(&self.engine, facts, dialects).await;
        if let RequestDecision::Allowed(passed) = &mut verdict
            && let Some(permits) = passed.take_permits()
            && let Err(full) = self.hold_permits(&request_key(facts), permits, room)
        {
            // In a box, as it is rare: every connection has room for the largest step.
            Box::pin(self.refund_cancelled(facts)).await;
            return Err(full);
        }
        Ok(verdict)
    }

    /// Room for what a request may come to hold by its rules and its trees, before anything is decided; none if there is
    /// plenty, or it needs none.
    #[inline]
    pub(crate) fn reserve_capacity(
        &self,
        facts: Option<&Facts<'_>>,
        descriptors: Option<&DescriptorRequest<'_>>,
    ) -> Result<Option<ReservedCapacity<'_>>, CapacityExceeded> {
        if self.reservations.has_spare_capacity() {
            return Ok(None);
        }
        let engine = &self.engine;
        let needs_room = facts.is_some_and(|facts| engine.would_hold(facts))
            || descriptors.is_some_and(|request| engine.would_hold_descriptors(request));
        needs_room
            .then(|| self.reservations.reserve_capacity())
            .transpose()
    }

    /// Keeps what a request holds, for a caller that has no name for it but what it asked.
    #[cold]
    pub(crate) fn hold_permits(
        &self,
        name: &[u8],
        permits: Permits,
        room: Option<ReservedCapacity<'_>>,
    ) -> Result<(), CapacityExceeded> {
        self.reservations
            .hold(name, permits, self.bounds.reservation_timeout, room)
    }

    /// Takes back what a request was charged that can't run, and whose permits were cancelled. What others hold isn't
    /// touched.
    #[cold]
    pub(crate) async fn refund_cancelled(&self, facts: &Facts<'_>) {
        let Ok(_) = self.engine.refund_cancelled_async(facts).await;
    }

    /// Gives back what a request like this cost, and ends the oldest that one holds without a name.
    pub(crate) async fn refund(&self, facts: &Facts<'_>) -> RefundResult {
        let is_dropped = self.reservations.take_oldest(&request_key(facts)).is_some();
        self.refund_charge(facts, is_dropped).await
    }

    /// Gives back what a request like this cost. If its permits were dropped, its estimates have come back.
    pub(crate) async fn refund_charge(&self, facts: &Facts<'_>, is_dropped: bool) -> RefundResult {
        let Ok(gift) = if is_dropped {
            self.engine.refund_dropped_async(facts).await
        } else {
            self.engine.refund_async(facts).await
        };
        gift
    }

    /// Forgets what requests like this have spent.
    pub(crate) async fn reset(&self, facts: &Facts<'_>) -> RefundResult {
        let Ok(gift) = self.engine.reset_request_async(facts).await;
        gift
    }
}

/// What a request without a name is known by: its facts, in one order whatever order they come in.
pub(crate) fn request_key(facts: &Facts<'_>) -> Vec<u8> {
    let mut pairs: Vec<_> = facts.iter().collect();
    pairs.sort_unstable();
    let mut name = vec![b'f'];
    for text in pairs.into_iter().flat_map(|(fact, value)| [fact, value]) {
        name.extend((text.len() as u64).to_le_bytes());
        name.extend(text.as_bytes());
    }
    name
}
