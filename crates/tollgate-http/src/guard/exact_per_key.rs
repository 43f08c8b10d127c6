//! One rate for each key, of which costs can be settled afterwards.

use std::sync::Arc;
use std::time::Duration;

use tollgate::clock::{Clock, Monotonic};
use tollgate::exact_keyed::OwnedKey;
use tollgate::stack::{Hold, Terms as HoldTerms};
use tollgate::{
    Algorithm, Decision, ExactKeyedLimiter, Level, LimitError, OnMissingKey, Outcome, Rate, Stack,
};

use super::denial::Denial;
use super::found::{Finder, Fingerprint, Found};
use super::held::Estimate;
use super::hooks;
use super::keys::KeyOf;
use super::per_key::{reason_of, requests_name};
use super::request::Request;
use super::{Asked, Judged, Limits, Settles, Terms};
use crate::Shown;

/// Keys that are sure of a place: about 100 bytes each.
const KEYS: usize = 100_000;

/// An answer that takes longer than this is charged its estimate.
const LONGEST: Duration = Duration::from_secs(600);

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
#[derive(Debug)]
pub struct ExactPerKey<K, C: Clock = Monotonic> {
    limiter: Arc<ExactKeyedLimiter<Fingerprint, C>>,
    finder: Finder<K>,
    name: Arc<str>,
    longest: Duration,
    wait: Duration,
}

/// A request that waits for its turn.
#[derive(Debug)]
pub struct ExactWaiting<C: Clock> {
    key: OwnedKey<Fingerprint, C>,
    cost: u64,
    print: Fingerprint,
}

impl<K> ExactPerKey<K> {
    /// This rate for each key, a hundred thousand of which are sure of a place.
    ///
    /// # Errors
    /// A rate that can't be kept.
    pub fn new(rate: Rate, key: K) -> Result<Self, LimitError> {
        let limiter = ExactKeyedLimiter::builder(rate, KEYS).algorithm(Algorithm::TokenBucket);
        Ok(Self::by(Arc::new(limiter.build()?), key))
    }
}

impl<K, C: Clock> ExactPerKey<K, C> {
    /// By a limiter of any algorithm.
    pub fn by(limiter: Arc<ExactKeyedLimiter<Fingerprint, C>>, key: K) -> Self {
        Self {
            name: requests_name(limiter.rate()),
            limiter,
            finder: Finder::new(key),
            longest: LONGEST,
            wait: Duration::ZERO,
        }
    }

    /// What clients are told that it is called, as [`PerKey::named`](super::PerKey::named).
    #[must_use]
    pub fn named(mut self, name: &str) -> Self {
        self.name = name.into();
        self
    }

    /// What happens to requests without a key: they are denied, unless this says otherwise. See
    /// [`PerKey::on_missing_key`](super::PerKey::on_missing_key).
    #[must_use]
    pub const fn on_missing_key(mut self, choice: OnMissingKey) -> Self {
        self.finder.keyless.on_missing = choice;
        self
    }

    /// For how long a cost may be held: 10 minutes unless said otherwise. After that it is spent.
    #[must_use]
    pub const fn settle_within(mut self, longest: Duration) -> Self {
        self.longest = longest;
        self
    }

    /// A request that is over the limit waits for its turn if that comes within this time, first come first served, and is
    /// refused at once if not: as [`PerKey::wait`](super::PerKey::wait). It holds its cost from its turn on. What others hold may come back at
    /// any time, so one that waits for that may be refused only when its time is over.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollgate::Rate;
    /// use tollgate_http::guard::{ExactPerKey, keys::Header};
    ///
    /// let tokens = ExactPerKey::new(Rate::per_minute(90_000), Header::new("x-api-key"))?.wait(Duration::from_secs(5));
    /// # let _ = tokens;
    /// # Ok::<(), tollgate::LimitError>(())
    /// ```
    #[must_use]
    pub const fn wait(mut self, longest: Duration) -> Self {
        self.wait = longest;
        self
    }

    /// The limiter, for what operators do: block a key, forget one, change the rate.
    pub const fn limiter(&self) -> &Arc<ExactKeyedLimiter<Fingerprint, C>> {
        &self.limiter
    }

    fn shown(&self, decision: &Decision) -> Shown<'_> {
        Shown::of_bucket(&self.name, decision, self.limiter.rate())
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
        let held = Stack::new().hold(&levels, HoldTerms::within(self.longest));
        let held = held.map_err(|refusal| refusal.decision);
        if let Err(over) = &held
            && over.outcome == Outcome::Denied
            && terms.may_wait
            && !self.wait.is_zero()
            && over.wait() <= self.wait
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
        match held {
            Ok(hold) => {
                let decision = self.limiter.key(&print).peek();
                hooks::passed_or_not(&self.name, || print[0], &decision);
                let fields = terms.answers.passed(|| Some(self.shown(&decision)));
                let held = Some(Estimate::new(hold));
                Judged::Passed { held, fields }
            }
            Err(decision) => {
                hooks::passed_or_not(&self.name, || print[0], &decision);
                let denial = Denial::new(reason_of(&decision), Arc::clone(&self.name), decision);
                let shown = Some(self.shown(&decision));
                Judged::Refused(Box::new(denial.showing(shown).key(print[0])))
            }
        }
    }
}

impl<R: Request + ?Sized, K: KeyOf<R>, C: Clock + 'static> Limits<R> for ExactPerKey<K, C> {
    type Held = Option<Estimate>;
    /// In a box: few wait, and all pay for what is moved.
    type Question = Box<ExactWaiting<C>>;

    fn ask(&self, request: &R, terms: &Terms<'_>) -> Asked<Judged<Self::Held>, Self::Question> {
        match self.finder.find(request) {
            Found::Key(print) => self.decide(print, terms),
            Found::Pass => Asked::Now(Judged::Exempt),
            Found::Deny(missing) => Asked::Now(Judged::missing_key(&self.name, missing)),
            Found::Fail(why) => Asked::Now(Judged::Failed(why)),
        }
    }

    async fn answer(&self, waiting: Box<ExactWaiting<C>>, terms: &Terms<'_>) -> Judged<Self::Held> {
        let ExactWaiting { key, cost, print } = *waiting;
        let acquire = key.acquire_n(cost).timeout(self.wait);
        let held = acquire.hold(HoldTerms::within(self.longest)).await;
        self.judge(print, held.map_err(|refused| *refused.decision()), terms)
    }

    fn takes_time(&self) -> bool {
        !self.wait.is_zero()
    }

    fn is_everyone(&self) -> bool {
        self.finder.key.is_everyone()
    }
}

impl<K, C: Clock> Settles for ExactPerKey<K, C> {}
