//! What is answered when a store can't be asked, as each rule has chosen.

use std::convert::Infallible;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::Waker;
use std::time::Duration;

use tollgate::clock::{Monotonic, Wakeup, Wall};
use tollgate::{Clock, Decision, Outcome, Timestamp};
use tollgate_adaptive::breaker::{Admission, BreakerEvent, Circuit, Entry, Trip};

use super::{Backend, Gift, Local, Memory};
use crate::limits::{Answer, Check, Limit, Source};
use crate::policy::{Counting, OnStoreFailure};

mod asking;
mod breaker;
mod event;
mod first;
mod peek;

pub use asking::AskingOrFallback;
pub use breaker::Breaker;
pub use event::{FallbackStats, StoreEvent};
pub use tollgate_adaptive::breaker::State as BreakerState;

use asking::Way;
use breaker::{Gate, Turn};
use event::{Counts, Tell, Telling};

/// How long a request is told to wait if it is refused because the store couldn't be asked.
const COME_BACK_AFTER: Duration = Duration::from_secs(1);

/// A backend that always has an answer: if the one behind it fails, what each rule has chosen.
///
/// | [`OnStoreFailure`] | while the store can't be asked |
/// |---|---|
/// | `Open` | it passes, uncharged |
/// | `Closed` | it is refused, as [`Cause::StoreFailure`](crate::verdict::Cause::StoreFailure) |
/// | `Local` | it is judged in this process, by the limit divided by the number of nodes, times two |
/// | `CircuitBreak` | likewise; and once the [`Breaker`] trips, the store isn't even asked for a while |
///
/// Of a request that meets rules with different choices, closed wins, and then those that are judged
/// locally must all pass. Rules with `counting: local` are judged here in any case, and first: a refusal by one
/// asks the store nothing.
///
/// ```
/// use std::future::{Ready, ready};
/// use tollgate::{Clock, Timestamp, clock::Manual};
/// use tollgate_engine::backend::{Answer, Backend, Check, Fallback};
/// # use std::{pin::pin, task::{Context, Poll, Waker}};
/// # use tollgate_engine::{Engine, Facts, Policy, document::Format};
///
/// /// A store that is down.
/// struct Down(Manual);
///
/// impl Backend for Down {
///     type Error = &'static str;
///     type Asking<'a> = Ready<Result<Answer, Self::Error>>;
///     fn check<'a>(&'a self, _: &'a [Check<'a>]) -> Self::Asking<'a> {
///         ready(Err("down"))
///     }
///     fn now(&self) -> Timestamp {
///         self.0.now()
///     }
/// }
///
/// let store = Fallback::new(Down(Manual::new())).nodes(4);
/// # let text = "limits: [{name: a, rate: 8/s}]";
/// # let policy = Policy::from_text(text, Format::Yaml).expect("a policy").policy;
/// # let engine = Engine::new(policy, store).expect("a policy");
/// # let facts = Facts::new();
/// # let mut passed = 0;
/// # for _ in 0..20 {
/// #     let mut asking = pin!(engine.decide_async(&facts));
/// #     let Poll::Ready(Ok(verdict)) = asking.as_mut().poll(&mut Context::from_waker(Waker::noop())) else { panic!() };
/// #     passed += u32::from(verdict.passed().is_some());
/// # }
/// # let store = engine.backend();
/// // 20 requests under `{name: a, rate: 8/s}`: this node's part is 8 / 4 · 2.
/// assert_eq!(passed, 4);
/// assert!(store.is_active());
/// assert_eq!(store.stats().local, 20);
/// ```
pub struct Fallback<B, C: Clock = Monotonic, W: Clock = Wall> {
    backend: B,
    local: Arc<Local<C, W>>,
    circuit: Circuit,
    counts: Counts,
    /// Whether the latest answer came without the store.
    is_active: AtomicBool,
    active_since: AtomicU64,
    telling: Telling,
    tell: Option<Box<Tell>>,
}

impl<B: Backend> Fallback<B> {
    /// Puts this backend behind it, on the system's clocks.
    pub fn new(backend: B) -> Self {
        Self::with_local(backend, Arc::new(Local::new(Memory::new())))
    }
}

impl<B: Backend, C: Clock + 'static, W: Clock + 'static> Fallback<B, C, W> {
    /// Puts this backend behind it, and decides by that part of the limits, by its clocks. The backend may
    /// note in it what the store says.
    pub fn with_local(backend: B, local: Arc<Local<C, W>>) -> Self {
        Self {
            backend,
            local,
            circuit: Breaker::default().circuit(),
            counts: Counts::default(),
            is_active: AtomicBool::new(false),
            active_since: AtomicU64::new(0),
            telling: Telling::default(),
            tell: None,
        }
    }

    /// How many nodes the fleet has, this one included: one unless said otherwise. A local limit is the
    /// limit divided by it, times two, and never more than the limit. [`Local::set_nodes`] changes it later.
    #[must_use]
    pub fn nodes(self, nodes: u64) -> Self {
        self.local.set_nodes(nodes);
        self
    }

    /// When rules that circuit-break stop asking, and for how long.
    #[must_use]
    pub fn breaker(mut self, breaker: Breaker) -> Self {
        self.circuit = breaker.circuit();
        self
    }

    /// Tells this what happens to the store, on the thread that notices.
    #[must_use]
    pub fn on_event(mut self, tell: impl Fn(&StoreEvent<'_>) + Send + Sync + 'static) -> Self {
        self.tell = Some(Box::new(tell));
        self
    }

    /// The backend behind it.
    pub fn store(&self) -> &B {
        &self.backend
    }

    /// This process's part of the limits.
    pub fn local(&self) -> &Local<C, W> {
        &self.local
    }

    /// Whether requests are decided without the store: true if the latest request that needed it was.
    pub fn is_active(&self) -> bool {
        self.is_active.load(Ordering::Relaxed)
    }

    /// Whether rules that circuit-break ask the store now.
    pub fn breaker_state(&self) -> BreakerState {
        self.circuit.state(self.now())
    }

    /// What it has counted.
    pub fn stats(&self) -> FallbackStats {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        FallbackStats {
            errors: read(&self.counts.errors),
            open: read(&self.counts.open),
            closed: read(&self.counts.closed),
            local: read(&self.counts.local),
            trips: self.circuit.trips(),
            unnoted: self.local.forgotten(),
        }
    }

    fn tell(&self, event: &StoreEvent<'_>) {
        if let Some(tell) = &self.tell {
            tell(event);
        }
    }

    fn now(&self) -> Timestamp {
        self.local.memory().clock().now()
    }

    /// Whether the store is asked about these.
    #[inline]
    fn gate(&self, checks: &[Check<'_>]) -> Gate {
        if self.circuit.is_closed() || !checks.iter().all(breaks) {
            Gate::Open
        } else {
            match self.circuit.enter(self.now()) {
                Admission::Pass(_) => Gate::Open,
                Admission::Probe(entry) => Gate::Probe(entry),
                Admission::Refused { .. } => Gate::Shut,
            }
        }
    }

    /// The store answered, or did when it was last asked.
    #[inline]
    fn works(&self, checks: &[Check<'_>], source: Source) {
        if source == Source::Asked && checks.iter().any(breaks) {
            // No answer is slow: what waits too long for a store gives up, and fails.
            self.circuit
                .answered(Entry::beside(), self.now(), Duration::ZERO);
        }
        // A failure at the same moment may leave the circuit open although nothing is active.
        if self.is_active.load(Ordering::Relaxed) || !self.circuit.is_closed() {
            self.recovered();
        }
    }

    // A failure is counted before it is active, and what is active ends before the count does: whatever
    // happens at once, what was counted is active, so that the next answer clears it.
    #[cold]
    fn recovered(&self) {
        let since = Timestamp::from_nanos(self.active_since.load(Ordering::Relaxed));
        let was_active = self.is_active.swap(false, Ordering::Relaxed);
        if self.circuit.closes() {
            self.tell(&StoreEvent::CircuitClosed);
        }
        if was_active {
            let after = self.now() - since;
            self.tell(&StoreEvent::FallbackEnded { after });
        }
    }

    /// The store failed a request that was let through so.
    #[cold]
    fn fails(&self, checks: &[Check<'_>], gate: Gate, error: &B::Error) {
        let now = self.now();
        self.counts.errors.fetch_add(1, Ordering::Relaxed);
        if self.backend.is_of_key(error) {
            // The store has answered: what is wrong is under that key.
            if matches!(gate, Gate::Probe(_)) && self.circuit.closes() {
                self.tell(&StoreEvent::CircuitClosed);
            }
            return self.tell_of(now, |untold| {
                let error = &*error.to_string();
                self.tell(&StoreEvent::KeyFailed { error, untold });
            });
        }
        // Where no rule breaks circuits there is none to break, nor while others are answered.
        let is_in_part = self.backend.is_in_part(error);
        let breaks = checks.iter().any(breaks) && !is_in_part;
        let happened = breaks.then(|| self.circuit.fails(gate.entry(), now));
        let opened = match happened.flatten() {
            // A probe that fails only prolongs it.
            Some(BreakerEvent::Opened { stays, why }) if why != Trip::Probe => Some(stays),
            _ => None,
        };
        if !self.is_active.swap(true, Ordering::Relaxed) {
            self.active_since.store(now.as_nanos(), Ordering::Relaxed);
            self.tell(&StoreEvent::FallbackBegan);
        }
        if let Some(stays) = opened {
            self.tell(&StoreEvent::CircuitOpened { stays });
        } else if is_in_part && matches!(gate, Gate::Probe(_)) && self.circuit.closes() {
            self.tell(&StoreEvent::CircuitClosed);
        }
        self.tell_of(now, |untold| {
            let error = &*error.to_string();
            self.tell(&StoreEvent::Failed { error, untold });
        });
    }

    /// Tells of a failure, if it is time for that: also how many weren't told.
    fn tell_of(&self, now: Timestamp, tell: impl FnOnce(u64)) {
        if self.tell.is_some()
            && let Some(untold) = self.telling.is_due(now)
        {
            tell(untold);
        }
    }

    /// What became of something that a store was told to give.
    fn given(&self, checks: &[Check<'_>], told: Result<Gift, B::Error>) -> Gift {
        told.unwrap_or_else(|error| {
            self.fails(checks, Gate::Open, &error);
            Gift::Lost
        })
    }

    /// The answer without a store.
    #[cold]
    fn answer_without(&self, checks: &[Check<'_>]) -> Answer {
        let choice = |check: &Check<'_>| check.limit.on_store_failure();
        let is_closed = |check: &Check<'_>| choice(check) == OnStoreFailure::Closed;
        let one_more = |count: &AtomicU64| count.fetch_add(1, Ordering::Relaxed);
        if let Some((number, denied)) = self.backend.known_denial(checks) {
            // What the store denied for an hour it would deny now.
            return Answer {
                source: Source::Known,
                ..Answer::new(Some(number), denied)
            };
        }
        if let Some(closed) = checks.iter().position(is_closed) {
            one_more(&self.counts.closed);
            return Answer {
                fallback: Some(OnStoreFailure::Closed),
                ..Answer::new(Some(closed), refusal_of(COME_BACK_AFTER))
            };
        }
        let is_local = |check: &Check<'_>| choice(check) != OnStoreFailure::Open;
        let (numbers, own): (Vec<usize>, Vec<Check<'_>>) = (checks.iter().copied().enumerate())
            .filter(|(_, check)| is_local(check))
            .unzip();
        let Some(first) = own.first() else {
            one_more(&self.counts.open);
            return Answer {
                fallback: Some(OnStoreFailure::Open),
                ..Answer::new(None, Decision::UNLIMITED)
            };
        };
        one_more(&self.counts.local);
        for check in &own {
            // What the store gave ahead counts as spent before anything is decided here.
            let (limit, fingerprint) = (check.limit, check.key.fingerprint());
            let spent = self.backend.spent_ahead(check);
            self.local.note_spent(limit, fingerprint, spent);
        }
        let answer = self.local.decide(&own);
        let decider = answer.decider.filter(|decider| *decider < own.len());
        let choice = choice(decider.map_or(first, |decider| &own[decider]));
        Answer {
            decider: decider.map(|decider| numbers[decider]),
            fallback: Some(choice),
            ..answer
        }
    }

    /// Asks the store, or answers without it.
    async fn ask_each(&self, checks: &[Check<'_>]) -> (Answer, Vec<Decision>) {
        let gate = self.gate(checks);
        let mut turn = Turn::new(&self.circuit, gate);
        if gate != Gate::Shut {
            match self.backend.check_each(checks).await {
                Ok(told) => {
                    if told.0.source != Source::Known {
                        turn.is_over();
                        self.works(checks, told.0.source);
                    }
                    return told;
                }
                Err(error) => {
                    turn.is_over();
                    self.fails(checks, gate, &error);
                }
            }
        }
        let answer = self.answer_without(checks);
        // Of the others it is only known that they didn't decide.
        let mut each = vec![Decision::UNLIMITED; checks.len()];
        if let Some(decider) = answer.decider.and_then(|decider| each.get_mut(decider)) {
            *decider = answer.decision;
        }
        (answer, each)
    }
}

/// The refusal of a request because the store couldn't be asked.
fn refusal_of(wait: Duration) -> Decision {
    Decision::new(Outcome::Denied, 0, 0, wait, Duration::ZERO)
}

/// Whether a look found nobody to ask, and its limit is closed then. No limit says of nothing when there will be more.
pub(crate) fn is_failure(check: &Check<'_>, said: &Decision) -> bool {
    check.limit.on_store_failure() == OnStoreFailure::Closed && *said == refusal_of(COME_BACK_AFTER)
}

#[inline]
fn breaks(check: &Check<'_>) -> bool {
    check.limit.on_store_failure() == OnStoreFailure::CircuitBreak
}

/// Whether a check is counted here although there is a store.
#[inline]
fn is_counted_here(check: &Check<'_>) -> bool {
    check.limit.counting() == Counting::Local
}

impl<B: Backend, C: Clock + 'static, W: Clock + 'static> Backend for Fallback<B, C, W> {
    type Error = Infallible;
    type Asking<'a>
        = AskingOrFallback<'a, B, C, W>
    where
        Self: 'a;

    fn check<'a>(&'a self, checks: &'a [Check<'a>]) -> Self::Asking<'a> {
        if checks.iter().any(is_counted_here) {
            return if checks.iter().all(is_counted_here) {
                let answer = Some(self.local.memory().answer(checks));
                AskingOrFallback::new(self, checks, Gate::Open, Way::Said { answer })
            } else {
                self.check_here_first(checks)
            };
        }
        let gate = self.gate(checks);
        let way = match gate {
            Gate::Open | Gate::Probe(_) => Way::Store {
                asking: self.backend.check(checks),
            },
            Gate::Shut => Way::Without,
        };
        AskingOrFallback::new(self, checks, gate, way)
    }

    async fn check_each<'a>(
        &'a self,
        checks: &'a [Check<'a>],
    ) -> Result<(Answer, Vec<Decision>), Infallible> {
        Ok(if checks.iter().any(is_counted_here) {
            self.each_here_first(checks).await
        } else {
            self.ask_each(checks).await
        })
    }

    async fn peek<'a>(&'a self, checks: &'a [Check<'a>]) -> Result<Vec<Decision>, Infallible> {
        Ok(self.look_at_each(checks).await)
    }

    async fn forget<'a>(&'a self, checks: &'a [Check<'a>]) -> Result<Gift, Infallible> {
        // Here too: what decides while there is no store remembers what that had admitted.
        self.local.memory().forget(checks);
        let there = checks
            .iter()
            .copied()
            .filter(|check| !is_counted_here(check));
        let there: Vec<_> = there.collect();
        let forgotten = self.backend.forget(&there).await;
        Ok(self.given(&there, forgotten))
    }

    async fn give_back<'a>(&'a self, checks: &'a [Check<'a>]) -> Result<Gift, Infallible> {
        let (here, there): (Vec<_>, Vec<_>) = checks
            .iter()
            .copied()
            .partition(|check| is_counted_here(check));
        self.local.memory().give_back(&here);
        let given = self.backend.give_back(&there).await;
        Ok(self.given(&there, given))
    }

    fn refund_detached(&self, checks: &[Check<'_>]) {
        let (here, there): (Vec<_>, Vec<_>) = checks
            .iter()
            .copied()
            .partition(|check| is_counted_here(check));
        self.local.memory().give_back(&here);
        self.backend.refund_detached(&there);
    }

    fn now(&self) -> Timestamp {
        self.backend.now()
    }

    fn wall(&self) -> Timestamp {
        self.local.memory().wall()
    }

    fn wake_at(&self, at: Timestamp, waker: &Waker) -> Option<Wakeup> {
        self.backend.wake_at(at, waker)
    }

    fn timer(&self) -> Arc<dyn Clock> {
        self.local.memory().timer()
    }

    fn supports(&self, limit: &Limit) -> Result<(), String> {
        match limit.counting() {
            Counting::Local => self.local.memory().supports(limit),
            _ => self.backend.supports(limit),
        }
    }

    fn epoch(&self) -> u64 {
        let here = self.local.memory().epoch();
        self.backend.epoch().wrapping_add(here)
    }

    fn repeats_refusals(&self) -> bool {
        self.backend.repeats_refusals()
    }
}

impl<B: fmt::Debug, C: Clock, W: Clock> fmt::Debug for Fallback<B, C, W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fallback")
            .field("backend", &self.backend)
            .field("local", &self.local)
            .field("is_active", &self.is_active)
            .finish_non_exhaustive()
    }
}
