//! Decisions for all protocols: the engine, the keys of `CL.THROTTLE`, and the reservations of requests.

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

/// The timeout of a health check of the store.
const STORE_PROBE_TIMEOUT: Duration = Duration::from_secs(1);

/// Decides requests, and keeps their permits and estimates.
pub(crate) struct Decider<B: CounterStore> {
    pub(crate) engine: Engine<B>,
    pub(crate) throttle_keys: B::Cells,
    pub(crate) reservations: Reservations,
    pub(crate) bounds: RequestBounds,
    /// The number of replicas that count separately. Limits that a request brings along are divided by it, like those
    /// of the policy.
    pub(crate) replicas: u32,
    /// The policy in force, before it was divided among replicas.
    undivided_policy: Mutex<Arc<Policy>>,
}

/// The policy's limits at the start.
pub(crate) struct InitialLimits<B: CounterStore> {
    pub(crate) engine: Engine<B>,
    pub(crate) cells: B::Cells,
    /// The policy, before it was divided among replicas.
    pub(crate) whole: Policy,
}

/// How many of the most denied keys are kept.
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

    /// Puts another policy in force; with several replicas, this one's share. Returns notes about what the division
    /// rounds off.
    pub(crate) fn apply_policy(&self, policy: Policy) -> Result<Vec<String>, PolicyError> {
        // The lock is held until the policy is in force, so that the undivided policy belongs to the last reload of two
        // concurrent ones.
        let mut whole = self
            .undivided_policy
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let divided = policy.share_for_replicas(self.replicas);
        self.engine.reload(divided.policy)?;
        *whole = Arc::new(policy);
        Ok(divided.notes)
    }

    /// The policy in force, before it was divided among replicas.
    pub(crate) fn undivided_policy(&self) -> Arc<Policy> {
        let whole = self
            .undivided_policy
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        Arc::clone(&whole)
    }
}

/// A backend's statistics.
#[derive(Debug, Default)]
pub(crate) struct BackendStats {
    /// The name of the backend: `memory` or `redis`.
    pub(crate) backend: &'static str,
    pub(crate) tables: Vec<TableStats>,
    /// Permits that are held now.
    pub(crate) in_flight: u64,
    /// All zero without a store.
    pub(crate) store: RedisStats,
    /// Whether the latest requests were decided by fallback, although there is a store.
    pub(crate) is_fallback_active: bool,
}

/// The options of a decision: with header dialects the response lists all limits, without any only the deciding one.
pub(crate) const fn conditions_for(dialects: &[HeaderDialect]) -> DecideOptions<'static> {
    match dialects {
        [] => DecideOptions::new(),
        _ => DecideOptions::new().listing_limits(),
    }
}

/// Decides a request by the path that may wait: for a store, or in a queue.
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
        // The engine returns `None` only if the options restrict which facts are known.
        None => {
            let Ok(verdict) = engine.decide_async(facts).await;
            verdict
        }
    }
}

/// The backend that counts: memory, or a store.
pub(crate) trait CounterStore: Backend<Error = Infallible> + Sized + 'static {
    /// The table of keys that bring their limits along (`CL.THROTTLE`).
    type Cells: ThrottleKeys;

    /// Whether decisions are immediate, unless a rule lets requests wait.
    const IS_LOCAL: bool;

    /// Decides a request; `dialects` are the header dialects of its response. It waits where the request's rule permits
    /// that.
    fn decide<'f>(
        engine: &Engine<Self>,
        facts: &'f Facts<'f>,
        dialects: &[HeaderDialect],
    ) -> impl Future<Output = RequestDecision<'f>> + Send;

    /// The statistics that metrics show.
    fn backend_stats(&self) -> BackendStats;

    /// Checks that the backend answers in time, on the path of a request. The error says why it doesn't.
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
            // Boxed: few policies let requests wait, and every connection would have room for this large future.
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
    /// Decides a request, and holds its permits until they are released or expire. If no more may be held, the request
    /// isn't decided: permits that nobody holds would be free immediately.
    pub(crate) async fn check<'f>(
        &self,
        facts: &'f Facts<'f>,
        dialects: &[HeaderDialect],
    ) -> Result<RequestDecision<'f>, CapacityExceeded> {
        // Capacity is reserved before the decision, so that most requests without room aren't charged first.
        let room = self.reserve_capacity(Some(facts), None)?;
        let mut verdict = B::decide(&self.engine, facts, dialects).await;
        if let RequestDecision::Allowed(passed) = &mut verdict
            && let Some(permits) = passed.take_permits()
            && let Err(full) = self.hold_permits(&request_key(facts), permits, room)
        {
            // Boxed as it is rare: every connection would have room for this large future.
            Box::pin(self.refund_cancelled(facts)).await;
            return Err(full);
        }
        Ok(verdict)
    }

    /// Reserves capacity for the permits of a request, before it is decided. `None` if there is plenty of capacity, or
    /// no rule and no descriptor limit holds permits.
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

    /// Holds the permits of a request without an id; its key stands for it.
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

    /// Refunds the charge of a request that can't run, after its permits were cancelled. Other requests' permits are
    /// untouched.
    #[cold]
    pub(crate) async fn refund_cancelled(&self, facts: &Facts<'_>) {
        let Ok(_) = self.engine.refund_cancelled_async(facts).await;
    }

    /// Refunds the cost of such a request, and releases the oldest permits held for its key.
    pub(crate) async fn refund(&self, facts: &Facts<'_>) -> RefundResult {
        let is_dropped = self.reservations.take_oldest(&request_key(facts)).is_some();
        self.refund_charge(facts, is_dropped).await
    }

    /// Refunds the cost of such a request. If its permits were dropped, their estimates are refunded already.
    pub(crate) async fn refund_charge(&self, facts: &Facts<'_>, is_dropped: bool) -> RefundResult {
        let Ok(result) = if is_dropped {
            self.engine.refund_dropped_async(facts).await
        } else {
            self.engine.refund_async(facts).await
        };
        result
    }

    /// Resets the counters that such requests are charged to.
    pub(crate) async fn reset(&self, facts: &Facts<'_>) -> RefundResult {
        let Ok(result) = self.engine.reset_request_async(facts).await;
        result
    }
}

/// The key of a request without an id: its facts in sorted order, so that their order in the request doesn't matter.
pub(crate) fn request_key(facts: &Facts<'_>) -> Vec<u8> {
    let mut pairs: Vec<_> = facts.iter().collect();
    pairs.sort_unstable();
    let mut name = vec![b'f'];
    for text in pairs.into_iter().flat_map(|(fact, value)| [fact, value]) {
        // Each text comes with its length, so that different facts can't have the same key.
        name.extend((text.len() as u64).to_le_bytes());
        name.extend(text.as_bytes());
    }
    name
}
