//! What decides for every protocol: the engine, the keys that bring their limits along, and what requests hold.

use std::convert::Infallible;
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tollgate::clock::Clock;
use tollgate_engine::backend::{Backend, Gift, Memory, TableStats};
use tollgate_engine::engine::DescriptorRequest;
use tollgate_engine::verdict::Permits;
use tollgate_engine::{Conditions, Engine, Facts, Policy, PolicyError, Verdict};
use tollgate_http::Dialect;
use tollgate_redis::{Redis, RedisStats};

use crate::denial_log::{Denials, Told};
use crate::request_bounds::Bounds;
use crate::reservations::{Full, Holds, Room};
use crate::settings::Settings;
use crate::throttle_keys::{Cells, LocalThrottleKeys, StoreThrottleKeys};

/// A store is given so long to answer when nobody asks it anything else.
const MEET_STORE: Duration = Duration::from_secs(1);

/// Decides requests, and keeps what they hold.
pub(crate) struct Decider<B: Store> {
    pub(crate) engine: Engine<B>,
    pub(crate) cells: B::Cells,
    pub(crate) holds: Holds,
    pub(crate) bounds: Bounds,
    /// How many count apart: limits that come along with a request are divided by it, as those of the policy are.
    pub(crate) replicas: u32,
    /// The policy in force, before it was divided.
    whole: Mutex<Arc<Policy>>,
}

/// The limits that a service starts with.
pub(crate) struct Limits<B: Store> {
    pub(crate) engine: Engine<B>,
    pub(crate) cells: B::Cells,
    /// The policy, before it was divided.
    pub(crate) whole: Policy,
}

/// So many of those that are refused most are told.
const TOP: usize = 128;

impl<B: Store> Decider<B> {
    pub(crate) fn new(limits: Limits<B>, settings: &Settings, denials: &Arc<Denials>) -> Self {
        let engine = limits.engine.with_observer(Told(Arc::clone(denials)));
        let engine = engine.with_tallies(settings.limiters).with_top_keys(TOP);
        Self {
            engine: engine.with_bounds(tollgate_engine::Bounds {
                descriptors: settings.bounds.descriptors,
                ..tollgate_engine::Bounds::default()
            }),
            cells: limits.cells,
            holds: Holds::new(settings.bounds.holds),
            bounds: settings.bounds.clone(),
            replicas: settings.replicas.max(1),
            whole: Mutex::new(Arc::new(limits.whole)),
        }
    }

    /// Puts another policy in force, a part of it if several share its limits: what is lost by that.
    pub(crate) fn put_in_force(&self, policy: Policy) -> Result<Vec<String>, PolicyError> {
        // Locked until it is in force: of two, the one that is told is the one that came last.
        let mut whole = self.whole.lock().unwrap_or_else(PoisonError::into_inner);
        let divided = policy.divided(self.replicas);
        self.engine.reload(divided.policy)?;
        *whole = Arc::new(policy);
        Ok(divided.notes)
    }

    /// The policy in force, before it was divided.
    pub(crate) fn whole_policy(&self) -> Arc<Policy> {
        let whole = self.whole.lock().unwrap_or_else(PoisonError::into_inner);
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
    pub(crate) is_without_store: bool,
}

/// On which conditions a request is decided whose answer tells of its limits in these dialects: of all of them, or if
/// there are none only of the one that decides.
pub(crate) const fn conditions(dialects: &[Dialect]) -> Conditions<'static> {
    match dialects {
        [] => Conditions::new(),
        _ => Conditions::new().listing_limits(),
    }
}

/// Decides where that may take its time.
async fn decide_in_time<'f, B: Backend<Error = Infallible>>(
    engine: &Engine<B>,
    facts: &'f Facts<'f>,
    dialects: &[Dialect],
) -> Verdict<'f> {
    let Ok(verdict) = engine
        .decide_with_conditions(conditions(dialects), facts)
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
pub(crate) trait Store: Backend<Error = Infallible> + Sized + 'static {
    /// Who keeps keys that bring their limits along.
    type Cells: Cells;

    /// It answers at once, if no rule lets requests wait.
    const IS_HERE: bool;

    /// Decides a request whose answer tells of limits in these dialects. It waits where its rule says so.
    fn decide<'f>(
        engine: &Engine<Self>,
        facts: &'f Facts<'f>,
        dialects: &[Dialect],
    ) -> impl Future<Output = Verdict<'f>> + Send;

    /// What metrics show of it.
    fn backend_stats(&self) -> BackendStats;

    /// Asks whether it is there, as a request would: without an answer in time, why not.
    fn probe(&self) -> impl Future<Output = Result<(), String>> + Send;
}

impl<C: Clock + 'static, W: Clock + 'static> Store for Memory<C, W> {
    type Cells = LocalThrottleKeys<C>;
    const IS_HERE: bool = true;

    #[inline]
    async fn decide<'f>(
        engine: &Engine<Self>,
        facts: &'f Facts<'f>,
        dialects: &[Dialect],
    ) -> Verdict<'f> {
        match dialects {
            // In a box: few policies let requests wait, and every connection has room for the largest step.
            _ if engine.lets_wait() => Box::pin(decide_in_time(engine, facts, dialects)).await,
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

impl Store for Redis {
    type Cells = StoreThrottleKeys;
    const IS_HERE: bool = false;

    async fn decide<'f>(
        engine: &Engine<Self>,
        facts: &'f Facts<'f>,
        dialects: &[Dialect],
    ) -> Verdict<'f> {
        decide_in_time(engine, facts, dialects).await
    }

    fn backend_stats(&self) -> BackendStats {
        let store = self.stats();
        BackendStats {
            backend: "redis",
            tables: self.tables(),
            in_flight: store.slots as u64,
            is_without_store: self.is_fallback_active(),
            store,
        }
    }

    async fn probe(&self) -> Result<(), String> {
        let answered = self.ready(MEET_STORE).await;
        answered.map_err(|error| error.to_string())
    }
}

impl<B: Store> Decider<B> {
    /// Decides a request, and keeps what it holds for as long as nobody gives it back. If no more may be held, it is
    /// not decided: a slot that nobody keeps would be free at once.
    pub(crate) async fn check<'f>(
        &self,
        facts: &'f Facts<'f>,
        dialects: &[Dialect],
    ) -> Result<Verdict<'f>, Full> {
        let room = self.room_for(Some(facts), None)?;
        let mut verdict = B::decide(&self.engine, facts, dialects).await;
        if let Verdict::Passed(passed) = &mut verdict
            && let Some(permits) = passed.take_permits()
            && let Err(full) = self.lend(&name_of(facts), permits, room)
        {
            // In a box, as it is rare: every connection has room for the largest step.
            Box::pin(self.take_back(facts)).await;
            return Err(full);
        }
        Ok(verdict)
    }

    /// Room for what a request may come to hold by its rules and its trees, before anything is decided; none if there is
    /// plenty, or it needs none.
    #[inline]
    pub(crate) fn room_for(
        &self,
        facts: Option<&Facts<'_>>,
        descriptors: Option<&DescriptorRequest<'_>>,
    ) -> Result<Option<Room<'_>>, Full> {
        if self.holds.has_spare_capacity() {
            return Ok(None);
        }
        let engine = &self.engine;
        let needs_room = facts.is_some_and(|facts| engine.would_hold(facts))
            || descriptors.is_some_and(|request| engine.would_hold_descriptors(request));
        needs_room.then(|| self.holds.reserve()).transpose()
    }

    /// Keeps what a request holds, for a caller that has no name for it but what it asked.
    #[cold]
    pub(crate) fn lend(
        &self,
        name: &[u8],
        permits: Permits,
        room: Option<Room<'_>>,
    ) -> Result<(), Full> {
        self.holds.keep(name, permits, self.bounds.hold_time, room)
    }

    /// Takes back what a request was charged that can't run, and whose permits were cancelled. What others hold isn't
    /// touched.
    #[cold]
    pub(crate) async fn take_back(&self, facts: &Facts<'_>) {
        let Ok(_) = self.engine.refund_cancelled_async(facts).await;
    }

    /// Gives back what a request like this cost, and ends the oldest that one holds without a name.
    pub(crate) async fn refund(&self, facts: &Facts<'_>) -> Gift {
        let is_dropped = self.holds.take(&name_of(facts)).is_some();
        self.refund_charge(facts, is_dropped).await
    }

    /// Gives back what a request like this cost. If its permits were dropped, its estimates have come back.
    pub(crate) async fn refund_charge(&self, facts: &Facts<'_>, is_dropped: bool) -> Gift {
        let Ok(gift) = if is_dropped {
            self.engine.refund_dropped_async(facts).await
        } else {
            self.engine.refund_async(facts).await
        };
        gift
    }

    /// Forgets what requests like this have spent.
    pub(crate) async fn reset(&self, facts: &Facts<'_>) -> Gift {
        let Ok(gift) = self.engine.reset_request_async(facts).await;
        gift
    }
}

/// What a request without a name is known by: its facts, in one order whatever order they come in.
pub(crate) fn name_of(facts: &Facts<'_>) -> Vec<u8> {
    let mut pairs: Vec<_> = facts.iter().collect();
    pairs.sort_unstable();
    let mut name = vec![b'f'];
    for text in pairs.into_iter().flat_map(|(fact, value)| [fact, value]) {
        name.extend((text.len() as u64).to_le_bytes());
        name.extend(text.as_bytes());
    }
    name
}
