//! One rate for each key: in 16 bytes a key, or such that costs can be settled afterwards.

use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

use tollgate::clock::{Clock, Monotonic};
use tollgate::exact_keyed::OwnedKey as ExactOwnedKey;
use tollgate::keyed::OwnedKey;
use tollgate::stack::{self, Hold};
use tollgate::{
    Algorithm, Decision, ExactKeyedLimiter, KeyedLimiter, Level, LimitError, Outcome, Rate, Stack,
    Timestamp,
};

use super::denial::Denial;
use super::events;
use super::fields::Fields;
use super::keys::KeyOf;
use super::missing_key::{ByKey, Fingerprint, KeyFinder};
use super::request::Request;
use super::response::Answers;
use super::ticket::Estimate;
use super::{Asked, Judged, Limits, Look, Settles, Terms};
use crate::{DenyReason, Shown};

/// Keys that are sure of a place, unless told otherwise: 25 MB at most.
const KEYS: usize = 1_000_000;

/// A rate for each key, in memory: 16 bytes a key, by GCRA.
///
/// ```
/// use tollgate::Rate;
/// use tollgate_http::guard::{PerKey, keys::Address};
///
/// let limits = PerKey::new(Rate::per_second(10).burst(20), Address::new())?;
/// # let _ = limits;
/// # Ok::<(), tollgate::LimitError>(())
/// ```
pub type PerKey<K, C = Monotonic> = ByKey<KeyedLimiter<C>, K>;

/// A request that waits for its turn.
#[derive(Debug)]
pub struct Waiting<C: Clock> {
    key: OwnedKey<C>,
    cost: u64,
    fingerprint: u64,
}

impl<K> PerKey<K> {
    /// This rate for each key, a million of which are sure of a place.
    ///
    /// # Errors
    /// A rate that can't be kept.
    pub fn new(rate: Rate, key: K) -> Result<Self, LimitError> {
        let limiter = KeyedLimiter::builder(rate, KEYS).build()?;
        Ok(Self::by(Arc::new(limiter), key))
    }
}

impl<K, C: Clock> PerKey<K, C> {
    /// The same on this clock, so that a service behind it can be tested without waiting.
    ///
    /// ```
    /// use tollgate::{Rate, clock::Manual};
    /// use tollgate_http::guard::{PerKey, keys::Address};
    ///
    /// let clock = Manual::new();
    /// let limits = PerKey::with_clock(Rate::per_second(10), Address::new(), clock.clone())?;
    /// # let _ = limits;
    /// # Ok::<(), tollgate::LimitError>(())
    /// ```
    ///
    /// # Errors
    /// A rate that can't be kept.
    pub fn with_clock(rate: Rate, key: K, clock: C) -> Result<Self, LimitError> {
        let limiter = KeyedLimiter::builder(rate, KEYS).clock(clock).build()?;
        Ok(Self::by(Arc::new(limiter), key))
    }

    /// By a limiter that others may share.
    pub fn by(limiter: Arc<KeyedLimiter<C>>, key: K) -> Self {
        Self {
            finder: KeyFinder::new(key, requests_name(limiter.rate())),
            limiter,
        }
    }
}

impl<K, C: Clock> PerKey<K, C> {
    /// What the limiter says of this key.
    #[inline]
    fn decide(
        &self,
        key: &impl Hash,
        now: Timestamp,
        terms: &Terms<'_>,
    ) -> Asked<Judged<()>, Box<Waiting<C>>> {
        let one = self.limiter.key(key);
        let decision = one.check_at(now, terms.cost());
        events::trace_decision(&self.finder.name, || one.fingerprint(), &decision);
        if decision.is_allowed() {
            let fields = self.told(&decision, terms.answers);
            return Asked::Now(Judged::Passed { held: (), fields });
        }
        if self.finder.waits(&decision, terms) {
            return self.enqueue(key, terms.cost());
        }
        self.over(one.fingerprint(), &decision)
    }

    /// What the answer to a request that passed says.
    #[inline(never)]
    fn told(&self, decision: &Decision, answers: &Answers) -> Fields {
        answers.passed(|| Some(self.shown(decision)))
    }

    #[cold]
    #[inline(never)]
    fn enqueue(&self, key: &impl Hash, cost: u64) -> Asked<Judged<()>, Box<Waiting<C>>> {
        Asked::Later(Box::new(Waiting {
            fingerprint: self.limiter.fingerprint(key),
            key: self.limiter.key_owned(key),
            cost,
        }))
    }

    #[cold]
    #[inline(never)]
    fn over(&self, fingerprint: u64, decision: &Decision) -> Asked<Judged<()>, Box<Waiting<C>>> {
        let denial = self.denial(decision, fingerprint);
        Asked::Now(Judged::Refused(Box::new(denial)))
    }

    fn denial(&self, decision: &Decision, fingerprint: u64) -> Denial {
        let denial = self
            .finder
            .denial(reason_of(decision), fingerprint, decision);
        denial.showing(Some(self.shown(decision)))
    }

    fn shown(&self, decision: &Decision) -> Shown<'_> {
        Shown::of_bucket(&self.finder.name, decision, self.limiter.rate())
    }
}

/// What a limit of this rate is called unless it has a name: two layers on one path seldom have one rate, and clients tell limits apart by
/// their names.
fn requests_name(rate: Rate) -> String {
    format!("requests:{rate}")
}

/// A cost that never fits is no matter of time.
fn reason_of(decision: &Decision) -> DenyReason {
    match decision.outcome {
        Outcome::Never => DenyReason::TooLarge,
        _ => DenyReason::Rate,
    }
}

impl<R: Request + ?Sized, K: KeyOf<R>, C: Clock + 'static> Limits<R> for PerKey<K, C> {
    type Held = ();
    /// In a box: few wait, and all pay for what is moved.
    type Question = Box<Waiting<C>>;

    #[inline(always)]
    fn glance(&self, request: &R, terms: &Terms<'_>) -> Look<(), Box<Waiting<C>>> {
        // First, as it takes its time, in which the key is found.
        let now = self.limiter.clock().now();
        let Some(key) = self.finder.key.glance(request) else {
            return Look::Unclear;
        };
        self.finder.keyless.some_have_one();
        let (one, cost) = (self.limiter.key(&key), terms.cost());
        let Some(glance) = one.check_at_a_glance(now, cost) else {
            return Look::Unclear;
        };
        if glance.is_allowed() {
            return Look::Passed(if terms.answers.are_silent() {
                Fields::new()
            } else {
                self.told(&glance.decision(), terms.answers)
            });
        }
        let decision = glance.decision();
        if self.finder.waits(&decision, terms)
            // Once more, so that the key needn't be kept for this; in full, as a second look may tell less than the first.
            && let Some(key) = self.finder.key.key(request)
        {
            return Look::Over(self.enqueue(&key, cost));
        }
        Look::Over(self.over(one.fingerprint(), &decision))
    }

    #[inline]
    fn ask(&self, request: &R, terms: &Terms<'_>) -> Asked<Judged<()>, Box<Waiting<C>>> {
        let now = self.limiter.clock().now();
        let KeyFinder {
            key, keyless, name, ..
        } = &self.finder;
        if let Some(key) = key.key(request) {
            keyless.some_have_one();
            return self.decide(&key, now, terms);
        }
        match keyless.instead(key, request, name) {
            Ok(shared) => self.decide(&shared, now, terms),
            Err(judged) => Asked::Now(judged),
        }
    }

    async fn answer(&self, waiting: Box<Waiting<C>>, terms: &Terms<'_>) -> Judged<()> {
        let acquire = waiting.key.acquire_n(waiting.cost);
        match acquire.timeout(self.finder.wait).await {
            Ok(_) => Judged::Passed {
                held: (),
                fields: self.told(&waiting.key.peek(), terms.answers),
            },
            Err(refused) => {
                let denial = self.denial(refused.decision(), waiting.fingerprint);
                Judged::Refused(Box::new(denial))
            }
        }
    }

    fn takes_time(&self) -> bool {
        !self.finder.wait.is_zero()
    }

    fn is_everyone(&self) -> bool {
        self.finder.key.is_everyone()
    }
}

/// Keys that are sure of a place: about 100 bytes each.
const EXACT_KEYS: usize = 100_000;

/// A rate for each key, in memory, that holds the cost of a request until it is known: for
/// [counting only some answers](super::Guard::count) and for [settling](super::Guard::settle) what an answer did cost.
///
/// ```
/// use tollgate::Rate;
/// use tollgate_http::guard::{ExactPerKey, keys::Address};
///
/// let logins = ExactPerKey::new(Rate::per_minute(5), Address::new())?.named("logins");
/// # let _ = logins;
/// # Ok::<(), tollgate::LimitError>(())
/// ```
pub type ExactPerKey<K, C = Monotonic> = ByKey<ExactKeyedLimiter<Fingerprint, C>, K>;

/// A request that waits for its turn.
#[derive(Debug)]
pub struct ExactWaiting<C: Clock> {
    key: ExactOwnedKey<Fingerprint, C>,
    cost: u64,
    print: Fingerprint,
}

impl<K> ExactPerKey<K> {
    /// This rate for each key, a hundred thousand of which are sure of a place.
    ///
    /// # Errors
    /// A rate that can't be kept.
    pub fn new(rate: Rate, key: K) -> Result<Self, LimitError> {
        let limiter =
            ExactKeyedLimiter::builder(rate, EXACT_KEYS).algorithm(Algorithm::TokenBucket);
        Ok(Self::by(Arc::new(limiter.build()?), key))
    }
}

impl<K, C: Clock> ExactPerKey<K, C> {
    /// By a limiter of any algorithm.
    pub fn by(limiter: Arc<ExactKeyedLimiter<Fingerprint, C>>, key: K) -> Self {
        Self {
            finder: KeyFinder::new(key, requests_name(limiter.rate())),
            limiter,
        }
    }

    /// For how long a cost may be held: 10 minutes unless said otherwise. After that it is spent.
    pub const fn settle_within(mut self, longest: Duration) -> Self {
        self.finder.longest = longest;
        self
    }

    fn shown(&self, decision: &Decision) -> Shown<'_> {
        Shown::of_bucket(&self.finder.name, decision, self.limiter.rate())
    }
}

impl<K, C: Clock + 'static> ExactPerKey<K, C> {
    fn decide(
        &self,
        print: Fingerprint,
        terms: &Terms<'_>,
    ) -> Asked<Judged<Option<Estimate>>, Box<ExactWaiting<C>>> {
        let cost = terms.cost();
        let key = self.limiter.key_owned(&print);
        if cost == 0 {
            let decision = key.check_n(0);
            let fields = terms.answers.passed(|| Some(self.shown(&decision)));
            return Asked::Now(Judged::Passed { held: None, fields });
        }
        let levels = [Level::estimated("", key, cost)];
        let held = Stack::new().hold(&levels, stack::Terms::within(self.finder.longest));
        let held = held.map_err(|refusal| refusal.decision);
        if let Err(over) = &held
            && self.finder.waits(over, terms)
        {
            let key = self.limiter.key_owned(&print);
            return Asked::Later(Box::new(ExactWaiting { key, cost, print }));
        }
        Asked::Now(self.judge(print, held, terms))
    }

    fn judge(
        &self,
        print: Fingerprint,
        held: Result<Hold<'static>, Decision>,
        terms: &Terms<'_>,
    ) -> Judged<Option<Estimate>> {
        let (held, decision) = match held {
            Ok(hold) => (Some(Estimate::new(hold)), self.limiter.key(&print).peek()),
            Err(decision) => (None, decision),
        };
        let [key, _] = print;
        events::trace_decision(&self.finder.name, || key, &decision);
        if held.is_some() {
            let fields = terms.answers.passed(|| Some(self.shown(&decision)));
            return Judged::Passed { held, fields };
        }
        let denial = self.finder.denial(reason_of(&decision), key, &decision);
        Judged::Refused(Box::new(denial.showing(Some(self.shown(&decision)))))
    }
}

impl<R: Request + ?Sized, K: KeyOf<R>, C: Clock + 'static> Limits<R> for ExactPerKey<K, C> {
    type Held = Option<Estimate>;
    /// In a box: few wait, and all pay for what is moved.
    type Question = Box<ExactWaiting<C>>;

    fn ask(&self, request: &R, terms: &Terms<'_>) -> Asked<Judged<Self::Held>, Self::Question> {
        match self.finder.find(request) {
            Ok(print) => self.decide(print, terms),
            Err(judged) => Asked::Now(judged),
        }
    }

    async fn answer(&self, waiting: Box<ExactWaiting<C>>, terms: &Terms<'_>) -> Judged<Self::Held> {
        let ExactWaiting { key, cost, print } = *waiting;
        let acquire = key.acquire_n(cost).timeout(self.finder.wait);
        let held = acquire
            .hold(stack::Terms::within(self.finder.longest))
            .await;
        self.judge(print, held.map_err(|refused| *refused.decision()), terms)
    }

    fn takes_time(&self) -> bool {
        !self.finder.wait.is_zero()
    }

    fn is_everyone(&self) -> bool {
        self.finder.key.is_everyone()
    }
}

impl<K, C: Clock> Settles for ExactPerKey<K, C> {}
