//! The store as a backend: checks in, answers or errors out, in two steps: plan, and carry out all or none.

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
    Answer, Backend, Check, CheckResult, Clocks, Gift, Limit, LimitKind, Prepared, Refund, Source,
};
use tollgate_engine::policy::Counting;

use crate::client_builder::RedisBuilder;
use crate::denials::{RememberedDenials, finish_recheck};
use crate::error::{StoreError, StoreLimitError};
use crate::held_permits::HeldPermits;
use crate::host::{Host, HostClock, HostWall, Time};
use crate::lease::{EVERYTHING, Leases};
use crate::local_limits::Local;
use crate::node_registry::Nodes;
use crate::query::{LimitForm, StoreOp, StoreQuery, possible};
use crate::store::{RequestDeadline, Store};
use crate::stored_limit::{KeyNaming, LeaseCheck, LeaseKey, StoredLimit};

use estimate::is_held;
use plan::{CheckPlan, Plan};

/// Between two looks at a store that is waited for.
const EVERY: Duration = Duration::from_millis(10);
/// How long closing may take.
const CLOSING: Duration = Duration::from_secs(5);

/// The store without a failure policy: what can't be asked is an error.
///
/// [`Redis`](crate::Redis) puts one in front of it.
///
/// ```no_run
/// use tollgate_engine::backend::{Backend, LimitKind, SoleLimit};
/// use tollgate_redis::{Redis, StoreError};
///
/// # async fn run() -> Result<(), Box<dyn std::error::Error>> {
/// let redis = Redis::connect("redis://127.0.0.1:6379")?;
/// let (limit, key) = (SoleLimit::new("jobs", LimitKind::Concurrency(8))?, SoleLimit::facts("nightly"));
/// if let Some(direct) = redis.direct() {
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
#[debug("Direct({store:?}, {leases:?})")]
pub struct Direct {
    pub(crate) store: Arc<Store>,
    pub(crate) leases: Arc<Leases>,
    pub(crate) holders: Arc<HeldPermits>,
    pub(crate) nodes: Arc<Nodes>,
    /// This process's part of the limits, which is told what the store admits.
    local: Arc<Local<HostClock, HostWall>>,
    naming: KeyNaming,
    /// Limits as the store reads them.
    stored: Prepared<StoredLimit>,
    pub(crate) refusals: RememberedDenials,
    /// How often something was given back here.
    epoch: AtomicU64,
    /// How far the store's clock is ahead of this node's, in microseconds.
    ahead: AtomicI64,
    clock: HostClock,
    wall: HostWall,
    /// Instead of the store's clock.
    time: Option<Time>,
    host: Host,
}

impl Direct {
    pub(crate) fn new(
        options: &RedisBuilder,
        local: Arc<Local<HostClock, HostWall>>,
        host: Host,
    ) -> Result<Self, StoreError> {
        let store = Arc::new(Store::new(&options.address, options.timeout, &host)?);
        let leases = Leases::new(store.clone(), local.clone(), options.terms, host.clone());
        let (time, life) = (options.time.clone(), options.slot_life);
        let holders = HeldPermits::new(store.clone(), time.clone(), host.clone(), life);
        let nodes = Nodes::new(&store, local.clone(), &options.prefix, options.nodes, &host);
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
            refusals: RememberedDenials::new(options.near),
            epoch: AtomicU64::new(0),
            ahead: AtomicI64::new(0),
            clock: host.clock(),
            wall: host.wall(),
            time,
            host,
        })
    }

    /// The limit as the store reads it.
    pub(crate) fn stored<'a>(&self, limit: &'a Limit) -> Result<&'a StoredLimit, StoreLimitError> {
        (self.stored).get_or_make(limit, || StoredLimit::new(limit, &self.naming))
    }

    /// The time that questions are asked as of, if it isn't the store's.
    pub(crate) fn at(&self) -> Option<u64> {
        self.time.as_ref().map(|time| time.now().as_nanos() / 1000)
    }

    /// About what the store's clock shows, in microseconds.
    pub(crate) fn store_time(&self) -> u64 {
        let here = self.wall.now().as_nanos() / 1000;
        let ahead = self.ahead.load(Ordering::Relaxed);
        self.at().unwrap_or(here.saturating_add_signed(ahead))
    }

    fn record_store_time(&self, now: u64) {
        let here = self.wall.now().as_nanos() / 1000;
        let ahead = i64::try_from(i128::from(now) - i128::from(here)).unwrap_or(0);
        self.ahead.store(ahead, Ordering::Relaxed);
    }

    /// Something that was refused may pass sooner than it was told.
    pub(crate) fn improved(&self) {
        self.epoch.fetch_add(1, Ordering::Release);
    }

    /// This moment. Read before a question: whatever improves after it makes its answer old.
    fn moment(&self) -> EpochTime {
        let epoch = self.epoch.load(Ordering::Acquire);
        let at = self.now();
        EpochTime { at, epoch }
    }
}

/// A time, and how often something was given back until then.
#[derive(Clone, Copy, Debug)]
struct EpochTime {
    at: Timestamp,
    epoch: u64,
}

impl Direct {
    /// Waits until the store answers, and for so long at most.
    pub(crate) async fn ready(&self, within: Duration) -> Result<(), StoreError> {
        // What a look at a limit needs, without one: it writes nothing.
        let (rate, algorithm) = (Rate::per_second(1), Algorithm::Gcra);
        let form = LimitForm::new(&LimitKind::Rate { rate, algorithm }, Duration::ZERO)?;
        let LimitForm::Asked(numbers) = form else {
            return Ok(());
        };
        let look = StoreQuery {
            key: format!("{}:ready", self.naming.prefix).into(),
            op: StoreOp::Decide,
            numbers,
            cost: 0,
            holder: None,
        };
        let deadline = Instant::now() + within;
        loop {
            let asked = self.store.ask(vec![look.clone()], self.at()).await;
            let is_over = Instant::now() + EVERY >= deadline;
            match asked {
                Ok(_) => return Ok(()),
                Err(StoreError::TimedOut { .. }) if is_over => {
                    return Err(StoreError::TimedOut { after: within });
                }
                Err(error) if is_over || error.kind().is_lasting() => return Err(error),
                Err(_) => sleep(EVERY).await,
            }
        }
    }

    /// Gives back all that this node has.
    pub(crate) async fn close(&self) -> Gift {
        if Host::system().is_err() {
            return Gift::Lost;
        }
        let closing = join3(
            self.leases.close(),
            self.holders.close(),
            self.nodes.leave(),
        );
        let closed = timeout(CLOSING, closing).await;
        closed.map_or(Gift::Lost, |(leases, ..)| leases)
    }

    /// Asks one question about the key of a check, as of this time if one is given. Nothing came of it but the decision if
    /// that is known here, or if the limit is leased.
    pub(crate) async fn run_operation(
        &self,
        check: &Check<'_>,
        op: StoreOp,
        at: Option<u64>,
        patience: &mut RequestDeadline,
    ) -> Result<(Decision, Option<u64>), StoreError> {
        let stored = self.stored(check.limit)?;
        // What is remembered of denials isn't read: another process may have reset the key.
        if let Some(known) = stored.form.known(check.cost) {
            return Ok((known, None));
        }
        let at = at.or_else(|| self.at());
        let question = self.question(check, op, at.unwrap_or_else(|| self.store_time()))?;
        let numbers = question.numbers;
        possible(op, &numbers, check.limit)?;
        match (LeaseCheck::of(check, stored), op) {
            (Some(lent), StoreOp::Look) => {
                return Ok((self.leases.peek(lent, patience).await?, None));
            }
            (Some(lent), StoreOp::Reset | StoreOp::Gift) => {
                let tokens = match op {
                    StoreOp::Reset => EVERYTHING,
                    _ => check.cost.min(EVERYTHING - 1),
                };
                self.leases.forgive(lent, tokens, patience).await?;
                return Ok((Decision::UNLIMITED, None));
            }
            _ => {}
        }
        let (checks, asked) = ([*check], vec![question]);
        let sent = self.send(&checks, &[0], asked, at, patience);
        let raw = sent.await?.each[0];
        let number = u64::try_from(raw.wait).unwrap_or(u64::MAX);
        Ok((raw.decision(&numbers), Some(number)))
    }

    /// Does something to the keys of checks, but to no slots. One key that holds what no limiter wrote keeps nothing
    /// from the others.
    async fn act(&self, checks: &[Check<'_>], op: StoreOp) -> Result<(), StoreError> {
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
                Err(error) if !matches!(error, StoreError::Foreign { .. }) => return Err(error),
                done => strange = strange.and(done),
            }
        }
        strange
    }

    /// Has what these checks cost refunded, and waits for nothing.
    fn refund_abandoned(&self, checks: &[Check<'_>]) {
        let now = self.store_time();
        for check in checks {
            let Ok(stored) = self.stored(check.limit) else {
                continue;
            };
            if stored.leased.is_some() {
                let place = LeaseKey::of(stored, check);
                self.leases.restore_after_report(place, check.cost);
            } else if !matches!(check.limit.kind(), LimitKind::Concurrency(_))
                && stored.form.known(check.cost).is_none()
                && let Ok(question) = self.question(check, StoreOp::Gift, now)
            {
                self.send_in_background(question);
            }
        }
    }

    /// Tells the store something that nobody waits for. If it can't be told, what was charged drains by itself.
    fn send_in_background(&self, question: StoreQuery) {
        let (store, at) = (Arc::clone(&self.store), self.at());
        self.host.spawn(async move {
            let _ = store.ask(vec![question], at).await;
        });
    }

    /// The answer to the only check of a request, at once, if its limit is leased and what is held here says it all.
    #[inline]
    pub(crate) fn spend_at_once(&self, check: &Check<'_>) -> Option<Answer> {
        if check.limit.counting() != Counting::Leased || is_held(check) {
            return None;
        }
        let stored = self.stored.get(check.limit)?;
        stored.leased.as_ref()?;
        let decision = (self.leases).try_spend(LeaseKey::of(stored, check), check.cost)?;
        let mut answer = Answer::new(Some(0), decision);
        answer.source = self.leased_source();
        Some(answer)
    }

    /// How many tokens of a check's key were spent that weren't noted, and are left, which count as spent from now on.
    pub(crate) fn spent_ahead(&self, check: &Check<'_>) -> u64 {
        let stored = self.stored(check.limit).ok();
        let lent = stored.and_then(|stored| LeaseCheck::of(check, stored));
        lent.map_or(0, |lent| self.leases.spent_ahead(lent.lease_key()))
    }

    /// Nothing was asked just now. That the store works is true as long as the latest call did.
    fn leased_source(&self) -> Source {
        if self.store.is_failing() {
            Source::Known
        } else {
            Source::Ahead
        }
    }
}

impl Backend for Direct {
    type Error = StoreError;

    fn ask<'a>(
        &'a self,
        checks: &'a [Check<'a>],
        each: Option<&'a mut Vec<CheckResult>>,
    ) -> impl Future<Output = Result<Answer, StoreError>> + Send + 'a {
        if let ([check], None) = (checks, &each)
            && let Some(answer) = self.spend_at_once(check)
        {
            return Either::Left(ready(Ok(answer)));
        }
        let (needs, recheck) = match self.plan(checks) {
            Ok(Plan::Ask(needs, recheck)) => (needs, recheck),
            // A denial that is known here, or that a lease gives, asks the store nothing about the other checks.
            Ok(Plan::Refused(answer)) => return Either::Left(ready(Ok(answer))),
            Err(error) => return Either::Left(ready(Err(error))),
        };
        let asked: BoxFuture<'a, Result<Answer, StoreError>> =
            match (<[CheckPlan<'_>; 1]>::try_from(needs), each) {
                (Ok([CheckPlan::Answer(question)]), None)
                    if question.holder.is_none() && !is_held(&checks[0]) =>
                {
                    Box::pin(self.ask_one(checks, *question))
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
        // However many are asked, one after the other.
        let mut patience = self.store.patience();
        let mut each = Vec::with_capacity(checks.len());
        for check in checks {
            let (said, _) = self
                .run_operation(check, StoreOp::Look, None, &mut patience)
                .await?;
            each.push(Ok(said));
        }
        Ok(each)
    }

    async fn refund<'a>(
        &'a self,
        checks: &'a [Check<'a>],
        refund: Refund,
    ) -> Result<Gift, StoreError> {
        let refunded = match refund {
            Refund::Cost => self.act(checks, StoreOp::Gift).await,
            Refund::Everything => self.act(checks, StoreOp::Reset).await,
            Refund::Dropped => {
                self.refund_abandoned(checks);
                Ok(())
            }
        };
        // Even if that failed: it may have been done, or some of it.
        self.improved();
        refunded.map(|()| Gift::Given)
    }

    fn now(&self) -> Timestamp {
        match &self.time {
            Some(time) => time.now(),
            None => self.clock.now(),
        }
    }

    fn clocks(&self) -> Clocks {
        Clocks {
            timer: (self.time.clone()).unwrap_or_else(|| Arc::new(self.clock.clone())),
            wall: Arc::new(self.wall.clone()),
        }
    }

    fn deny_epoch(&self) -> Option<u64> {
        let epoch = self.epoch.load(Ordering::Acquire);
        (!self.refusals.are_kept()).then_some(epoch)
    }

    fn supports(&self, limit: &Limit) -> Result<(), String> {
        let stored = self.stored(limit);
        stored.map(drop).map_err(|error| error.to_string())
    }
}
