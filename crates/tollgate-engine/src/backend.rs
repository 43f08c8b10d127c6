//! Who answers checks: the one seam between the engine and where state is kept.

use std::fmt;
use std::future::Future;
use std::time::Duration;

use std::task::Waker;

use tollgate::clock::Wakeup;
use tollgate::{Algorithm, Decision, LimitError, Outcome, Rate, Timestamp, stack::Pass};

use crate::policy::{Counting, OnStoreFailure, Settle};

mod each;
mod fallback;
mod kept;
mod kind;
mod local;
mod memory;
mod sole;

pub use crate::engine::deny::{DenyCache, DenyVersion};
pub use crate::engine::key::Key;
pub use fallback::{AskingOrFallback, Breaker, Fallback, FallbackStats, StoreEvent};
pub use kept::Keeper;
pub use kind::LimitKind;
pub use local::{Local, Owed};
pub use memory::{Memory, MemoryBuilder};
pub use sole::SoleLimit;

pub(crate) use kept::Kept;
pub(crate) use local::Shared;
pub(crate) use memory::Compiled;

/// Answers checks, all or none: in memory, in a store, or leased from one.
///
/// A backend keeps state by [`Limit::counter`] and key; the limit itself comes with each check, so a
/// policy can change at any time. It never refuses because something broke: that is an error.
///
/// One that keeps its state elsewhere implements two methods:
///
/// ```
/// use std::convert::Infallible;
/// use std::future::{Ready, ready};
/// use std::time::Duration;
/// use tollgate::{Clock, Decision, Outcome, Timestamp, clock::Manual};
/// use tollgate_engine::backend::{Answer, Backend, Check};
///
/// /// Nothing passes.
/// struct Closed(Manual);
///
/// impl Backend for Closed {
///     type Error = Infallible;
///     type Asking<'a> = Ready<Result<Answer, Infallible>>;
///
///     fn check<'a>(&'a self, checks: &'a [Check<'a>]) -> Self::Asking<'a> {
///         let never = Decision::new(Outcome::Never, 0, 0, Duration::MAX, Duration::ZERO);
///         ready(Ok(Answer::new(checks.len().checked_sub(1), never)))
///     }
///
///     fn now(&self) -> Timestamp {
///         self.0.now()
///     }
/// }
/// assert_eq!(Closed(Manual::new()).now(), Timestamp::ZERO);
/// ```
pub trait Backend: Send + Sync {
    /// What can break.
    type Error: fmt::Display + Send;

    /// An answer on its way; one that is already there for a backend in memory.
    type Asking<'a>: Future<Output = Result<Answer, Self::Error>> + Send
    where
        Self: 'a;

    /// Charges all checks, or none.
    fn check<'a>(&'a self, checks: &'a [Check<'a>]) -> Self::Asking<'a>;

    /// The same, and what each check said by itself: what is left after the charge, or whether it would have
    /// passed alone, and if not after how long. One that can tell in the same breath does; unless said otherwise
    /// each is asked again what is left, and those that refuse are told to wait as long as the one that takes
    /// longest. No two of the checks are of one counter and key, unless one of them costs nothing.
    fn check_each<'a>(
        &'a self,
        checks: &'a [Check<'a>],
    ) -> impl Future<Output = Result<(Answer, Vec<Decision>), Self::Error>> + Send + 'a {
        each::again(self, checks)
    }

    /// Gives back what these checks cost, whatever it was charged for: at most what was spent. Unless said
    /// otherwise nothing is.
    fn give_back<'a>(
        &'a self,
        checks: &'a [Check<'a>],
    ) -> impl Future<Output = Result<(), Self::Error>> + Send + 'a {
        let _ = checks;
        std::future::ready(Ok(()))
    }

    /// What each check would say by itself, charging nothing: whether its cost would pass, if not after how long,
    /// and what is left. Unless said otherwise each is asked at no cost what is left, and what isn't enough is told
    /// to wait until all is.
    fn peek<'a>(
        &'a self,
        checks: &'a [Check<'a>],
    ) -> impl Future<Output = Result<Vec<Decision>, Self::Error>> + Send + 'a {
        each::peek(self, checks)
    }

    /// How much of a check's limit was spent, of what a store had given ahead, that nobody was told of; and what
    /// could still be, which from now on can't. Asked before something is decided without the store.
    fn spent_ahead(&self, check: &Check<'_>) -> u64 {
        let _ = check;
        0
    }

    /// The time by which it judges, to tell how long something takes and how long a refusal holds.
    fn now(&self) -> Timestamp;

    /// Wakes a task once [`now`](Self::now) shows `at`, as [`Clock::wake_at`](tollgate::Clock::wake_at) does: for
    /// those who wait for their turn. None, unless said otherwise: its time goes on with the system's.
    fn wake_at(&self, at: Timestamp, waker: &Waker) -> Option<Wakeup> {
        let _ = (at, waker);
        None
    }

    /// A check of this limit, and of a key with this [fingerprint](Key::fingerprint), is likely to
    /// come: a backend in memory starts to fetch what it needs for that, and doesn't wait for it.
    #[inline]
    fn expect(&self, limit: &Limit, fingerprint: [u64; 2]) {
        let _ = (limit, fingerprint);
    }

    /// Whether it can keep such a limit: asked before a policy is put in force. Anything, unless said otherwise.
    ///
    /// # Errors
    /// Why not, and what to do instead.
    fn takes(&self, limit: &Limit) -> Result<(), String> {
        let _ = limit;
        Ok(())
    }

    /// A number that changes whenever something that was refused may pass sooner than was said: a
    /// charge was given back, a key reset. What was remembered of refusals before is forgotten then.
    fn improvements(&self) -> u64 {
        0
    }

    /// Whether an error is about a part of the store, one node or one key of many, and the rest of it answers:
    /// then no [circuit](Breaker) breaks, which would keep others from what they can have.
    fn is_in_part(&self, error: &Self::Error) -> bool {
        let _ = error;
        false
    }
}

/// One question: may this key take so much of this limit?
///
/// ```
/// # use std::{convert::Infallible, future::{Ready, ready}, pin::pin, sync::Mutex, task::{Context, Waker}};
/// # use tollgate::{Decision, Timestamp};
/// # use tollgate_engine::backend::{Answer, Backend, Check, Counter, Limit, LimitKind};
/// # use tollgate_engine::document::Format;
/// # use tollgate_engine::policy::OnStoreFailure;
/// # use tollgate_engine::{Engine, Facts, Policy};
/// # struct Noting(Mutex<Vec<String>>);
/// # impl Backend for Noting {
/// #     type Error = Infallible;
/// #     type Asking<'a> = Ready<Result<Answer, Infallible>>;
/// #     fn now(&self) -> Timestamp { Timestamp::ZERO }
/// #     fn check<'a>(&'a self, checks: &'a [Check<'a>]) -> Self::Asking<'a> {
/// // In a backend, of a policy with `{name: per-user, key: user, rate: 5/s, quota: 9/day}`:
/// for check in checks {
///     let note = format!("{} of {}", check.cost, check.key);
/// #     self.0.lock().expect("not poisoned").push(note);
/// }
/// #         ready(Ok(Answer::new(None, Decision::UNLIMITED)))
/// #     }
/// # }
/// # let policy = Policy::from_text("limits: [{name: per-user, key: user, rate: 5/s, quota: 9/day}]", Format::Yaml)?.policy;
/// # let engine = Engine::new(policy, Noting(Mutex::default()))?;
/// # let facts = Facts::new().with("user", "42");
/// # let _ = pin!(engine.decide_by(&facts)).poll(&mut Context::from_waker(Waker::noop()));
/// # let noted = engine.backend().0.lock().expect("not poisoned").join(", ");
/// assert_eq!(noted, "1 of user=42, 1 of user=42");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Check<'a> {
    /// The limit.
    pub limit: &'a Limit,
    /// Whose.
    pub key: Key<'a>,
    /// How much.
    pub cost: u64,
}

impl<'a> Check<'a> {
    /// A question about a key of which only the fingerprint is known, as it is for rates and slots that are
    /// kept in memory. Quotas are kept by the key itself.
    pub fn by_fingerprint(limit: &'a Limit, fingerprint: [u64; 2], cost: u64) -> Self {
        let key = Key::unnamed(fingerprint);
        Self { limit, key, cost }
    }
}

/// The answer to all checks of a request, as a backend gives it: who decides for requests asks an
/// [engine](crate::Engine), whose [verdict](crate::Verdict) can't lose its slots unseen.
///
/// ```
/// use tollgate::Decision;
/// use tollgate_engine::backend::Answer;
///
/// let open = Answer::new(None, Decision::UNLIMITED);
/// assert!(open.allowed && open.fallback.is_none());
/// ```
#[derive(Debug)]
#[non_exhaustive]
#[must_use = "it holds the slots of the request, and gives them back when it is dropped"]
pub struct Answer {
    /// Whether all passed, and were charged. If not, nothing was.
    pub allowed: bool,
    /// The check that decided: the tightest, or of those that refused the one that takes longest.
    pub decider: Option<usize>,
    /// What it said.
    pub decision: Decision,
    /// Slots of concurrency limits.
    pub pass: Pass,
    /// If a store couldn't be asked: what decided instead. A refusal of a limit that is
    /// [closed](OnStoreFailure::Closed) then says nothing about that limit.
    pub fallback: Option<OnStoreFailure>,
    /// Where it is from: what that says about a store.
    pub source: Source,
}

/// Where an answer is from.
///
/// ```
/// use tollgate::Decision;
/// use tollgate_engine::backend::{Answer, Source};
///
/// assert_eq!(Answer::new(None, Decision::UNLIMITED).source, Source::Asked);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The backend was asked: it works.
    Asked,
    /// The backend was asked before, and its latest answer says that it works.
    Ahead,
    /// It was known here, which says nothing about the backend.
    Known,
}

impl Answer {
    /// The answer of checks that said this, each by itself: of those that refused the one that takes
    /// longest, or else the one with the fewest such requests left.
    ///
    pub fn over(checks: &[Check<'_>], decisions: &[Decision]) -> Self {
        let said = || checks.iter().zip(decisions).enumerate();
        let wait = |decision: &Decision| match decision.outcome {
            Outcome::Never => Duration::MAX,
            _ => decision.retry_after,
        };
        let refused = said().filter(|(_, (_, decision))| !decision.is_allowed());
        // Of equals the first: `max_by_key` takes the last.
        let gravest = refused
            .rev()
            .max_by_key(|(_, (_, decision))| wait(decision));
        let cost = |check: &Check<'_>| match check.limit.kind() {
            // However much it costs, it runs once.
            LimitKind::Concurrency(_) => 1,
            _ => check.cost.max(1),
        };
        let tightest =
            || said().min_by_key(|(_, (check, decision))| decision.remaining / cost(check));
        match gravest.or_else(tightest) {
            Some((number, (_, decision))) => Self::new(Some(number), *decision),
            None => Self::new(None, Decision::UNLIMITED),
        }
    }

    /// What the check that decided said: the tightest if all passed, or of those that refused the one
    /// that takes longest.
    pub fn new(decider: Option<usize>, decision: Decision) -> Self {
        Self {
            allowed: decision.is_allowed(),
            decider,
            decision,
            pass: Pass::default(),
            fallback: None,
            source: Source::Asked,
        }
    }
}

/// What one check is judged by.
///
/// ```
/// # use std::{convert::Infallible, future::{Ready, ready}, pin::pin, sync::Mutex, task::{Context, Waker}};
/// # use tollgate::{Decision, Timestamp};
/// # use tollgate_engine::backend::{Answer, Backend, Check, Counter, Limit, LimitKind};
/// # use tollgate_engine::document::Format;
/// # use tollgate_engine::policy::OnStoreFailure;
/// # use tollgate_engine::{Engine, Facts, Policy};
/// # struct Noting(Mutex<Vec<String>>);
/// # impl Backend for Noting {
/// #     type Error = Infallible;
/// #     type Asking<'a> = Ready<Result<Answer, Infallible>>;
/// #     fn now(&self) -> Timestamp { Timestamp::ZERO }
/// #     fn check<'a>(&'a self, checks: &'a [Check<'a>]) -> Self::Asking<'a> {
/// // In a backend, of a policy with `{name: per-user, key: user, rate: 5/s, quota: 9/day}`:
/// for check in checks {
///     let note = format!("{:?}", check.limit.on_store_failure());
/// #     self.0.lock().expect("not poisoned").push(note);
/// }
/// #         ready(Ok(Answer::new(None, Decision::UNLIMITED)))
/// #     }
/// # }
/// # let policy = Policy::from_text("limits: [{name: per-user, key: user, rate: 5/s, quota: 9/day}]", Format::Yaml)?.policy;
/// # let engine = Engine::new(policy, Noting(Mutex::default()))?;
/// # let facts = Facts::new().with("user", "42");
/// # let _ = pin!(engine.decide_by(&facts)).poll(&mut Context::from_waker(Waker::noop()));
/// # let noted = engine.backend().0.lock().expect("not poisoned").join(", ");
/// assert_eq!(noted, "Closed, Closed"); // A rule with a quota is, as a whole.
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
// What every decision reads comes first and is small: of ten thousand limits few are in a cache.
#[derive(Clone, Debug)]
pub struct Limit {
    pub(crate) compiled: Compiled,
    /// Of the counter.
    pub(crate) id: u64,
    /// Whether a refusal holds as long as it says, whatever others do.
    pub(crate) lasting: bool,
    /// Whether what it is asked for is an estimate, to be settled.
    pub(crate) is_estimated: bool,
    pub(crate) on_store_failure: OnStoreFailure,
    pub(crate) counting: Counting,
    pub(crate) told: Box<Told>,
}

/// What a limit is called.
#[derive(Clone, Debug)]
pub(crate) struct Told {
    pub(crate) kind: LimitKind,
    pub(crate) counter: Counter,
    pub(crate) slot: Option<Box<str>>,
    pub(crate) estimates: Estimates,
    /// By a backend.
    pub(crate) kept: Kept,
    /// By this process, for when the backend can't be asked.
    pub(crate) share: Shared,
}

/// Whether a limit's counter keeps track of estimates that are held of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Estimates {
    /// Costs are what they are.
    #[default]
    None,
    /// Of others that count in it.
    OfOthers,
    /// Its own are.
    Own(Settle),
}

/// Which state a limit is kept in, together with the key: limits of the same counter count together.
///
/// ```
/// # use std::{convert::Infallible, future::{Ready, ready}, pin::pin, sync::Mutex, task::{Context, Waker}};
/// # use tollgate::{Decision, Timestamp};
/// # use tollgate_engine::backend::{Answer, Backend, Check, Counter, Limit, LimitKind};
/// # use tollgate_engine::document::Format;
/// # use tollgate_engine::policy::OnStoreFailure;
/// # use tollgate_engine::{Engine, Facts, Policy};
/// # struct Noting(Mutex<Vec<String>>);
/// # impl Backend for Noting {
/// #     type Error = Infallible;
/// #     type Asking<'a> = Ready<Result<Answer, Infallible>>;
/// #     fn now(&self) -> Timestamp { Timestamp::ZERO }
/// #     fn check<'a>(&'a self, checks: &'a [Check<'a>]) -> Self::Asking<'a> {
/// // In a backend, of a policy with `{name: per-user, key: user, rate: 5/s, quota: 9/day}`:
/// for check in checks {
///     let Counter { name, ordinal, .. } = check.limit.counter();
/// #     self.0.lock().expect("not poisoned").push(format!("{name} {ordinal}"));
/// }
/// #         ready(Ok(Answer::new(None, Decision::UNLIMITED)))
/// #     }
/// # }
/// # let policy = Policy::from_text("limits: [{name: per-user, key: user, rate: 5/s, quota: 9/day}]", Format::Yaml)?.policy;
/// # let engine = Engine::new(policy, Noting(Mutex::default()))?;
/// # let facts = Facts::new().with("user", "42");
/// # let _ = pin!(engine.decide_by(&facts)).poll(&mut Context::from_waker(Waker::noop()));
/// # let noted = engine.backend().0.lock().expect("not poisoned").join(", ");
/// assert_eq!(noted, "rule/per-user 0, rule/per-user 0");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counter {
    /// The rule's name, or the one by which rules share it.
    pub name: String,
    /// Which of the limits of that rule with the same algorithm and period. With these it follows from the
    /// rule, whatever was in force before, and is the same in every process.
    pub ordinal: usize,
    /// Tells it from all others of its engine.
    pub id: u64,
}

impl Limit {
    /// A limit of no rule, with a counter by this name alone.
    pub(crate) fn apart(kind: LimitKind, name: &str) -> Result<Self, LimitError> {
        // Numbers of rules' counters begin at 0 and never come this far.
        let id = u64::MAX;
        Ok(Self {
            compiled: Compiled::new(&kind)?,
            id,
            lasting: false,
            is_estimated: false,
            on_store_failure: OnStoreFailure::Local,
            counting: Counting::Exact,
            told: Box::new(Told {
                kind,
                counter: Counter {
                    name: name.to_owned(),
                    ordinal: 0,
                    id,
                },
                slot: None,
                estimates: Estimates::None,
                kept: Kept::default(),
                share: Shared::default(),
            }),
        })
    }

    /// This limit, whose counter keeps track of estimates.
    pub(crate) fn with_estimates(mut self, estimates: Estimates) -> Result<Self, LimitError> {
        // What slots hold, they hold in any case.
        if matches!(self.kind(), LimitKind::Concurrency(_)) {
            return Ok(self);
        }
        self.told.estimates = estimates;
        self.is_estimated = matches!(estimates, Estimates::Own(_));
        // What comes back may let others pass sooner than they were told.
        self.lasting &= estimates == Estimates::None;
        self.compiled = Compiled::new(&self.kept_as(self.kind()))?;
        Ok(self)
    }

    /// What is kept of a kind: one word has no room for what is held, and a bucket says the same.
    fn kept_as(&self, kind: &LimitKind) -> LimitKind {
        match kind {
            LimitKind::Rate {
                rate,
                algorithm: Algorithm::Gcra,
            } if self.keeps_estimates() => LimitKind::Rate {
                rate: *rate,
                algorithm: Algorithm::TokenBucket,
            },
            kind => kind.clone(),
        }
    }

    /// This limit, kept in the state of another and where that is.
    pub(crate) fn counting_as(mut self, other: &Self) -> Self {
        self.id = other.id;
        self.on_store_failure = other.on_store_failure;
        self.told.counter = other.told.counter.clone();
        self.counting = other.counting;
        self.told.kept = Kept::default();
        self.told.share = Shared::default();
        self
    }

    /// What sort of limit, and how much.
    pub fn kind(&self) -> &LimitKind {
        &self.told.kind
    }

    /// Which state it is kept in.
    pub fn counter(&self) -> &Counter {
        &self.told.counter
    }

    /// What a request gets while the backend can't be asked.
    pub fn on_store_failure(&self) -> OnStoreFailure {
        self.on_store_failure
    }

    /// How a fleet counts it together, or that each node counts by itself.
    pub fn counting(&self) -> Counting {
        self.counting
    }

    /// How a cost of it is settled, if that is an estimate: what is asked for is then held until
    /// [`Answer::pass`] is told what the request did cost.
    ///
    /// ```
    /// use tollgate_engine::backend::{LimitKind, SoleLimit};
    ///
    /// let limit = SoleLimit::new("jobs", LimitKind::Concurrency(8))?;
    /// assert!(limit.limit().settle().is_none());
    /// # Ok::<(), tollgate::LimitError>(())
    /// ```
    pub fn settle(&self) -> Option<Settle> {
        match self.told.estimates {
            Estimates::Own(settle) => Some(settle),
            _ => None,
        }
    }

    /// Whether a cost of it is an estimate.
    #[inline]
    pub fn is_estimated(&self) -> bool {
        self.is_estimated
    }

    /// Whether its counter keeps track of estimates: its own, or those of others that count in it.
    pub fn keeps_estimates(&self) -> bool {
        self.told.estimates != Estimates::None
    }

    /// The fact by which a cluster keeps it with others on one node, if the rule names one.
    pub fn slot(&self) -> Option<&str> {
        self.told.slot.as_deref()
    }

    /// The same limit cut down to a part of it: `part.0` of `part.1`, at least one and never more than
    /// it is.
    pub(crate) fn cut(&self, part: (u64, u64)) -> Result<Self, LimitError> {
        let cut = |count: u64| {
            let (of, all) = (u128::from(part.0), u128::from(part.1.max(1)));
            let count = u128::from(count);
            let cut = (count * of).div_ceil(all).clamp(count.min(1), count);
            u64::try_from(cut).unwrap_or(u64::MAX)
        };
        let kind = match self.kind() {
            LimitKind::Rate { rate, algorithm } => LimitKind::Rate {
                rate: match rate.period() {
                    Some(period) if !rate.is_zero() => {
                        Rate::new(cut(rate.count()), period).burst(cut(rate.burst_size()))
                    }
                    _ => *rate,
                },
                algorithm: *algorithm,
            },
            LimitKind::Quota(quota) => LimitKind::Quota(quota.with_count(cut(quota.count()))),
            LimitKind::Concurrency(most) => {
                let most = u32::try_from(cut(u64::from(*most))).unwrap_or(*most);
                LimitKind::Concurrency(most)
            }
        };
        let mut limit = self.clone();
        limit.compiled = Compiled::new(&self.kept_as(&kind))?;
        limit.told.kind = kind;
        Ok(limit)
    }
}
