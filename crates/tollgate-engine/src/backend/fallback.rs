//! What is answered when a store can't be asked, as each rule has chosen.

use std::collections::HashMap;
use std::convert::Infallible;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use pin_project_lite::pin_project;
use tollgate::clock::{Monotonic, Wall};
use tollgate::{Clock, Decision, Outcome, Timestamp};

use super::{Answer, Backend, Check, Limit, Memory};
use crate::policy::OnStoreFailure;

mod breaker;

pub use breaker::Breaker;

use breaker::{Circuit, Gate, Turn};

/// Cut limits that are remembered.
const MOST_CUT: usize = 100_000;
/// Errors are told of at most once in this time.
const TOLD_EVERY: Duration = Duration::from_secs(1);
/// What a request is told that is refused for want of a store.
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
/// locally must all pass.
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
/// #     let mut asking = pin!(engine.decide_by(&facts));
/// #     let Poll::Ready(Ok(verdict)) = asking.as_mut().poll(&mut Context::from_waker(Waker::noop())) else { panic!() };
/// #     passed += u32::from(verdict.is_allowed());
/// # }
/// # let store = engine.backend();
/// // 20 requests under `{name: a, rate: 8/s}`: this node's part is 8 / 4 · 2.
/// assert_eq!(passed, 4);
/// assert!(store.is_active());
/// assert_eq!(store.stats().local, 20);
/// ```
pub struct Fallback<B, C: Clock = Monotonic, W: Clock = Wall> {
    backend: B,
    local: Memory<C, W>,
    nodes: u64,
    circuit: Circuit,
    /// By the number of a counter: the limit that it was cut from, and the part.
    cut: RwLock<HashMap<u64, Arc<(Limit, Limit)>>>,
    counts: Counts,
    /// Whether the latest answer was no store's.
    is_active: AtomicBool,
    active_since: AtomicU64,
    told_at: AtomicU64,
    untold: AtomicU64,
    tell: Option<Box<Tell>>,
}

type Tell = dyn Fn(&StoreEvent<'_>) + Send + Sync;

#[derive(Debug, Default)]
struct Counts {
    errors: AtomicU64,
    open: AtomicU64,
    closed: AtomicU64,
    local: AtomicU64,
}

/// What a [`Fallback`] has counted.
///
/// ```
/// use tollgate_engine::backend::FallbackStats;
///
/// /// Decisions that no store was asked about.
/// fn without(stats: &FallbackStats) -> u64 {
///     stats.open + stats.closed + stats.local
/// }
/// assert_eq!(without(&FallbackStats::default()), 0);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct FallbackStats {
    /// Times that the store was asked in vain.
    pub errors: u64,
    /// Requests that passed for want of a store.
    pub open: u64,
    /// Requests that were refused for want of a store.
    pub closed: u64,
    /// Requests that were judged in this process.
    pub local: u64,
    /// Times that the circuit was broken.
    pub trips: u64,
}

/// Something that happened to a store.
///
/// ```
/// use tollgate_engine::backend::StoreEvent;
///
/// fn line(event: &StoreEvent<'_>) -> String {
///     match event {
///         StoreEvent::Failed { error, untold } => format!("{error} (and {untold} more)"),
///         other => format!("{other:?}"),
///     }
/// }
/// let failed = StoreEvent::Failed { error: "no route", untold: 3 };
/// assert_eq!(line(&failed), "no route (and 3 more)");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StoreEvent<'a> {
    /// It couldn't be asked. Told at most once a second, with how many more there were meanwhile.
    Failed {
        /// Why.
        error: &'a str,
        /// Failures since the last that was told.
        untold: u64,
    },
    /// From now on requests are decided without it.
    FallbackBegan,
    /// It answers again.
    FallbackEnded {
        /// For how long it hadn't.
        after: Duration,
    },
    /// It isn't asked for a while, by rules that circuit-break.
    CircuitOpened {
        /// For how long.
        stays: Duration,
    },
    /// It is asked again.
    CircuitClosed,
}

impl<B: Backend> Fallback<B> {
    /// Puts this backend behind it, on the system's clocks.
    pub fn new(backend: B) -> Self {
        Self::with_local(backend, Memory::new())
    }
}

impl<B: Backend, C: Clock + 'static, W: Clock> Fallback<B, C, W> {
    /// Puts this backend behind it, and keeps local limits in that memory, by its clocks.
    pub fn with_local(backend: B, local: Memory<C, W>) -> Self {
        Self {
            backend,
            local,
            nodes: 1,
            circuit: Circuit::new(Breaker::default()),
            cut: RwLock::default(),
            counts: Counts::default(),
            is_active: AtomicBool::new(false),
            active_since: AtomicU64::new(0),
            told_at: AtomicU64::new(0),
            untold: AtomicU64::new(0),
            tell: None,
        }
    }

    /// How many nodes the fleet has, this one included: one unless said otherwise. A local limit is the
    /// limit divided by it, times two, and never more than the limit.
    #[must_use]
    pub fn nodes(mut self, nodes: u64) -> Self {
        self.nodes = nodes.max(1);
        self
    }

    /// When rules that circuit-break stop asking, and for how long.
    #[must_use]
    pub fn breaker(mut self, breaker: Breaker) -> Self {
        self.circuit = Circuit::new(breaker);
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

    /// Whether requests are decided without the store: the latest that wanted it was.
    pub fn is_active(&self) -> bool {
        self.is_active.load(Ordering::Relaxed)
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
        }
    }

    fn tell(&self, event: &StoreEvent<'_>) {
        if let Some(tell) = &self.tell {
            tell(event);
        }
    }

    /// Whether the store is asked about these.
    fn gate(&self, checks: &[Check<'_>]) -> Gate {
        let breaks =
            |check: &Check<'_>| check.limit.on_store_failure() == OnStoreFailure::CircuitBreak;
        match self.circuit.is_closed() || !checks.iter().all(breaks) {
            true => Gate::Open,
            false => self.circuit.ask(self.local.now()),
        }
    }

    /// The store answered.
    #[inline]
    fn works(&self) {
        // One who fails at the same moment may leave the circuit open alone.
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
        if self.circuit.works() {
            self.tell(&StoreEvent::CircuitClosed);
        }
        if was_active {
            let after = self.local.now() - since;
            self.tell(&StoreEvent::FallbackEnded { after });
        }
    }

    /// The store failed.
    #[cold]
    fn fails(&self, error: &dyn fmt::Display) {
        let now = self.local.now();
        self.counts.errors.fetch_add(1, Ordering::Relaxed);
        let opened = self.circuit.fails(now);
        self.begins(now);
        if let Some(stays) = opened {
            self.tell(&StoreEvent::CircuitOpened { stays });
        }
        // Zero: nothing was told yet.
        let told_at = self.told_at.load(Ordering::Relaxed);
        let since = now.nanos_since(Timestamp::from_nanos(told_at));
        let is_due = told_at == 0 || u128::from(since) >= TOLD_EVERY.as_nanos();
        let claims = |nanos: u64| {
            let relaxed = Ordering::Relaxed;
            let told = &self.told_at;
            told.compare_exchange(told_at, nanos, relaxed, relaxed)
                .is_ok()
        };
        if self.tell.is_some() && is_due && claims(now.as_nanos().max(1)) {
            let untold = self.untold.swap(0, Ordering::Relaxed);
            let error = error.to_string();
            let error = error.as_str();
            self.tell(&StoreEvent::Failed { error, untold });
        } else {
            self.untold.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn begins(&self, now: Timestamp) {
        if !self.is_active.swap(true, Ordering::Relaxed) {
            self.active_since.store(now.as_nanos(), Ordering::Relaxed);
            self.tell(&StoreEvent::FallbackBegan);
        }
    }

    /// The answer without a store.
    #[cold]
    fn answer_without(&self, checks: &[Check<'_>]) -> Answer {
        let choice = |check: &Check<'_>| check.limit.on_store_failure();
        let is_closed = |check: &Check<'_>| choice(check) == OnStoreFailure::Closed;
        let one_more = |count: &AtomicU64| count.fetch_add(1, Ordering::Relaxed);
        if let Some(closed) = checks.iter().position(is_closed) {
            one_more(&self.counts.closed);
            let (denied, zero) = (Outcome::Denied, Duration::ZERO);
            let decision = Decision::new(denied, 0, 0, COME_BACK_AFTER, zero);
            return Answer {
                fallback: Some(OnStoreFailure::Closed),
                ..Answer::new(Some(closed), decision)
            };
        }
        let is_local = |check: &Check<'_>| choice(check) != OnStoreFailure::Open;
        let local: Vec<_> = (checks.iter().enumerate())
            .filter(|(_, check)| is_local(check))
            .map(|(number, check)| (number, self.cut(check.limit), check))
            .collect();
        let Some((_, _, first)) = local.first() else {
            one_more(&self.counts.open);
            return Answer {
                fallback: Some(OnStoreFailure::Open),
                ..Answer::new(None, Decision::UNLIMITED)
            };
        };
        one_more(&self.counts.local);
        let own: Vec<_> = (local.iter())
            .map(|(_, cut, check)| Check {
                limit: &cut.1,
                ..**check
            })
            .collect();
        let answer = self.local.answer(&own);
        let decider = answer.decider.and_then(|decider| local.get(decider));
        let choice = choice(decider.map_or(first, |(_, _, check)| check));
        Answer {
            decider: decider.map(|(number, ..)| *number),
            fallback: Some(choice),
            ..answer
        }
    }

    /// This node's part of a limit.
    fn cut(&self, limit: &Limit) -> Arc<(Limit, Limit)> {
        let known = self.cut.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(pair) = known.get(&limit.counter().id)
            && pair.0.kind() == limit.kind()
            && pair.0.counter().name == limit.counter().name
        {
            return Arc::clone(pair);
        }
        drop(known);
        // What can't be cut is judged whole.
        let cut = limit.cut((2, self.nodes)).unwrap_or_else(|_| limit.clone());
        let pair = Arc::new((limit.clone(), cut));
        let mut known = self.cut.write().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= MOST_CUT {
            known.clear();
        }
        known.insert(limit.counter().id, Arc::clone(&pair));
        pair
    }
}

impl<B: Backend, C: Clock + 'static, W: Clock> Backend for Fallback<B, C, W> {
    type Error = Infallible;
    type Asking<'a>
        = AskingOrFallback<'a, B, C, W>
    where
        Self: 'a;

    fn check<'a>(&'a self, checks: &'a [Check<'a>]) -> Self::Asking<'a> {
        let gate = self.gate(checks);
        let asking = match gate {
            Gate::Open | Gate::Probe => Some(self.backend.check(checks)),
            Gate::Shut => None,
        };
        AskingOrFallback {
            fallback: self,
            checks,
            asking,
            turn: self.circuit.turn(gate),
        }
    }

    async fn check_each<'a>(
        &'a self,
        checks: &'a [Check<'a>],
    ) -> Result<(Answer, Vec<Decision>), Infallible> {
        let gate = self.gate(checks);
        let mut turn = self.circuit.turn(gate);
        if gate != Gate::Shut {
            match self.backend.check_each(checks).await {
                Ok(told) => {
                    if !told.0.was_known {
                        turn.is_over();
                        self.works();
                    }
                    return Ok(told);
                }
                Err(error) => {
                    turn.is_over();
                    self.fails(&error);
                }
            }
        }
        let answer = self.answer_without(checks);
        // Of the others no more is known than that they were not the ones.
        let mut each = vec![Decision::UNLIMITED; checks.len()];
        if let Some(decider) = answer.decider.and_then(|decider| each.get_mut(decider)) {
            *decider = answer.decision;
        }
        Ok((answer, each))
    }

    async fn give_back<'a>(&'a self, checks: &'a [Check<'a>]) -> Result<(), Infallible> {
        if let Err(error) = self.backend.give_back(checks).await {
            self.fails(&error);
        }
        Ok(())
    }

    fn now(&self) -> Timestamp {
        self.backend.now()
    }

    fn takes(&self, limit: &Limit) -> Result<(), String> {
        self.backend.takes(limit)
    }

    fn improvements(&self) -> u64 {
        self.backend.improvements()
    }
}

pin_project! {
    /// The answer of a backend, or the one without it.
    ///
    /// ```
    /// use tollgate_engine::backend::{AskingOrFallback, Backend, Fallback, Memory};
    ///
    /// let store = Fallback::new(Memory::builder().keys(10).build());
    /// let asking: AskingOrFallback<'_, _, _, _> = store.check(&[]);
    /// assert!(!store.is_active());
    /// # drop(asking);
    /// ```
    pub struct AskingOrFallback<'a, B: Backend, C: Clock, W: Clock> {
        fallback: &'a Fallback<B, C, W>,
        checks: &'a [Check<'a>],
        #[pin]
        asking: Option<B::Asking<'a>>,
        turn: Turn<'a>,
    }
}

impl<B: Backend, C: Clock + 'static, W: Clock> Future for AskingOrFallback<'_, B, C, W> {
    type Output = Result<Answer, Infallible>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let own = self.project();
        let Some(asking) = own.asking.as_pin_mut() else {
            return Poll::Ready(Ok(own.fallback.answer_without(own.checks)));
        };
        Poll::Ready(Ok(match ready!(asking.poll(context)) {
            Ok(answer) => {
                if !answer.was_known {
                    own.turn.is_over();
                    own.fallback.works();
                }
                answer
            }
            Err(error) => {
                own.turn.is_over();
                own.fallback.fails(&error);
                own.fallback.answer_without(own.checks)
            }
        }))
    }
}

impl<B: Backend, C: Clock, W: Clock> fmt::Debug for AskingOrFallback<'_, B, C, W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AskingOrFallback").finish_non_exhaustive()
    }
}

impl<B: fmt::Debug, C: Clock, W: Clock> fmt::Debug for Fallback<B, C, W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fallback")
            .field("backend", &self.backend)
            .field("nodes", &self.nodes)
            .field("is_active", &self.is_active)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use tollgate::clock::Manual;

    use super::*;

    #[test]
    fn a_store_that_works_closes_the_circuit_whatever_else_is_known() {
        let clock = Manual::new();
        let memory = || Memory::builder().keys(10).clock(clock.clone()).build();
        let breaker = Breaker {
            errors: 1,
            ..Breaker::default()
        };
        let fallback = Fallback::with_local(memory(), memory()).breaker(breaker);
        // One failed while another one that had an answer said that all is well.
        fallback.circuit.fails(clock.now());
        assert!(!fallback.is_active() && !fallback.circuit.is_closed());
        fallback.works();
        assert!(fallback.circuit.is_closed());
    }
}
