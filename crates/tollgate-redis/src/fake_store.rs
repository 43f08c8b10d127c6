//! A store for tests, in this process. It fails and recovers on command.

mod lease;
mod operations;

use std::collections::HashMap;
use std::hash::BuildHasher;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use derive_more::Debug;
use foldhash::fast::FixedState;
use tollgate::clock::{Clock, Manual};
use tollgate::{Decision, Outcome, StoredKeyLimiter, Timestamp};
use tollgate_engine::backend::{
    Answer, AnswerSource, Backend, Check, CheckResult, Clocks, DenyRecheck, DenyVersion,
    FailureKind, KnownDenial, Limit, LimitKind, Memory, Refund, RefundResult,
};
use tollgate_engine::policy::Counting;

use crate::client_builder::RedisBuilder;
use crate::denials::{RememberedDenials, finish_recheck};
use crate::error::{StoreError, StoreLimitError};
use crate::host::{ClockSource, HostClock, HostWall};
use crate::lease::LeaseTerms;
use crate::local_limits::LocalLimits;
use crate::lock::lock;
use crate::query::LimitForm;
use crate::store::StoreCounters;

use lease::FakeLeases;

/// The most keys that a test can use.
const MAX_KEYS: usize = 10_000;

/// The fake store of a test: limits in this process, by a clock that the test sets, with faults that the test
/// injects. [`Redis::fake_store`](crate::Redis::fake_store) returns it.
///
/// Everything in front of a real store is in front of it too: failure policies, circuit breakers, events and
/// counters. Leased limits are leased: this node holds a tenth of the burst for a second, and spends it without
/// a query.
///
/// ```
/// use tollgate::clock::Manual;
/// use tollgate_engine::document::Format;
/// use tollgate_engine::verdict::{Cause, RequestDecision};
/// use tollgate_engine::{Engine, Facts, Policy};
/// use tollgate_redis::{Fault, Redis};
///
/// // Under test: a policy, and the service's response to a decision.
/// const POLICY: &str = "
/// limits:
///   - {name: exports, match: {path: /export}, key: user, quota: 100/month}
///   - {name: searches, match: {path: /search}, key: user, rate: 2/s}
/// ";
/// fn status(verdict: &RequestDecision<'_>) -> u16 {
///     match verdict {
///         RequestDecision::Allowed(_) => 200,
///         RequestDecision::Denied(denied) => match denied.cause() {
///             Cause::StoreFailure(_) => 503,
///             _ => 429,
///         },
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let redis = Redis::in_memory(Manual::new());
/// let engine = Engine::new(Policy::from_text(POLICY, Format::Yaml)?.policy, redis.clone())?;
/// let export = Facts::new().with("path", "/export").with("user", "ada");
/// let search = Facts::new().with("path", "/search").with("user", "ada");
/// assert_eq!(status(&engine.decide_async(&export).await?), 200);
///
/// let store = redis.fake_store().expect("it is in memory");
/// store.inject_fault(Fault::Down);
/// // A quota is closed then by default, because what remains of it isn't known.
/// assert_eq!(status(&engine.decide_async(&export).await?), 503);
/// // A rate is decided in this process.
/// for expected in [200, 200, 429] {
///     let verdict = engine.decide_async(&search).await?;
///     assert_eq!(status(&verdict), expected);
///     assert!(verdict.fallback().is_some());
/// }
/// assert!(redis.is_fallback_active());
///
/// store.clear_fault();
/// assert_eq!(status(&engine.decide_async(&export).await?), 200);
/// assert!(!redis.is_fallback_active());
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[debug("FakeStore({state:?})")]
pub struct FakeStore {
    clock: Manual,
    timeout: Duration,
    terms: LeaseTerms,
    slot_life: Duration,
    pub(crate) refusals: RememberedDenials,
    /// The counters of queries and round trips.
    pub(crate) stats: StoreCounters,
    /// This process's share of the limits, which records what the store admits.
    local: Arc<LocalLimits<HostClock, HostWall>>,
    state: Mutex<FakeState>,
}

/// A fault that a test injects into the fake store.
///
/// ```
/// use tollgate::{Rate, clock::Manual};
/// use tollgate_redis::{FailureKind, Fault, Redis};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let redis = Redis::in_memory(Manual::new());
/// let logins = redis.limiter("logins", Rate::per_minute(5)).build()?;
/// redis.fake_store().expect("it is in memory").inject_fault(Fault::Slow);
/// let error = logins.try_check("ada", 1).await.unwrap_err();
/// assert_eq!(error.kind(), FailureKind::TimedOut);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fault {
    /// Connections are refused.
    Down,
    /// Every answer comes too late. The timeout is reported without a wait, and the queries are executed.
    Slow,
    /// Writes fail, as on a replica.
    ReadOnly,
}

/// The mutable state.
#[derive(Debug)]
#[debug("{fault:?}, {memory:?}")]
struct FakeState {
    fault: Option<Fault>,
    memory: Memory<HostClock, HostWall>,
    /// Reservations, which count apart from the memory, by counter.
    pacers: HashMap<u64, Arc<Pacer>>,
    leases: FakeLeases,
    /// The epoch of refunds before the memory was last cleared.
    epochs_before_reset: u64,
}

type Pacer = StoredKeyLimiter<[u64; 2], Manual>;

/// The parts of a token, for comparisons of levels.
const PARTS_PER_TOKEN: u64 = 1_000_000;

impl FakeStore {
    /// From now on, every query fails with this fault.
    pub fn inject_fault(&self, fault: Fault) {
        lock(&self.state).fault = Some(fault);
    }

    /// The store works again, with the state that it had.
    pub fn clear_fault(&self) {
        lock(&self.state).fault = None;
    }

    /// The store loses its state, as after a restart without persistence: limits start full. This node keeps
    /// the tokens that it has leased.
    ///
    /// ```
    /// # use tollgate::{Rate, clock::Manual};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let redis = tollgate_redis::Redis::in_memory(Manual::new());
    /// let logins = redis.limiter("logins", Rate::per_minute(1)).build()?;
    /// assert!(logins.check("ada").await.allowed().is_some());
    /// redis.fake_store().expect("it is in memory").clear();
    /// assert!(logins.check("ada").await.allowed().is_some());
    /// # Ok(())
    /// # }
    /// ```
    pub fn clear(&self) {
        let mut state = lock(&self.state);
        state.epochs_before_reset = state.epoch() + 1;
        state.memory = memory(&self.clock);
        state.pacers.clear();
    }

    /// A fake store with the settings of a builder.
    pub(crate) fn new(
        options: &RedisBuilder,
        clock: &Manual,
        local: Arc<LocalLimits<HostClock, HostWall>>,
    ) -> Self {
        Self {
            clock: clock.clone(),
            timeout: options.timeout,
            terms: options.terms,
            slot_life: options.slot_life,
            refusals: RememberedDenials::new(options.max_remembered_denials),
            stats: StoreCounters::default(),
            local,
            state: Mutex::new(FakeState {
                fault: None,
                memory: memory(clock),
                pacers: HashMap::new(),
                leases: FakeLeases::default(),
                epochs_before_reset: 0,
            }),
        }
    }

    pub(crate) fn ready(&self) -> Result<(), StoreError> {
        let fault = lock(&self.state).fault;
        fault.map_or(Ok(()), |fault| Err(self.error(fault)))
    }

    /// Leased tokens that this node holds.
    pub(crate) fn leased(&self) -> u64 {
        lock(&self.state).leases.held(self.clock.now())
    }

    /// Returns the leased tokens.
    pub(crate) fn close(&self) -> RefundResult {
        let mut state = lock(&self.state);
        let held = state.leases.held(self.clock.now());
        state.leases = FakeLeases::default();
        match state.fault {
            Some(_) if held > 0 => RefundResult::Lost,
            _ => RefundResult::Refunded,
        }
    }

    /// The limit in the store's terms.
    pub(crate) fn limit_form(&self, limit: &Limit) -> Result<LimitForm, StoreLimitError> {
        let form = LimitForm::from_limit(limit, self.slot_life)?;
        let is_other = form.level().is_none() && form.known_decision(0).is_none();
        if limit.counting() == Counting::Leased && is_other {
            return Err(StoreLimitError::not_a_level("a lease", limit.kind()));
        }
        Ok(form)
    }

    fn decide(&self, checks: &[Check<'_>]) -> Result<Answer, StoreError> {
        let mut state = lock(&self.state);
        let now = self.clock.now();
        let recheck = match self.find_remembered_denial(&state, checks, now) {
            Ok(recheck) => recheck,
            Err((number, known)) => return Ok(Answer::known(Some(number), known)),
        };
        let decided = self.decide_by(&mut state, checks, now);
        if let Some(recheck) = recheck {
            finish_recheck(recheck, &decided);
        }
        decided
    }

    /// The decision of one check by itself, after the answer to all of them.
    fn own_decision(
        &self,
        number: usize,
        check: &Check<'_>,
        answer: &Answer,
    ) -> Result<Decision, StoreError> {
        if !answer.allowed && answer.decider == Some(number) {
            return Ok(answer.decision);
        }
        if let LimitKind::Concurrency(most) = check.limit.kind() {
            // A query would take one more permit. This isn't the check that denied the request.
            let (most, zero) = (u64::from(*most), Duration::ZERO);
            return Ok(Decision::new(Outcome::Allowed, most, most, zero, zero));
        }
        let mut decision = self.decide(&[peek_check(check)])?.decision;
        if !answer.allowed && decision.remaining < check.cost {
            decision.outcome = if check.cost > decision.limit {
                Outcome::Never
            } else {
                Outcome::Denied
            };
            decision.retry_after = answer.decision.retry_after;
        }
        Ok(decision)
    }

    /// Decides by the leases, or with a query.
    fn decide_by(
        &self,
        state: &mut FakeState,
        checks: &[Check<'_>],
        now: Timestamp,
    ) -> Result<Answer, StoreError> {
        let (mut asks, mut planned) = (false, HashMap::new());
        for check in checks {
            let is_known = self
                .limit_form(check.limit)?
                .known_decision(check.cost)
                .is_some();
            let mut covers =
                || is_leased(check.limit) && state.leases.covers(check, now, &mut planned);
            asks |= !(is_known || covers());
        }
        let judge = |state: &mut FakeState| {
            checks
                .iter()
                .for_each(|check| self.report_local_usage(state, check));
            state.memory.answer(checks)
        };
        let mut answer = if asks {
            self.run_query(state, checks.len(), judge)?
        } else {
            judge(state)
        };
        if !asks {
            answer.source = AnswerSource::Cached;
        }
        if answer.allowed {
            for check in checks {
                let left = state.memory.answer(&[peek_check(check)]).decision;
                self.local.record_decision(check, &left);
                if let Some(slot) = self.local.hold_permit(check) {
                    answer.pass = std::mem::take(&mut answer.pass).merge(slot);
                }
            }
            for check in checks.iter().filter(|check| is_leased(check.limit)) {
                let burst = state.memory.answer(&[peek_check(check)]).decision.limit;
                let part = (burst / self.terms.burst_divisor).max(1);
                let is_low = state.leases.spend(check, now, part, self.terms.duration);
                if state.fault.is_none() && (asks || is_low) {
                    self.take_lease(state, check, part);
                    // The refill in advance is a query of its own.
                    self.stats.record_call(usize::from(!asks));
                }
            }
        } else if let Some(check) = answer.decider.map(|number| &checks[number])
            && !is_leased(check.limit)
        {
            (self.refusals).remember(check, &answer.decision, now, state.version(check));
        }
        self.show_held_tokens(state, checks, &mut answer);
        Ok(answer)
    }

    /// Runs a query, unless the store has a fault.
    fn run_query<T>(
        &self,
        state: &mut FakeState,
        questions: usize,
        carry_out: impl FnOnce(&mut FakeState) -> T,
    ) -> Result<T, StoreError> {
        self.stats.record_call(questions);
        let Some(fault) = state.fault else {
            return Ok(carry_out(state));
        };
        self.stats.failed_calls.fetch_add(1, Ordering::Relaxed);
        if fault == Fault::Slow {
            self.stats.timeouts.fetch_add(1, Ordering::Relaxed);
            // Executed, but too late for the request.
            drop(carry_out(state));
        }
        Err(self.error(fault))
    }

    fn error(&self, fault: Fault) -> StoreError {
        let (after, is_down) = (self.timeout, "a test has put it down");
        match fault {
            Fault::Down => StoreError::unreachable(FailureKind::Refused, is_down),
            Fault::Slow => StoreError::TimedOut { after },
            Fault::ReadOnly => StoreError::ErrorReply {
                kind: FailureKind::ReadOnly,
                error: "READONLY a test has made it so".to_owned(),
            },
        }
    }
}

impl FakeState {
    /// How often something was refunded or reset, which may outdate denials.
    fn epoch(&self) -> u64 {
        self.epochs_before_reset + self.memory.deny_epoch().unwrap_or_default()
    }

    /// The version of a remembered denial: it is outdated if this differs.
    fn version(&self, check: &Check<'_>) -> DenyVersion {
        let kind = FixedState::default().hash_one(format!("{:?}", check.limit.kind()));
        DenyVersion(kind, self.epoch())
    }
}

/// The operations of a backend.
impl FakeStore {
    pub(crate) fn ask(
        &self,
        checks: &[Check<'_>],
        each: Option<&mut Vec<CheckResult>>,
    ) -> Result<Answer, StoreError> {
        let answer = self.decide(checks)?;
        if let Some(each) = each
            && (answer.allowed || answer.source != AnswerSource::Cached)
        {
            for (number, check) in checks.iter().enumerate() {
                each.push(Ok(self.own_decision(number, check, &answer)?));
            }
        }
        Ok(answer)
    }

    pub(crate) fn peek_check(&self, checks: &[Check<'_>]) -> Result<Vec<CheckResult>, StoreError> {
        let peek = |state: &mut FakeState| state.memory.peek_each(checks);
        let each = self.run_query(&mut lock(&self.state), checks.len(), peek)?;
        Ok(each.into_iter().map(Ok).collect())
    }

    pub(crate) fn refund(
        &self,
        checks: &[Check<'_>],
        refund: Refund,
    ) -> Result<RefundResult, StoreError> {
        let carry_out = |state: &mut FakeState| match refund {
            Refund::Cost | Refund::Dropped => state.memory.refund_checks(checks),
            Refund::Reset => {
                state.memory.reset_checks(checks);
                checks.iter().for_each(|check| state.leases.forget(check));
            }
        };
        self.run_query(&mut lock(&self.state), checks.len(), carry_out)?;
        Ok(RefundResult::Refunded)
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.clock.now()
    }

    pub(crate) fn clocks(&self) -> Clocks {
        Clocks {
            clock: Arc::new(self.clock.clone()),
            wall: Arc::new(self.clock.clone()),
        }
    }

    pub(crate) fn deny_epoch(&self) -> Option<u64> {
        (!self.refusals.is_enabled()).then(|| lock(&self.state).epoch())
    }

    /// An earlier denial that hasn't expired.
    pub(crate) fn denial_of(&self, checks: &[Check<'_>]) -> Option<(usize, Decision)> {
        let state = lock(&self.state);
        (self.refusals).find(checks, self.now(), |check| Some(state.version(check)))
    }

    /// Returns a remembered denial as the error; or the denial that this request checks again, if any.
    fn find_remembered_denial(
        &self,
        state: &FakeState,
        checks: &[Check<'_>],
        now: Timestamp,
    ) -> Result<Option<DenyRecheck<'_>>, (usize, Decision)> {
        let mut due = None;
        for (number, check) in checks.iter().enumerate() {
            match self.refusals.look_up(check, now, state.version(check)) {
                KnownDenial::None => {}
                KnownDenial::Due(recheck) => due = due.or(Some(recheck)),
                KnownDenial::Repeat(_, decision) => return Err((number, decision)),
            }
        }
        Ok(due)
    }

    /// Reports the usage that was decided without the store: the store then counts at least as much.
    fn report_local_usage(&self, state: &FakeState, check: &Check<'_>) {
        let Some(owed) = self.local.unreported_usage(check) else {
            return;
        };
        let left = state.memory.answer(&[peek_check(check)]).decision;
        let missing = match used_parts(check.limit, &left) {
            // Compared in parts of a token, rounded up: otherwise each failure and recovery would lose up to
            // one token.
            Some(used) => {
                let missing = owed.tokens(PARTS_PER_TOKEN).saturating_sub(used);
                u64::try_from(missing.div_ceil(PARTS_PER_TOKEN.into())).unwrap_or(u64::MAX)
            }
            None => (owed.used).saturating_sub(left.limit.saturating_sub(left.remaining)),
        };
        let cost = missing.min(left.remaining);
        if cost > 0 {
            let mut charged = state.memory.answer(&[Check { cost, ..*check }]);
            charged.pass.settle(cost);
        }
        self.local.mark_reported(check, &owed);
    }
}

/// Limits in this process, by a clock that the test sets.
pub(crate) fn memory(clock: &Manual) -> Memory<HostClock, HostWall> {
    let clock: Arc<dyn Clock> = Arc::new(clock.clone());
    let memory = Memory::builder().capacity(MAX_KEYS);
    let memory = memory.clock(ClockSource::Other(Arc::clone(&clock)));
    memory.wall(ClockSource::Other(clock)).build()
}

/// Whether tokens of a limit are leased in advance.
fn is_leased(limit: &Limit) -> bool {
    let form = || LimitForm::from_limit(limit, Duration::ZERO);
    limit.counting() == Counting::Leased && form().is_ok_and(|form| form.level().is_some())
}

/// The same check with a cost of 0.
fn peek_check<'a>(check: &Check<'a>) -> Check<'a> {
    Check { cost: 0, ..*check }
}

/// The usage of a level in parts of a token; `None` for other limits.
fn used_parts(limit: &Limit, left: &Decision) -> Option<u128> {
    LimitForm::from_limit(limit, Duration::ZERO).ok()?.level()?;
    let LimitKind::Rate { rate, .. } = limit.kind() else {
        return None;
    };
    let each = rate.period()?.as_nanos().max(1);
    Some(
        left.reset_after.as_nanos() * u128::from(rate.count()) * u128::from(PARTS_PER_TOKEN) / each,
    )
}
