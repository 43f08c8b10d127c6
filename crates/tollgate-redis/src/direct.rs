//! The store as a backend: checks in, answers or errors out, in three steps: plan, carry out, put right.

mod ask;
mod carry_out;
mod estimate;
mod plan;
#[cfg(test)]
mod tests;
mod undo;

use std::fmt;
use std::future::ready;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use foldhash::SharedSeed;
use foldhash::quality::SeedableRandomState;
use futures_util::future::{BoxFuture, Either};
use tollgate::{Clock, Decision, Timestamp};
use tollgate_engine::backend::{
    Answer, Backend, Check, CheckResult, Clocks, Gift, Limit, LimitKind, Prepared, Refund, Source,
};
use tollgate_engine::policy::Counting;

use crate::error::{StoreError, StoreLimitError};
use crate::fallback::{Extent, RemoteBackend, RemoteFailure};
use crate::holders::Holders;
use crate::host::{Host, HostClock, HostWall, Time};
use crate::lease::{Forgiven, Leases};
use crate::local::Local;
use crate::options::Options;
use crate::question::{Op, Question};
use crate::refusals::{Refusals, end_recheck};
use crate::store::{Patience, Store};
use crate::stored::{LeaseCheck, LeaseKey, Naming, StoredLimit};

use estimate::is_held;
use plan::{Need, Plan};

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
pub struct Direct {
    pub(crate) store: Arc<Store>,
    pub(crate) leases: Leases,
    pub(crate) holders: Holders,
    /// This process's part of the limits, which is told what the store admits.
    local: Arc<Local<HostClock, HostWall>>,
    pub(crate) naming: Naming,
    /// Limits as the store reads them.
    stored: Prepared<StoredLimit>,
    pub(crate) refusals: Refusals,
    /// How often something was given back here.
    epoch: AtomicU64,
    /// How far the store's clock is ahead of this node's, in microseconds.
    ahead: AtomicI64,
    clock: HostClock,
    wall: HostWall,
    /// Instead of the store's clock.
    time: Option<Time>,
    pub(crate) host: Host,
}

impl Direct {
    pub(crate) fn new(
        options: &Options,
        local: Arc<Local<HostClock, HostWall>>,
        host: Host,
    ) -> Result<Self, StoreError> {
        let store = Arc::new(Store::new(&options.address, options.timeout, &host)?);
        let (own, part) = (Arc::clone(&store), Arc::clone(&local));
        let leases = Leases::new(own, part, options.terms, host.clone());
        let time = options.time.clone();
        let own = Arc::clone(&store);
        let holders = Holders::new(own, time.clone(), host.clone(), options.slot_life);
        Ok(Self {
            store,
            leases,
            holders,
            local,
            naming: Naming {
                prefix: options.prefix.as_str().into(),
                slot_life: options.slot_life,
                hasher: SeedableRandomState::with_seed(host.random(), SharedSeed::global_fixed()),
            },
            stored: Prepared::new(),
            refusals: Refusals::new(options.near),
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
        self.time.as_ref().map(|time| time().as_nanos() / 1000)
    }

    /// About what the store's clock shows, in microseconds.
    pub(crate) fn store_time(&self) -> u64 {
        let here = self.wall.now().as_nanos() / 1000;
        let ahead = self.ahead.load(Ordering::Relaxed);
        self.at().unwrap_or(here.saturating_add_signed(ahead))
    }

    fn note_time(&self, now: u64) {
        let here = self.wall.now().as_nanos() / 1000;
        let ahead = i64::try_from(i128::from(now) - i128::from(here)).unwrap_or(0);
        self.ahead.store(ahead, Ordering::Relaxed);
    }

    /// Something that was refused may pass sooner than it was told.
    pub(crate) fn improved(&self) {
        self.epoch.fetch_add(1, Ordering::Release);
    }

    /// This moment. Read before a question: whatever improves after it makes its answer old.
    fn moment(&self) -> Moment {
        let epoch = self.epoch.load(Ordering::Acquire);
        let at = self.now();
        Moment { at, epoch }
    }
}

/// A time, and how often something was given back until then.
#[derive(Clone, Copy, Debug)]
struct Moment {
    at: Timestamp,
    epoch: u64,
}

/// The caller's clock. It wakes nobody: a request that waits reads it now and then.
struct CallersClock(Time);

impl Clock for CallersClock {
    fn now(&self) -> Timestamp {
        (self.0)()
    }
}

impl Direct {
    /// Does something to the keys of checks, but to no slots. One key that holds what no limiter wrote keeps nothing
    /// from the others.
    async fn act(&self, checks: &[Check<'_>], op: Op) -> Result<(), StoreError> {
        let now = self.store_time();
        let mut asked = Vec::new();
        for (number, check) in checks.iter().enumerate() {
            let stored = self.stored(check.limit)?;
            let is_slots = matches!(check.limit.kind(), LimitKind::Concurrency(_));
            if stored.form.known(check.cost).is_none() && !is_slots {
                asked.push((number, stored, self.question(check, op, now)?));
            }
        }
        let mut strange = Ok(());
        for (number, stored, question) in asked {
            // Each is a request by itself.
            let mut patience = self.store.patience();
            let done = match LeaseCheck::of(&checks[number], stored) {
                Some(check) => self.forgive(check, op, &mut patience).await,
                None => {
                    let (numbers, asked, at) = ([number], vec![question], self.at());
                    let sent = self.send(checks, &numbers, asked, at, &mut patience);
                    sent.await.map(drop)
                }
            };
            match done {
                Err(error) if !matches!(error, StoreError::Foreign { .. }) => return Err(error),
                done => strange = strange.and(done),
            }
        }
        strange
    }

    /// Has what these checks cost refunded, and waits for nothing.
    fn refund_dropped(&self, checks: &[Check<'_>]) {
        let now = self.store_time();
        for check in checks {
            let Ok(stored) = self.stored(check.limit) else {
                continue;
            };
            if let Some(leased) = &stored.leased {
                let place = LeaseKey::of(leased, check);
                self.leases.put_back_late(place, check.cost);
            } else if !matches!(check.limit.kind(), LimitKind::Concurrency(_))
                && stored.form.known(check.cost).is_none()
                && let Ok(question) = self.question(check, Op::Gift, now)
            {
                self.tell_store(question);
            }
        }
    }

    /// Tells the store something that nobody waits for. If it can't be told, what was charged drains by itself.
    fn tell_store(&self, question: Question) {
        let (store, at) = (Arc::clone(&self.store), self.at());
        self.host.spawn(async move {
            let _ = store.ask(vec![question], at).await;
        });
    }

    /// Gives back what a check of a leased limit says, or all that its key has spent.
    pub(crate) async fn forgive(
        &self,
        check: LeaseCheck<'_>,
        op: Op,
        patience: &mut Patience,
    ) -> Result<(), StoreError> {
        let forgiven = match op {
            Op::Reset => Forgiven::All,
            _ => Forgiven::Tokens(check.check.cost),
        };
        let done = self.leases.forgive(check, forgiven, patience).await;
        // Even if that failed: it may have been done.
        self.leases.was_reset();
        done
    }

    /// What one of these checks would say by itself.
    async fn peek_one(
        &self,
        checks: &[Check<'_>],
        number: usize,
        patience: &mut Patience,
    ) -> Result<Decision, StoreError> {
        let check = &checks[number];
        let stored = self.stored(check.limit)?;
        // What is remembered of denials isn't read: another process may have reset the key.
        if let Some(known) = stored.form.known(check.cost) {
            return Ok(known);
        }
        if let Some(check) = LeaseCheck::of(check, stored) {
            return self.leases.peek(check, patience).await;
        }
        let mut question = self.decide(check, stored, self.store_time())?;
        question.op = Op::Look;
        let numbers = question.numbers;
        let (asked, at) = (vec![question], self.at());
        let answers = self.send(checks, &[number], asked, at, patience).await?;
        Ok(answers.each[0].decision(&numbers))
    }

    /// The answer to the only check of a request, at once, if its limit is leased and what is held here says it all.
    #[inline]
    pub(crate) fn spend_at_once(&self, check: &Check<'_>) -> Option<Answer> {
        if check.limit.counting() != Counting::Leased || is_held(check) {
            return None;
        }
        let leased = self.stored.get(check.limit)?.leased.as_ref()?;
        let decision = (self.leases).try_spend(LeaseKey::of(leased, check), check.cost)?;
        let mut answer = Answer::new(Some(0), decision);
        answer.source = self.source_ahead();
        Some(answer)
    }

    /// Nothing was asked just now. That the store works is true as long as the latest call did.
    fn source_ahead(&self) -> Source {
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
            match (<[Need<'_>; 1]>::try_from(needs), each) {
                (Ok([Need::Answer(question)]), None)
                    if question.holder.is_none() && !is_held(&checks[0]) =>
                {
                    Box::pin(self.ask_one(checks, *question))
                }
                (Ok([need]), each) => Box::pin(self.answer(checks, vec![need], each)),
                (Err(needs), each) => Box::pin(self.answer(checks, needs, each)),
            };
        Either::Right(match recheck {
            None => asked,
            Some(recheck) => Box::pin(async {
                let came = asked.await;
                end_recheck(recheck, &came);
                came
            }),
        })
    }

    async fn peek<'a>(&'a self, checks: &'a [Check<'a>]) -> Result<Vec<CheckResult>, StoreError> {
        // However many are asked, one after the other.
        let mut patience = self.store.patience();
        let mut each = Vec::with_capacity(checks.len());
        for number in 0..checks.len() {
            each.push(Ok(self.peek_one(checks, number, &mut patience).await?));
        }
        Ok(each)
    }

    async fn refund<'a>(
        &'a self,
        checks: &'a [Check<'a>],
        refund: Refund,
    ) -> Result<Gift, StoreError> {
        let refunded = match refund {
            Refund::Cost => self.act(checks, Op::Gift).await,
            Refund::Everything => self.act(checks, Op::Reset).await,
            Refund::Dropped => {
                self.refund_dropped(checks);
                Ok(())
            }
        };
        // Even if that failed: it may have been done, or some of it.
        self.improved();
        refunded.map(|()| Gift::Given)
    }

    fn now(&self) -> Timestamp {
        match &self.time {
            Some(time) => time(),
            None => self.clock.now(),
        }
    }

    fn clocks(&self) -> Clocks {
        Clocks {
            timer: match &self.time {
                Some(time) => Arc::new(CallersClock(Arc::clone(time))),
                None => Arc::new(self.clock.clone()),
            },
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

impl RemoteBackend for Direct {
    fn failure(&self, error: &StoreError) -> RemoteFailure {
        let extent = match error {
            StoreError::Foreign { .. } => Extent::Key,
            _ if self.store.answers_in_part() => Extent::Part,
            _ => Extent::Whole,
        };
        let kind = error.kind();
        RemoteFailure { kind, extent }
    }

    fn spent_ahead(&self, check: &Check<'_>) -> u64 {
        let stored = self.stored(check.limit).ok();
        let leased = stored.and_then(|stored| stored.leased.as_ref());
        leased.map_or(0, |leased| {
            self.leases.spent_ahead(LeaseKey::of(leased, check))
        })
    }

    fn known_denial(&self, checks: &[Check<'_>]) -> Option<(usize, Decision)> {
        self.denial_of(checks)
    }
}

impl fmt::Debug for Direct {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Direct")
            .field("store", &self.store)
            .field("leases", &self.leases)
            .finish_non_exhaustive()
    }
}
