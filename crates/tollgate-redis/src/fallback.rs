//! The answer while a store is unreachable, as each limit has chosen.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use derive_more::Debug;
use futures_util::future::{Either, lazy};
use tollgate::clock::{Monotonic, Wall};
use tollgate::{Clock, Decision, Timestamp};
use tollgate_adaptive::breaker::{Admission, AdmittedCall, BreakerEvent, Circuit, TripReason};
use tollgate_engine::backend::{
    Answer, AnswerSource, Backend, Check, CheckResult, Clocks, FailureKind, Limit, Memory, Refund,
    RefundResult, StoreUnavailable,
};
use tollgate_engine::policy::{Counting, OnStoreFailure};

use crate::failure_counters::FailureCounters;
use crate::local_limits::LocalLimits;

mod breaker;
mod events;
mod local_first;
mod remote_backend;

pub use breaker::BreakerThresholds;
pub use events::{FallbackStats, StoreEvent};
pub use remote_backend::{FailureScope, RemoteBackend, RemoteFailure};
pub use tollgate_adaptive::breaker::CircuitState as BreakerState;

use breaker::ProbeGuard;
use events::{EventThrottle, FallbackCounters};
use local_first::CheckSubset;

pub(crate) type EventListener = dyn Fn(&StoreEvent<'_>) + Send + Sync;

/// A backend that always has an answer: if the backend behind it fails, each rule's choice decides.
///
/// | [`OnStoreFailure`] | while the store is unreachable |
/// |---|---|
/// | `Open` | the request passes, uncharged |
/// | `Closed` | the request is denied, as [`Cause::StoreFailure`](tollgate_engine::verdict::Cause::StoreFailure) |
/// | `Local` | this process decides, by the limit × 2 ÷ nodes |
/// | `CircuitBreak` | as `Local`; beyond the [`BreakerThresholds`], the store isn't queried for a while |
///
/// If the rules of a request chose differently, closed wins. Otherwise all rules that are decided locally must
/// allow it. Rules with `counting: local` are always decided here, and first: if one denies, the store isn't
/// queried.
///
/// ```
/// use tollgate::{Clock, Timestamp, clock::Manual};
/// use tollgate_engine::backend::{Answer, Backend, Check, CheckResult};
/// use tollgate_redis::{Fallback, RemoteBackend};
/// # use std::{pin::pin, task::{Context, Poll, Waker}};
/// # use tollgate_engine::{Engine, Facts, Policy, document::Format};
///
/// /// A store that is down.
/// struct Down(Manual);
///
/// impl Backend for Down {
///     type Error = &'static str;
///     async fn ask<'a>(
///         &'a self,
///         _: &'a [Check<'a>],
///         _: Option<&'a mut Vec<CheckResult>>,
///     ) -> Result<Answer, Self::Error> {
///         Err("down")
///     }
///     fn now(&self) -> Timestamp {
///         self.0.now()
///     }
/// }
///
/// impl RemoteBackend for Down {}
///
/// let store = Fallback::new(Down(Manual::new())).node_count(4);
/// # let text = "limits: [{name: a, rate: 8/s}]";
/// # let policy = Policy::from_text(text, Format::Yaml).expect("a policy").policy;
/// # let engine = Engine::new(policy, store).expect("a policy");
/// # let facts = Facts::new();
/// # let mut passed = 0;
/// # for _ in 0..20 {
/// #     let mut asking = pin!(engine.decide_async(&facts));
/// #     let Poll::Ready(Ok(verdict)) = asking.as_mut().poll(&mut Context::from_waker(Waker::noop())) else { panic!() };
/// #     passed += u32::from(verdict.allowed().is_some());
/// # }
/// # let store = engine.backend();
/// // 20 requests under `{name: a, rate: 8/s}`: this node's share is 8 × 2 ÷ 4.
/// assert_eq!(passed, 4);
/// assert!(store.is_active());
/// assert_eq!(store.stats().local, 20);
/// ```
#[derive(Debug)]
#[debug("Fallback({store:?}, {local:?}, {is_active:?})")]
pub struct Fallback<B, C: Clock = Monotonic, W: Clock = Wall> {
    store: B,
    local: Arc<LocalLimits<C, W>>,
    circuit: Circuit,
    counters: FallbackCounters,
    /// Whether the latest answer came without the store.
    is_active: AtomicBool,
    active_since: AtomicU64,
    /// Counts failures by kind, of every call.
    pub(crate) failures: FailureCounters,
    event_throttle: EventThrottle,
    on_event: Option<Box<EventListener>>,
}

impl<B: RemoteBackend> Fallback<B> {
    /// Puts this backend behind the fallback, on the system's clocks.
    pub fn new(store: B) -> Self {
        Self::with_local(store, Arc::new(LocalLimits::new(Memory::new())))
    }
}

impl<B: RemoteBackend, C: Clock + 'static, W: Clock + 'static> Fallback<B, C, W> {
    /// Puts this backend behind the fallback, with this share of the limits and its clocks. The backend may
    /// record the store's decisions in it.
    pub fn with_local(store: B, local: Arc<LocalLimits<C, W>>) -> Self {
        let Clocks { clock: timer, wall } = local.memory().clocks();
        Self {
            store,
            local,
            circuit: BreakerThresholds::default().circuit(),
            counters: FallbackCounters::default(),
            is_active: AtomicBool::new(false),
            active_since: AtomicU64::new(0),
            failures: FailureCounters::new(timer, wall),
            event_throttle: EventThrottle::default(),
            on_event: None,
        }
    }

    /// How many nodes the fleet has, this one included; one by default. A local limit is the limit × 2 ÷ nodes,
    /// at most the limit. [`LocalLimits::set_node_count`] changes it later.
    #[must_use]
    pub fn node_count(self, nodes: u64) -> Self {
        self.local.set_node_count(nodes);
        self
    }

    /// When rules that circuit-break stop querying the store, and for how long.
    #[must_use]
    pub fn breaker(mut self, breaker: BreakerThresholds) -> Self {
        self.circuit = breaker.circuit();
        self
    }

    /// Calls this for each event of the store, on the thread that notices it.
    #[must_use]
    pub fn on_event(mut self, tell: impl Fn(&StoreEvent<'_>) + Send + Sync + 'static) -> Self {
        self.on_event = Some(Box::new(tell));
        self
    }

    /// The backend behind the fallback.
    pub fn store(&self) -> &B {
        &self.store
    }

    /// This process's share of the limits.
    pub fn local(&self) -> &LocalLimits<C, W> {
        &self.local
    }

    /// Whether requests are decided without the store: true if the latest request that needed the store was.
    pub fn is_active(&self) -> bool {
        self.is_active.load(Ordering::Relaxed)
    }

    /// State of the circuit breaker: whether rules that circuit-break query the store now.
    pub fn breaker_state(&self) -> BreakerState {
        self.circuit.state(self.now())
    }

    /// The counters of this fallback.
    pub fn stats(&self) -> FallbackStats {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        FallbackStats {
            errors: read(&self.counters.errors),
            open: read(&self.counters.open),
            closed: read(&self.counters.closed),
            local: read(&self.counters.local),
            trips: self.circuit.trips(),
            unrecorded: self.local.lost_reports(),
        }
    }

    fn emit(&self, event: &StoreEvent<'_>) {
        if let Some(on_event) = &self.on_event {
            on_event(event);
        }
    }

    fn now(&self) -> Timestamp {
        self.local.memory().clock().now()
    }

    /// Admits a request to the store through the circuit breaker; `None` if the circuit is open.
    #[inline]
    fn admit_to_store(&self, checks: &[Check<'_>]) -> Option<ProbeGuard<'_>> {
        let circuit = &self.circuit;
        let entry = if circuit.is_closed() || !checks.iter().all(breaks_circuit) {
            None
        } else {
            match circuit.admit(self.now()) {
                Admission::Pass(_) => None,
                Admission::Probe(entry) => Some(entry),
                Admission::Denied { .. } => return None,
            }
        };
        Some(ProbeGuard { circuit, entry })
    }

    /// Records that the store answered this request, or the latest one if this needed no query.
    #[inline]
    fn record_success(&self, checks: &[Check<'_>], source: AnswerSource) {
        if source == AnswerSource::Asked && checks.iter().any(breaks_circuit) {
            // Every answer counts as fast: a slow one would have timed out, and is a failure.
            self.circuit
                .record_answer(AdmittedCall::untracked(), self.now(), Duration::ZERO);
        }
        // A concurrent failure may leave the circuit open although the fallback isn't active, so both are read.
        if self.is_active.load(Ordering::Relaxed) || !self.circuit.is_closed() {
            self.end_fallback();
        }
    }

    // A failure is counted in the circuit before the fallback becomes active, and the fallback ends before the
    // circuit is cleared. So with any interleaving, a counted failure leaves the fallback active, and the next
    // answer clears it.
    #[cold]
    fn end_fallback(&self) {
        let since = Timestamp::from_nanos(self.active_since.load(Ordering::Relaxed));
        let was_active = self.is_active.swap(false, Ordering::Relaxed);
        if self.circuit.close() {
            self.emit(&StoreEvent::CircuitClosed);
        }
        if was_active {
            let after = self.now() - since;
            self.emit(&StoreEvent::FallbackEnded { after });
        }
    }

    /// Counts a failure by its kind.
    fn record_failure<T>(
        &self,
        asked: Result<T, B::Error>,
    ) -> Result<T, (RemoteFailure, B::Error)> {
        asked.map_err(|error| {
            let failure = self.store.failure(&error);
            self.failures.record_failure(failure.kind, &error);
            (failure, error)
        })
    }

    /// Handles a failure of the store for a request, which may have been a probe.
    #[cold]
    fn handle_failure(
        &self,
        checks: &[Check<'_>],
        probe: Option<AdmittedCall>,
        failure: RemoteFailure,
        error: &B::Error,
    ) -> FailureKind {
        let now = self.now();
        self.counters.errors.fetch_add(1, Ordering::Relaxed);
        // The circuit opens only if a rule of the request circuit-breaks, and no other part of the store
        // answers.
        let breaks = checks.iter().any(breaks_circuit) && failure.extent == FailureScope::Whole;
        let entry = probe.unwrap_or_else(AdmittedCall::untracked);
        let happened = breaks.then(|| self.circuit.record_failure(entry, now));
        if failure.extent != FailureScope::Key && !self.is_active.swap(true, Ordering::Relaxed) {
            self.active_since.store(now.as_nanos(), Ordering::Relaxed);
            self.emit(&StoreEvent::FallbackStarted);
        }
        match happened.flatten() {
            // A failed probe only keeps the circuit open for longer.
            Some(BreakerEvent::Opened { stays, why }) if why != TripReason::Probe => {
                self.emit(&StoreEvent::CircuitOpened { open_for: stays });
            }
            // The store has answered, or a part of it, so the probe succeeded.
            _ if failure.extent != FailureScope::Whole
                && probe.is_some()
                && self.circuit.close() =>
            {
                self.emit(&StoreEvent::CircuitClosed);
            }
            _ => {}
        }
        if self.on_event.is_some()
            && let Some(suppressed) = self.event_throttle.try_emit(now)
        {
            let error = &*error.to_string();
            self.emit(&match failure.extent {
                FailureScope::Key => StoreEvent::KeyFailed { error, suppressed },
                _ => StoreEvent::Failed { error, suppressed },
            });
        }
        failure.kind
    }

    /// The answer without the store, which failed with this kind.
    #[cold]
    fn answer_locally(&self, checks: &[Check<'_>], kind: FailureKind) -> Answer {
        let choice = |check: &Check<'_>| check.limit.on_store_failure();
        let is_closed = |check: &Check<'_>| choice(check) == OnStoreFailure::Closed;
        let one_more = |count: &AtomicU64| count.fetch_add(1, Ordering::Relaxed);
        let unavailable = |fallback| StoreUnavailable { kind, fallback };
        if let Some((number, denied)) = self.store.known_denial(checks) {
            // The store would repeat a denial that hasn't expired.
            return Answer::known(Some(number), denied);
        }
        if let Some(closed) = checks.iter().position(is_closed) {
            one_more(&self.counters.closed);
            return Answer::unavailable(closed, unavailable(OnStoreFailure::Closed));
        }
        let is_local = |check: &Check<'_>| choice(check) != OnStoreFailure::Open;
        let own = CheckSubset::of(checks, is_local);
        let Some(first) = own.checks.first() else {
            one_more(&self.counters.open);
            let mut answer = Answer::new(None, Decision::UNLIMITED);
            answer.unavailable = Some(unavailable(OnStoreFailure::Open));
            return answer;
        };
        one_more(&self.counters.local);
        for check in &own.checks {
            // Tokens that the store leased count as spent before anything is decided here.
            let (limit, fingerprint) = (check.limit, check.key.fingerprint());
            let spent = self.store.take_unreported_spending(check);
            self.local.record_spent(limit, fingerprint, spent);
        }
        let mut answer = self.local.decide(&own.checks);
        let decider = answer.decider.and_then(|decider| own.checks.get(decider));
        answer.unavailable = Some(unavailable(choice(decider.unwrap_or(first))));
        answer.decider = own.original_index(answer.decider);
        answer
    }

    /// Records the result of a query: counts a failure, or ends the fallback.
    pub(crate) fn record_answer(
        &self,
        asked: Result<Answer, B::Error>,
    ) -> Result<Answer, (RemoteFailure, B::Error)> {
        let answer = self.record_failure(asked)?;
        if answer.source != AnswerSource::Cached {
            self.failures.record_success();
        }
        Ok(answer)
    }

    /// Queries the store, or answers without it.
    ///
    /// An async block instead of an async function, which would keep its arguments twice: the future has to
    /// stay small.
    fn ask_store<'a>(
        &'a self,
        checks: &'a [Check<'a>],
        mut each: Option<&'a mut Vec<CheckResult>>,
    ) -> impl Future<Output = Result<Answer, Infallible>> + Send + 'a {
        // Borrowed where it is used: moving it would keep it twice as well.
        let mut gate = self.admit_to_store(checks);
        async move {
            let kind = if let Some(probe) = &mut gate {
                let asked = self.store.ask(checks, each.as_deref_mut()).await;
                match self.record_answer(asked) {
                    Ok(answer) => {
                        if answer.source != AnswerSource::Cached {
                            probe.entry = None;
                            self.record_success(checks, answer.source);
                        }
                        return Ok(answer);
                    }
                    Err((failure, error)) => {
                        self.handle_failure(checks, probe.entry.take(), failure, &error)
                    }
                }
            } else {
                self.failures.latest_kind()
            };
            let answer = self.answer_locally(checks, kind);
            if let Some(each) = each {
                // Of the other checks it is only known that they didn't decide.
                *each = vec![Ok(Decision::UNLIMITED); checks.len()];
                set_decider_result(each, &answer);
            }
            Ok(answer)
        }
    }

    /// What a check by itself would decide while the store fails with this kind.
    fn peek_locally(&self, check: &Check<'_>, kind: FailureKind) -> CheckResult {
        match check.limit.on_store_failure() {
            OnStoreFailure::Open => Ok(Decision::UNLIMITED),
            fallback @ OnStoreFailure::Closed => Err(StoreUnavailable { kind, fallback }),
            OnStoreFailure::Local | OnStoreFailure::CircuitBreak => Ok(self.local.peek(check)),
        }
    }
}

/// Writes the decision of the deciding check into the list of all results.
fn set_decider_result(each: &mut [CheckResult], answer: &Answer) {
    let unavailable = answer.unavailable.filter(|_| answer.is_unavailable());
    if let Some(one) = answer.decider.and_then(|decider| each.get_mut(decider)) {
        *one = unavailable.map_or(Ok(answer.decision), Err);
    }
}

#[inline]
fn breaks_circuit(check: &Check<'_>) -> bool {
    check.limit.on_store_failure() == OnStoreFailure::CircuitBreak
}

/// Whether a check is counted in this process although there is a store.
#[inline]
fn is_local(check: &Check<'_>) -> bool {
    check.limit.counting() == Counting::Local
}

fn is_remote(check: &Check<'_>) -> bool {
    !is_local(check)
}

impl<B: RemoteBackend, C: Clock + 'static, W: Clock + 'static> Backend for Fallback<B, C, W> {
    type Error = Infallible;

    fn ask<'a>(
        &'a self,
        checks: &'a [Check<'a>],
        each: Option<&'a mut Vec<CheckResult>>,
    ) -> impl Future<Output = Result<Answer, Infallible>> + Send + 'a {
        if !checks.iter().any(is_local) {
            Either::Right(self.ask_store(checks, each))
        } else if each.is_none() && checks.iter().all(is_local) {
            let here = lazy(move |_| Ok(self.local.memory().answer(checks)));
            Either::Left(Either::Left(here))
        } else {
            // On the heap, so that the future of other requests stays small.
            Either::Left(Either::Right(Box::pin(
                self.ask_local_then_store(checks, each),
            )))
        }
    }

    /// A peek neither opens nor closes a circuit.
    async fn peek<'a>(&'a self, checks: &'a [Check<'a>]) -> Result<Vec<CheckResult>, Infallible> {
        let (here, there) = (
            CheckSubset::of(checks, is_local),
            CheckSubset::of(checks, is_remote),
        );
        let is_asked = self.circuit.is_closed() || !there.checks.iter().all(breaks_circuit);
        let asked = if there.checks.is_empty() {
            Ok(Vec::new())
        } else if is_asked {
            let asked = self.record_failure(self.store.peek(&there.checks).await);
            asked.map_err(|(failure, _)| failure.kind)
        } else {
            Err(self.failures.latest_kind())
        };
        let without = |kind| {
            let each = there.checks.iter();
            each.map(|check| self.peek_locally(check, kind)).collect()
        };
        let mut each = vec![Ok(Decision::UNLIMITED); checks.len()];
        there.write_results(&mut each, asked.unwrap_or_else(without));
        let own = self.local.memory().peek_each(&here.checks);
        here.write_results(&mut each, own.into_iter().map(Ok));
        Ok(each)
    }

    async fn refund<'a>(
        &'a self,
        checks: &'a [Check<'a>],
        refund: Refund,
    ) -> Result<RefundResult, Infallible> {
        let memory = self.local.memory();
        match refund {
            Refund::Cost | Refund::Dropped => {
                memory.refund_checks(&CheckSubset::of(checks, is_local).checks)
            }
            // All of them: the local share remembers what the store had admitted.
            Refund::Reset => memory.reset_checks(checks),
        }
        let there = CheckSubset::of(checks, is_remote).checks;
        let given = self.record_failure(self.store.refund(&there, refund).await);
        Ok(given.unwrap_or_else(|(failure, error)| {
            self.handle_failure(&there, None, failure, &error);
            RefundResult::Lost
        }))
    }

    #[inline]
    fn now(&self) -> Timestamp {
        self.store.now()
    }

    fn clocks(&self) -> Clocks {
        Clocks {
            wall: self.local.memory().clocks().wall,
            ..self.store.clocks()
        }
    }

    fn supports(&self, limit: &Limit) -> Result<(), String> {
        match limit.counting() {
            Counting::Local => self.local.memory().supports(limit),
            _ => self.store.supports(limit),
        }
    }

    fn deny_epoch(&self) -> Option<u64> {
        let here = self.local.memory().deny_epoch()?;
        Some(self.store.deny_epoch()?.wrapping_add(here))
    }
}
