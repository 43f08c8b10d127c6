//! The store as a backend: checks in, answers or errors out.

mod ask;
mod asking;
mod compiled;
mod estimate;
mod peek;
#[cfg(test)]
mod tests;
mod undo;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::task::Waker;

use foldhash::SharedSeed;
use foldhash::quality::SeedableRandomState;
use tollgate::clock::Wakeup;
use tollgate::{Clock, Decision, Outcome, Timestamp};
use tollgate_engine::backend::{
    Answer, Backend, Check, DenyCache, DenyVersion, Limit, LimitKind, Local, Prepared, Source,
};
use tollgate_engine::policy::Counting;

use crate::error::{StoreError, StoreLimitError};
use crate::holders::Holders;
use crate::host::{Host, HostClock, HostWall};
use crate::lease::{LeaseKey, Leased, Leases};
use crate::question::{Kind, Op, Question};
use crate::redis::RedisBuilder;
use crate::store::Store;

pub use asking::Asking;
pub(crate) use compiled::Compiled;

use estimate::{hold_estimate, is_held};
use undo::Undo;

/// A clock of the caller's.
pub(crate) type Time = Arc<dyn Fn() -> Timestamp + Send + Sync>;

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
///     match direct.check(&[limit.check(&key, 1)]).await {
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
    /// This process's part of the limits, which is to know what the store admits.
    local: Arc<Local<HostClock, HostWall>>,
    pub(crate) prefix: Box<str>,
    life: std::time::Duration,
    /// Limits as the store reads them.
    compiled: Prepared<Compiled>,
    near: Option<DenyCache>,
    /// Tells limits apart.
    hasher: SeedableRandomState,
    /// How often something was given back here.
    epoch: AtomicU64,
    /// How far the store's clock is ahead of this node's, in microseconds.
    ahead: AtomicI64,
    clock: HostClock,
    wall: HostWall,
    /// Instead of the store's clock.
    time: Option<Time>,
    pub(crate) host: Host,
    near_hits: AtomicU64,
}

/// What is to be done about one check.
enum Step<'a> {
    /// Nothing: it was said here.
    Said(Decision),
    /// Spent from what is leased.
    Lease(&'a Compiled, Leased),
    Ask(Box<Question>),
}

impl Direct {
    pub(crate) fn new(
        builder: RedisBuilder,
        local: Arc<Local<HostClock, HostWall>>,
        host: Host,
    ) -> Result<Self, StoreError> {
        let store = Arc::new(Store::new(&builder.address, builder.timeout, &host)?);
        let leases = Leases::new(
            (Arc::clone(&store), Arc::clone(&local)),
            builder.terms,
            host.clone(),
        );
        let time = builder.time.map(Time::from);
        let holders = Holders::new(
            (Arc::clone(&store), time.clone()),
            host.clone(),
            builder.slot_life,
        );
        Ok(Self {
            store,
            leases,
            holders,
            local,
            prefix: builder.prefix.into(),
            life: builder.slot_life,
            compiled: Prepared::new(),
            near: (builder.near > 0).then(|| DenyCache::new(builder.near)),
            hasher: SeedableRandomState::with_seed(host.random(), SharedSeed::global_fixed()),
            epoch: AtomicU64::new(0),
            ahead: AtomicI64::new(0),
            clock: host.clock(),
            wall: host.wall(),
            time,
            host,
            near_hits: AtomicU64::new(0),
        })
    }

    /// The limit as the store reads it.
    pub(crate) fn compiled<'a>(&self, limit: &'a Limit) -> Result<&'a Compiled, StoreLimitError> {
        (self.compiled).get_or_make(limit, || Compiled::new(limit, self))
    }

    /// The time to say, if it isn't the store's.
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

    pub(crate) fn near_hits(&self) -> u64 {
        self.near_hits.load(Ordering::Relaxed)
    }

    /// Something may pass sooner than was said.
    pub(crate) fn improved(&self) {
        self.epoch.fetch_add(1, Ordering::Release);
    }

    /// The time, and how often something was given back until then.
    fn before(&self) -> (Timestamp, u64) {
        let epoch = self.epoch.load(Ordering::Acquire);
        (Backend::now(self), epoch)
    }

    /// A question about the key of a check.
    pub(crate) fn question(
        &self,
        check: &Check<'_>,
        op: Op,
        now: u64,
    ) -> Result<Question, StoreError> {
        let compiled = self.compiled(check.limit)?;
        self.question_of(check, compiled, op, now)
    }

    /// The same of a limit that is at hand.
    fn question_of(
        &self,
        check: &Check<'_>,
        compiled: &Compiled,
        op: Op,
        now: u64,
    ) -> Result<Question, StoreError> {
        let numbers = compiled.form.numbers_at(now);
        let numbers = numbers.ok_or_else(|| StoreError::Garbled {
            what: "a limit that nothing is kept of".to_owned(),
        })?;
        let slots = numbers.kind == Kind::Slots;
        Ok(Question {
            key: compiled.key(check).into(),
            op,
            numbers,
            // However much it costs, it runs once.
            cost: if slots { check.cost.min(1) } else { check.cost },
            holder: slots.then(|| self.holders.name()),
        })
    }

    /// The question whether a check passes.
    fn decide(
        &self,
        check: &Check<'_>,
        compiled: &Compiled,
        now: u64,
    ) -> Result<Question, StoreError> {
        let mut question = self.question_of(check, compiled, Op::Decide, now)?;
        if question.numbers.kind == Kind::Slots {
            // However little it costs, it runs once.
            question.cost = 1;
        }
        Ok(question)
    }

    /// What is known of a check without asking.
    fn known(&self, check: &Check<'_>, compiled: &Compiled) -> Option<Decision> {
        let known = compiled.form.known(check.cost);
        known.or_else(|| self.known_refusal(check, compiled))
    }

    /// What each check needs; a refusal that is known without asking.
    fn plan<'a>(&self, checks: &[Check<'a>]) -> Result<Result<Vec<Step<'a>>, Answer>, StoreError> {
        let mut steps = Vec::with_capacity(checks.len());
        let now = self.store_time();
        for (number, check) in checks.iter().enumerate() {
            let compiled = self.compiled(check.limit)?;
            steps.push(match self.known(check, compiled) {
                Some(known) if !known.is_allowed() => {
                    let mut answer = Answer::new(Some(number), known);
                    answer.source = Source::Known;
                    return Ok(Err(answer));
                }
                Some(known) => Step::Said(known),
                None => match compiled.leased {
                    Some(leased) => Step::Lease(compiled, leased),
                    None => Step::Ask(Box::new(self.decide(check, compiled, now)?)),
                },
            });
        }
        Ok(Ok(steps))
    }

    /// What is said at once of a limit that is leased, if what is held here says it all.
    #[inline]
    pub(crate) fn spend_leased(&self, check: &Check<'_>) -> Option<Answer> {
        let leased = self.compiled.get(check.limit)?.leased.as_ref()?;
        let place = LeaseKey::of(leased, check);
        let decision = self.leases.try_spend(place, check.cost)?;
        let mut answer = Answer::new(Some(0), decision);
        answer.source = self.source_ahead();
        Some(answer)
    }

    /// Nothing was asked just now. That the store works is true as long as the latest call did.
    fn source_ahead(&self) -> Source {
        match self.store.is_failing() {
            true => Source::Known,
            false => Source::Ahead,
        }
    }

    /// A refusal that still holds.
    fn known_refusal(&self, check: &Check<'_>, compiled: &Compiled) -> Option<Decision> {
        let near = self.near.as_ref().filter(|_| compiled.leased.is_none())?;
        let (now, epoch) = self.before();
        let version = DenyVersion(compiled.version, epoch);
        let (_, decision) = near.find(&[*check], now, version)?;
        self.near_hits.fetch_add(1, Ordering::Relaxed);
        Some(decision)
    }

    /// Does what was planned, all or none. Also says what each check said, unless one refused before all
    /// were asked.
    async fn carry_out(
        &self,
        checks: &[Check<'_>],
        steps: Vec<Step<'_>>,
    ) -> Result<(Answer, Option<Vec<Decision>>), StoreError> {
        let mut decisions = vec![Decision::UNLIMITED; checks.len()];
        let mut undo = Undo::new(self);
        // However many are asked, one after the other.
        let mut patience = self.store.patience();
        let mut asked: Vec<(usize, Question)> = Vec::new();
        let mut is_known = true;
        for (number, step) in steps.into_iter().enumerate() {
            match step {
                Step::Said(decision) => decisions[number] = decision,
                Step::Lease(compiled, leased) if is_held(&checks[number]) => {
                    is_known = false;
                    let held = self.hold_lease(&checks[number], compiled, &leased, &mut patience);
                    let (decision, estimate) = held.await?;
                    let Some(estimate) = estimate else {
                        return Ok((Answer::new(Some(number), decision), None));
                    };
                    decisions[number] = decision;
                    undo.estimates.push((number, estimate));
                }
                Step::Lease(compiled, leased) => {
                    let check = &checks[number];
                    let place = LeaseKey::of(&leased, check);
                    let plans = self.leases.plans(place);
                    let spent = self.leases.try_spend(place, check.cost);
                    let decision = match spent {
                        Some(decision) => decision,
                        None => {
                            is_known = false;
                            let key = || compiled.key(check).into();
                            let spent =
                                self.leases
                                    .spend((place, check), &leased, key, &mut patience);
                            spent.await?
                        }
                    };
                    if !decision.is_allowed() {
                        let mut answer = Answer::new(Some(number), decision);
                        if is_known {
                            answer.source = self.source_ahead();
                        }
                        return Ok((answer, None));
                    }
                    decisions[number] = decision;
                    undo.leases.push((place, check.cost, plans));
                }
                Step::Ask(question) => asked.push((number, *question)),
            }
        }
        for group in self.groups(asked) {
            let (numbers, questions): (Vec<_>, Vec<_>) = group.into_iter().unzip();
            // Before the question: whatever improves after it makes its answer old.
            let before = self.before();
            is_known = false;
            // It may be carried out although no answer comes, or nobody waits for it any more.
            let slots = questions.iter().filter(|asked| asked.holder.is_some());
            undo.unsure.extend(slots.cloned());
            let answers = self
                .ask(
                    checks,
                    &numbers,
                    (questions.clone(), self.at()),
                    &mut patience,
                )
                .await?;
            undo.unsure.clear();
            let mut is_refused = false;
            for ((number, question), raw) in numbers.iter().zip(&questions).zip(&answers.each) {
                decisions[*number] = raw.decision(question.numbers.limit);
                is_refused |= !decisions[*number].is_allowed();
            }
            if is_refused {
                for number in &numbers {
                    // Those that would have passed weren't charged either.
                    let uncharged = Check {
                        cost: 0,
                        ..checks[*number]
                    };
                    self.local.note(&uncharged, &decisions[*number]);
                }
                let answer = self.refused(checks, &decisions, &numbers, before);
                let asked_all = numbers.len() == checks.len();
                return Ok((answer, asked_all.then_some(decisions)));
            }
            let charged = numbers.into_iter().zip(questions);
            let charged = charged.filter(|(_, question)| question.cost > 0);
            undo.charges
                .extend(charged.map(|(number, question)| (number, question, answers.now)));
        }
        let mut answer = Answer::over(checks, &decisions);
        if is_known {
            answer.source = self.source_ahead();
        }
        for (check, decision) in checks.iter().zip(&decisions) {
            // What is spent of a lease is noted when the store is next asked.
            if check.limit.counting() == Counting::Exact && !self.is_lent(check.limit) {
                self.local.note(check, decision);
            }
            if let Some(slot) = self.local.hold_slot(check) {
                answer.pass = std::mem::take(&mut answer.pass).and(slot);
            }
        }
        let (charges, estimates) = undo.keep();
        for (number, question, since) in charges {
            if let Some(end) = self.holders.hold(&question) {
                answer.pass.hold(move |_| end());
            } else if is_held(&checks[number]) {
                self.hold_charge(&checks[number], (question, since), &mut answer.pass);
            }
        }
        for (number, estimate) in estimates {
            hold_estimate(&checks[number], estimate, &mut answer.pass);
        }
        Ok((answer, Some(decisions)))
    }

    /// Does what was planned, for those who want to know no more.
    async fn answer(
        &self,
        checks: &[Check<'_>],
        steps: Vec<Step<'_>>,
    ) -> Result<Answer, StoreError> {
        let (answer, _) = self.carry_out(checks, steps).await?;
        Ok(answer)
    }

    /// Asks the only question of a request, which takes no slot: there is nothing to put back.
    async fn ask_one(
        &self,
        checks: &[Check<'_>],
        question: Question,
    ) -> Result<Answer, StoreError> {
        let limit = question.numbers.limit;
        let (question, mut patience) = ((vec![question], self.at()), self.store.patience());
        // Before the question: whatever improves after it makes its answer old.
        let before = self.before();
        // The answer is noted: what that needs is fetched while the store decides.
        let (noted, key) = (checks[0].limit, &checks[0].key);
        self.local.memory().prefetch(noted, key.fingerprint());
        let answers = self.ask(checks, &[0], question, &mut patience).await?;
        let decision = answers.each[0].decision(limit);
        self.local.note(&checks[0], &decision);
        Ok(match decision.is_allowed() {
            true => Answer::new(Some(0), decision),
            false => self.refused(checks, &[decision], &[0], before),
        })
    }

    /// Whether a limit is spent by leases, whatever is taken ahead.
    fn is_lent(&self, limit: &Limit) -> bool {
        let compiled = self.compiled(limit);
        compiled.is_ok_and(|compiled| compiled.leased.is_some())
    }

    /// The answer to a request that some of these refused.
    fn refused(
        &self,
        checks: &[Check<'_>],
        decisions: &[Decision],
        numbers: &[usize],
        (at, epoch): (Timestamp, u64),
    ) -> Answer {
        let mut refusals = vec![Decision::UNLIMITED; checks.len()];
        for number in numbers {
            refusals[*number] = decisions[*number];
        }
        let answer = Answer::over(checks, &refusals);
        if let (Some(near), Some(number)) = (&self.near, answer.decider)
            && answer.decision.outcome == Outcome::Denied
            && let Ok(compiled) = self.compiled(checks[number].limit)
        {
            let version = DenyVersion(compiled.version, epoch);
            near.note(&checks[number], &answer.decision, at, version);
        }
        answer
    }
}

impl Backend for Direct {
    type Error = StoreError;
    type Asking<'a> = Asking<'a>;

    fn check<'a>(&'a self, checks: &'a [Check<'a>]) -> Asking<'a> {
        // What is leased is said at once.
        if let [check] = checks
            && check.limit.counting() == Counting::Leased
            && !is_held(check)
            && let Some(answer) = self.spend_leased(check)
        {
            return Asking::said(Ok(answer));
        }
        match self.plan(checks) {
            Ok(Ok(steps)) => Asking::asked(match <[Step<'_>; 1]>::try_from(steps) {
                Ok([Step::Ask(question)]) if question.holder.is_none() && !is_held(&checks[0]) => {
                    Box::pin(self.ask_one(checks, *question))
                }
                Ok([step]) => Box::pin(self.answer(checks, vec![step])),
                Err(steps) => Box::pin(self.answer(checks, steps)),
            }),
            Ok(Err(answer)) => Asking::said(Ok(answer)),
            Err(error) => Asking::said(Err(error)),
        }
    }

    async fn check_each<'a>(
        &'a self,
        checks: &'a [Check<'a>],
    ) -> Result<(Answer, Vec<Decision>), StoreError> {
        let (answer, each) = match self.plan(checks)? {
            Ok(steps) => self.carry_out(checks, steps).await?,
            Err(answer) => (answer, None),
        };
        let each = match each {
            Some(each) => each,
            None => self.look_at_each(checks, &answer).await?,
        };
        Ok((answer, each))
    }

    async fn peek<'a>(&'a self, checks: &'a [Check<'a>]) -> Result<Vec<Decision>, StoreError> {
        self.look_at_all(checks).await
    }

    async fn give_back<'a>(&'a self, checks: &'a [Check<'a>]) -> Result<(), StoreError> {
        let now = self.store_time();
        let mut asked = Vec::new();
        for (number, check) in checks.iter().enumerate() {
            let compiled = self.compiled(check.limit)?;
            let is_asked = compiled.form.known(check.cost).is_none() && !compiled.is_leased;
            let is_slots = matches!(check.limit.kind(), LimitKind::Concurrency(_));
            if is_asked && !is_slots {
                asked.push((number, self.question(check, Op::Gift, now)?));
            }
        }
        for (number, question) in asked {
            // An act is a request of its own.
            let question = (vec![question], self.at());
            let mut patience = self.store.patience();
            self.ask(checks, &[number], question, &mut patience).await?;
        }
        self.improved();
        Ok(())
    }

    fn spent_ahead(&self, check: &Check<'_>) -> u64 {
        let compiled = self.compiled(check.limit).ok();
        let leased = compiled.and_then(|compiled| compiled.leased.as_ref());
        leased.map_or(0, |leased| {
            self.leases.spent_ahead(LeaseKey::of(leased, check))
        })
    }

    fn now(&self) -> Timestamp {
        match &self.time {
            Some(time) => time(),
            None => self.clock.now(),
        }
    }

    fn wake_at(&self, at: Timestamp, waker: &Waker) -> Option<Wakeup> {
        match &self.time {
            // A clock of the caller's, which is looked at.
            Some(_) => None,
            None => self.clock.wake_at(at, waker),
        }
    }

    fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Acquire)
    }

    fn is_in_part(&self, error: &StoreError) -> bool {
        matches!(error, StoreError::Foreign { .. }) || self.store.answers_in_part()
    }

    fn supports(&self, limit: &Limit) -> Result<(), String> {
        let compiled = self.compiled(limit);
        compiled.map(drop).map_err(|error| error.to_string())
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
