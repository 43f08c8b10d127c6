//! The store as a backend: checks in, answers or errors out, in two steps: plan, then execute all or none.

mod estimate;
mod execute;
mod plan;
mod queries;
#[cfg(test)]
mod tests;

use std::future::ready;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use derive_more::Debug;
use foldhash::SharedSeed;
use foldhash::quality::SeedableRandomState;
use futures_util::future::{BoxFuture, Either, join3};
use tokio::time::{Instant, sleep, timeout};
use tollgate::{Algorithm, Clock, Decision, Rate, Timestamp};
use tollgate_engine::backend::{
    Answer, AnswerSource, Backend, Check, CheckResult, Clocks, Limit, LimitKind, Prepared, Refund,
    RefundResult,
};
use tollgate_engine::policy::Counting;

use crate::client_builder::RedisBuilder;
use crate::denials::{RememberedDenials, finish_recheck};
use crate::error::{StoreError, StoreLimitError};
use crate::held_permits::HeldPermits;
use crate::host::{CallerClock, Host, HostClock, HostWall};
use crate::lease::{FORGIVE_ALL, Leases};
use crate::local_limits::LocalLimits;
use crate::node_registry::NodeRegistry;
use crate::query::{LimitForm, StoreOp, StoreQuery, check_supported};
use crate::store::{RequestDeadline, Store};
use crate::stored_limit::{KeyNaming, LeaseCheck, LeaseKey, StoredLimit};

use estimate::is_estimate;
use plan::{CheckPlan, Plan};

/// The pause between two attempts while waiting for a store.
const READY_POLL_INTERVAL: Duration = Duration::from_millis(10);
/// How long closing may take.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// The store without a failure policy: if a query fails, the result is an error.
///
/// [`Redis`](crate::Redis) puts a failure policy in front of it.
///
/// ```no_run
/// use tollgate_engine::backend::{Backend, LimitKind, StandaloneLimit};
/// use tollgate_redis::{Redis, StoreError};
///
/// # async fn run() -> Result<(), Box<dyn std::error::Error>> {
/// let redis = Redis::connect("redis://127.0.0.1:6379")?;
/// let (limit, key) = (StandaloneLimit::new("jobs", LimitKind::Concurrency(8))?, StandaloneLimit::facts("nightly"));
/// if let Some(direct) = redis.store_client() {
///     match direct.ask(&[limit.check(&key, 1)], None).await {
///         Ok(answer) => println!("{:?}", answer.decision),
///         Err(StoreError::TimedOut { after }) => println!("no answer within {after:?}"),
///         Err(error) => println!("{error}"),
///     }
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[debug("StoreClient({store:?}, {leases:?})")]
pub struct StoreClient {
    pub(crate) store: Arc<Store>,
    pub(crate) leases: Arc<Leases>,
    pub(crate) holders: Arc<HeldPermits>,
    pub(crate) nodes: Arc<NodeRegistry>,
    /// This process's share of the limits, which records what the store admits.
    local: Arc<LocalLimits<HostClock, HostWall>>,
    naming: KeyNaming,
    /// Limits in the store's terms.
    stored: Prepared<StoredLimit>,
    pub(crate) refusals: RememberedDenials,
    /// How often this process refunded something, which may outdate denials.
    epoch: AtomicU64,
    /// How far the store's clock is ahead of this node's, in microseconds.
    store_clock_ahead_micros: AtomicI64,
    clock: HostClock,
    wall: HostWall,
    /// Replaces the store's clock.
    time: Option<CallerClock>,
    host: Host,
}

impl StoreClient {
    pub(crate) fn new(
        options: &RedisBuilder,
        local: Arc<LocalLimits<HostClock, HostWall>>,
        host: Host,
    ) -> Result<Self, StoreError> {
        let store = Arc::new(Store::new(&options.address, options.timeout, &host)?);
        let leases = Leases::new(store.clone(), local.clone(), options.terms, host.clone());
        let (time, life) = (options.time.clone(), options.slot_life);
        let holders = HeldPermits::new(store.clone(), time.clone(), host.clone(), life);
        let nodes = NodeRegistry::new(&store, local.clone(), &options.prefix, options.nodes, &host);
        Ok(Self {
            store,
            leases,
            holders,
            nodes,
            local,
            naming: KeyNaming {
                prefix: options.prefix.as_str().into(),
                slot_life: options.slot_life,
                hasher: SeedableRandomState::with_seed(host.random(), SharedSeed::global_fixed()),
            },
            stored: Prepared::new(),
            refusals: RememberedDenials::new(options.max_remembered_denials),
            epoch: AtomicU64::new(0),
            store_clock_ahead_micros: AtomicI64::new(0),
            clock: host.clock(),
            wall: host.wall(),
            time,
            host,
        })
    }

    /// The limit in the store's terms.
    pub(crate) fn stored<'a>(&self, limit: &'a Limit) -> Result<&'a StoredLimit, StoreLimitError> {
        (self.stored).get_or_make(limit, || StoredLimit::new(limit, &self.naming))
    }

    /// The time that queries use instead of the store's clock.
    pub(crate) fn caller_time(&self) -> Option<u64> {
        self.time.as_ref().map(|time| time.now().as_nanos() / 1000)
    }

    /// The approximate time of the store's clock, in microseconds.
    pub(crate) fn estimated_store_time(&self) -> u64 {
        let here = self.wall.now().as_nanos() / 1000;
        let ahead = self.store_clock_ahead_micros.load(Ordering::Relaxed);
        self.caller_time()
            .unwrap_or(here.saturating_add_signed(ahead))
    }

    fn record_store_time(&self, now: u64) {
        let here = self.wall.now().as_nanos() / 1000;
        let ahead = i64::try_from(i128::from(now) - i128::from(here)).unwrap_or(0);
        self.store_clock_ahead_micros
            .store(ahead, Ordering::Relaxed);
    }

    /// Records that denied requests may pass sooner than their `retry_after`.
    pub(crate) fn bump_deny_epoch(&self) {
        self.epoch.fetch_add(1, Ordering::Release);
    }

    /// The present epoch and time. Read before a query, so that a refund during the query outdates its reply.
    fn epoch_time(&self) -> EpochTime {
        let epoch = self.epoch.load(Ordering::Acquire);
        let at = self.now();
        EpochTime { at, epoch }
    }
}

/// A time, and the epoch of refunds at that time.
#[derive(Clone, Copy, Debug)]
struct EpochTime {
    at: Timestamp,
    epoch: u64,
}

impl StoreClient {
    /// Waits until the store answers, for at most `within`.
    pub(crate) async fn ready(&self, within: Duration) -> Result<(), StoreError> {
        // The cheapest query that needs no limit of a policy: a peek writes nothing.
        let (rate, algorithm) = (Rate::per_second(1), Algorithm::Gcra);
        let form = LimitForm::new(&LimitKind::Rate { rate, algorithm }, Duration::ZERO)?;
        let LimitForm::Stored(numbers) = form else {
            return Ok(());
        };
        let look = StoreQuery {
            key: format!("{}:ready", self.naming.prefix).into(),
            op: StoreOp::Decide,
            params: numbers,
            cost: 0,
            holder: None,
        };
        let deadline = Instant::now() + within;
        loop {
            let asked = self.store.ask(vec![look.clone()], self.caller_time()).await;
            let is_over = Instant::now() + READY_POLL_INTERVAL >= deadline;
            match asked {
                Ok(_) => return Ok(()),
                Err(StoreError::TimedOut { .. }) if is_over => {
                    return Err(StoreError::TimedOut { after: within });
                }
                Err(error) if is_over || error.kind().is_lasting() => return Err(error),
                Err(_) => sleep(READY_POLL_INTERVAL).await,
            }
        }
    }

    /// Returns all that this node holds to the store.
    pub(crate) async fn close(&self) -> RefundResult {
        if Host::system().is_err() {
            return RefundResult::Lost;
        }
        let closing = join3(
            self.leases.close(),
            self.holders.close(),
            self.nodes.leave(),
        );
        let closed = timeout(CLOSE_TIMEOUT, closing).await;
        closed.map_or(RefundResult::Lost, |(leases, ..)| leases)
    }

    /// Runs one operation on the key of a check, as of the given time if there is one. If the decision is known
    /// here, or the limit is leased, the result is the decision alone.
    pub(crate) async fn run_operation(
        &self,
        check: &Check<'_>,
        op: StoreOp,
        at: Option<u64>,
        patience: &mut RequestDeadline,
    ) -> Result<(Decision, Option<u64>), StoreError> {
        let stored = self.stored(check.limit)?;
        // Remembered denials aren't used: another process may have reset the key.
        if let Some(known) = stored.form.known_decision(check.cost) {
            return Ok((known, None));
        }
        let at = at.or_else(|| self.caller_time());
        let question =
            self.build_query(check, op, at.unwrap_or_else(|| self.estimated_store_time()))?;
        let numbers = question.params;
        check_supported(op, &numbers, check.limit)?;
        match (LeaseCheck::of(check, stored), op) {
            (Some(lent), StoreOp::Peek) => {
                return Ok((self.leases.peek(lent, patience).await?, None));
            }
            (Some(lent), StoreOp::Reset | StoreOp::Refund) => {
                let tokens = match op {
                    StoreOp::Reset => FORGIVE_ALL,
                    _ => check.cost.min(FORGIVE_ALL - 1),
                };
                self.leases.forgive(lent, tokens, patience).await?;
                return Ok((Decision::UNLIMITED, None));
            }
            _ => {}
        }
        let (checks, asked) = ([*check], vec![question]);
        let sent = self.send(&checks, &[0], asked, at, patience);
        let raw = sent.await?.replies[0];
        let number = u64::try_from(raw.wait).unwrap_or(u64::MAX);
        Ok((raw.decision(&numbers), Some(number)))
    }

    /// Runs one operation on the keys of checks, except on permits. A key whose value no limiter wrote doesn't
    /// stop the others.
    async fn run_operations(&self, checks: &[Check<'_>], op: StoreOp) -> Result<(), StoreError> {
        for check in checks {
            self.stored(check.limit)?;
        }
        let is_slots = |check: &&Check<'_>| matches!(check.limit.kind(), LimitKind::Concurrency(_));
        let mut strange = Ok(());
        for check in checks.iter().filter(|check| !is_slots(check)) {
            // Each is a request by itself.
            let mut patience = self.store.patience();
            let done = self.run_operation(check, op, None, &mut patience).await;
            match done.map(drop) {
                Err(error) if !matches!(error, StoreError::ForeignKey { .. }) => return Err(error),
                done => strange = strange.and(done),
            }
        }
        strange
    }

    /// Refunds these checks in the background.
    fn refund_abandoned(&self, checks: &[Check<'_>]) {
        let now = self.estimated_store_time();
        for check in checks {
            let Ok(stored) = self.stored(check.limit) else {
                continue;
            };
            if stored.leased.is_some() {
                let place = LeaseKey::of(stored, check);
                self.leases.restore_after_report(place, check.cost);
            } else if !matches!(check.limit.kind(), LimitKind::Concurrency(_))
                && stored.form.known_decision(check.cost).is_none()
                && let Ok(question) = self.build_query(check, StoreOp::Refund, now)
            {
                self.send_in_background(question);
            }
        }
    }

    /// Sends a query that no caller waits for. If it fails, what was charged drains by itself.
    fn send_in_background(&self, question: StoreQuery) {
        let (store, at) = (Arc::clone(&self.store), self.caller_time());
        self.host.spawn(async move {
            let _ = store.ask(vec![question], at).await;
        });
    }

    /// The answer to the only check of a request, without a query, if its limit is leased and the lease can
    /// decide.
    #[inline]
    pub(crate) fn try_spend_leased(&self, check: &Check<'_>) -> Option<Answer> {
        if check.limit.counting() != Counting::Leased || is_estimate(check) {
            return None;
        }
        let stored = self.stored.get(check.limit)?;
        stored.leased.as_ref()?;
        let decision = (self.leases).try_spend(LeaseKey::of(stored, check), check.cost)?;
        let mut answer = Answer::new(Some(0), decision);
        answer.source = self.leased_source();
        Some(answer)
    }

    /// Tokens of a check's key that were spent and not recorded, and those that remain, which count as spent
    /// from now on.
    pub(crate) fn take_unreported_spending(&self, check: &Check<'_>) -> u64 {
        let stored = self.stored(check.limit).ok();
        let lent = stored.and_then(|stored| LeaseCheck::of(check, stored));
        lent.map_or(0, |lent| {
            self.leases.take_unreported_spending(lent.lease_key())
        })
    }

    /// The source of an answer without a query: it counts as proof that the store works as long as the latest
    /// call succeeded.
    fn leased_source(&self) -> AnswerSource {
        if self.store.is_failing() {
            AnswerSource::Cached
        } else {
            AnswerSource::Local
        }
    }
}

impl Backend for StoreClient {
    type Error = StoreError;

    fn ask<'a>(
        &'a self,
        checks: &'a [Check<'a>],
        each: Option<&'a mut Vec<CheckResult>>,
    ) -> impl Future<Output = Result<Answer, StoreError>> + Send + 'a {
        if let ([check], None) = (checks, &each)
            && let Some(answer) = self.try_spend_leased(check)
        {
            return Either::Left(ready(Ok(answer)));
        }
        let (needs, recheck) = match self.plan(checks) {
            Ok(Plan::Query(needs, recheck)) => (needs, recheck),
            // A denial that is known here, or that a lease gives, leaves the other checks without a query.
            Ok(Plan::Denied(answer)) => return Either::Left(ready(Ok(answer))),
            Err(error) => return Either::Left(ready(Err(error))),
        };
        let asked: BoxFuture<'a, Result<Answer, StoreError>> =
            match (<[CheckPlan<'_>; 1]>::try_from(needs), each) {
                (Ok([CheckPlan::StoreQuery(question)]), None)
                    if question.holder.is_none() && !is_estimate(&checks[0]) =>
                {
                    Box::pin(self.execute_single_query(checks, *question))
                }
                (Ok([need]), each) => Box::pin(self.carry_out(checks, vec![need], each)),
                (Err(needs), each) => Box::pin(self.carry_out(checks, needs, each)),
            };
        Either::Right(match recheck {
            None => asked,
            Some(recheck) => Box::pin(async {
                let came = asked.await;
                finish_recheck(recheck, &came);
                came
            }),
        })
    }

    async fn peek<'a>(&'a self, checks: &'a [Check<'a>]) -> Result<Vec<CheckResult>, StoreError> {
        // One deadline for all, however many queries follow each other.
        let mut patience = self.store.patience();
        let mut each = Vec::with_capacity(checks.len());
        for check in checks {
            let (said, _) = self
                .run_operation(check, StoreOp::Peek, None, &mut patience)
                .await?;
            each.push(Ok(said));
        }
        Ok(each)
    }

    async fn refund<'a>(
        &'a self,
        checks: &'a [Check<'a>],
        refund: Refund,
    ) -> Result<RefundResult, StoreError> {
        let refunded = match refund {
            Refund::Cost => self.run_operations(checks, StoreOp::Refund).await,
            Refund::Reset => self.run_operations(checks, StoreOp::Reset).await,
            Refund::Dropped => {
                self.refund_abandoned(checks);
                Ok(())
            }
        };
        // Even if a query failed, the store may have done it, or a part of it.
        self.bump_deny_epoch();
        refunded.map(|()| RefundResult::Refunded)
    }

    fn now(&self) -> Timestamp {
        match &self.time {
            Some(time) => time.now(),
            None => self.clock.now(),
        }
    }

    fn clocks(&self) -> Clocks {
        Clocks {
            clock: (self.time.clone()).unwrap_or_else(|| Arc::new(self.clock.clone())),
            wall: Arc::new(self.wall.clone()),
        }
    }

    fn deny_epoch(&self) -> Option<u64> {
        let epoch = self.epoch.load(Ordering::Acquire);
        (!self.refusals.is_enabled()).then_some(epoch)
    }

    fn supports(&self, limit: &Limit) -> Result<(), String> {
        let stored = self.stored(limit);
        stored.map(drop).map_err(|error| error.to_string())
    }
}
