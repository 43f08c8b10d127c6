//! One rate for each key, of which costs can be settled afterwards.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use tollgate::clock::{Clock, Monotonic};
use tollgate::stack::Terms as HoldTerms;
use tollgate::{Algorithm, Decision, ExactKeyedLimiter, Level, LimitError, Rate, Stack};

use super::denial::Denial;
use super::found::{Finder, Fingerprint, Found};
use super::held::Estimate;
use super::hooks;
use super::keys::KeyOf;
use super::missing::Missing;
use super::per_key::kind;
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
            limiter,
            finder: Finder::new(key),
            name: "requests".into(),
            longest: LONGEST,
        }
    }

    /// What clients are told that it is called.
    #[must_use]
    pub fn named(mut self, name: &str) -> Self {
        self.name = name.into();
        self
    }

    /// What becomes of requests that have no key.
    #[must_use]
    pub fn missing(mut self, missing: Missing) -> Self {
        self.finder.keyless.missing = missing;
        self
    }

    /// For how long a cost may be held: 10 minutes unless said otherwise. After that it is spent.
    #[must_use]
    pub const fn settle_within(mut self, longest: Duration) -> Self {
        self.longest = longest;
        self
    }

    fn shown(&self, decision: &Decision) -> Shown<'_> {
        Shown::of_bucket(&self.name, decision, self.limiter.rate())
    }
}

impl<K, C: Clock + 'static> ExactPerKey<K, C> {
    fn decide(&self, print: Fingerprint, terms: &Terms<'_>) -> Judged<Option<Estimate>> {
        let cost = terms.cost();
        let key = self.limiter.key_owned(&print);
        if cost == 0 {
            let decision = key.check_n(0);
            let fields = terms.answers.passed(|| Some(self.shown(&decision)));
            return Judged::Passed { held: None, fields };
        }
        let levels = [Level::estimated("", key, cost)];
        match Stack::new().hold(&levels, HoldTerms::within(self.longest)) {
            Ok(hold) => {
                let decision = self.limiter.key(&print).peek();
                hooks::passed_or_not(&self.name, || print[0], &decision);
                let fields = terms.answers.passed(|| Some(self.shown(&decision)));
                let held = Some(Estimate::new(hold));
                Judged::Passed { held, fields }
            }
            Err(refusal) => {
                let decision = refusal.decision;
                hooks::passed_or_not(&self.name, || print[0], &decision);
                let denial = Denial::new(kind(&decision), Arc::clone(&self.name), decision);
                let shown = Some(self.shown(&decision));
                Judged::Refused(Box::new(denial.showing(shown).key(print[0])))
            }
        }
    }
}

impl<R: Request + ?Sized, K: KeyOf<R>, C: Clock + 'static> Limits<R> for ExactPerKey<K, C> {
    type Held = Option<Estimate>;
    type Question = Infallible;

    fn ask(&self, request: &R, terms: &Terms<'_>) -> Asked<Judged<Self::Held>, Infallible> {
        Asked::Now(match self.finder.find(request) {
            Found::Key(print) => self.decide(print, terms),
            Found::Pass => Judged::Exempt,
            Found::Fail(why) => Judged::Failed(why),
        })
    }

    async fn answer(&self, question: Infallible, _: &Terms<'_>) -> Judged<Self::Held> {
        match question {}
    }

    fn is_everyone(&self) -> bool {
        self.finder.key.is_everyone()
    }
}

impl<K, C: Clock> Settles for ExactPerKey<K, C> {}
