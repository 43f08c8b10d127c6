//! A rate for each key: in 16 bytes a key, or with costs that can be settled afterwards.

use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

use tollgate::clock::{Clock, Monotonic};
use tollgate::keyed::OwnedKey;
use tollgate::stack::{self, CostReservation};
use tollgate::stored_keys::OwnedKey as ExactOwnedKey;
use tollgate::{
    Algorithm, CompositeLimiter, Decision, KeyedLimiter, Limit, LimitError, Outcome, Rate,
    StoredKeyLimiter, Timestamp,
};

use super::denial::Denial;
use super::events;
use super::fields::HeaderFields;
use super::keys::KeyExtractor;
use super::missing_key::{Fingerprint, KeyFinder, KeyedLimits};
use super::request::Request;
use super::response::ResponseFormat;
use super::ticket::EstimateHold;
use super::{AskOutcome, FastCheck, LimitOutcome, RequestLimits, SettleCosts, Terms};
use crate::{DenyReason, ShownLimit};

/// The default number of keys that are sure to be kept: 25 MB at most.
const KEYS: usize = 1_000_000;

/// A rate for each key, in memory: 16 bytes a key, by GCRA. For settling costs use [`SettlingRatePerKey`].
///
/// ```
/// use tollgate::Rate;
/// use tollgate_http::guard::{RatePerKey, keys::ClientAddress};
///
/// let limits = RatePerKey::new(Rate::per_second(10).burst(20), ClientAddress::new())?;
/// # let _ = limits;
/// # Ok::<(), tollgate::LimitError>(())
/// ```
pub type RatePerKey<K, C = Monotonic> = KeyedLimits<KeyedLimiter<C>, K>;

/// A request that waits in the queue.
#[derive(Debug)]
pub struct RateWait<C: Clock> {
    key: OwnedKey<C>,
    cost: u64,
    fingerprint: u64,
}

impl<K> RatePerKey<K> {
    /// This rate for each key. A million keys are sure to be kept.
    ///
    /// # Errors
    /// If the rate is invalid.
    pub fn new(rate: Rate, key: K) -> Result<Self, LimitError> {
        let limiter = KeyedLimiter::builder(rate, KEYS).build()?;
        Ok(Self::with_limiter(Arc::new(limiter), key))
    }
}

impl<K, C: Clock> RatePerKey<K, C> {
    /// This rate for each key on this clock, so that a service behind it can be tested without waiting.
    ///
    /// ```
    /// use tollgate::{Rate, clock::Manual};
    /// use tollgate_http::guard::{RatePerKey, keys::ClientAddress};
    ///
    /// let clock = Manual::new();
    /// let limits = RatePerKey::with_clock(Rate::per_second(10), ClientAddress::new(), clock.clone())?;
    /// # let _ = limits;
    /// # Ok::<(), tollgate::LimitError>(())
    /// ```
    ///
    /// # Errors
    /// If the rate is invalid.
    pub fn with_clock(rate: Rate, key: K, clock: C) -> Result<Self, LimitError> {
        let limiter = KeyedLimiter::builder(rate, KEYS).clock(clock).build()?;
        Ok(Self::with_limiter(Arc::new(limiter), key))
    }

    /// Uses a limiter that others may share.
    pub fn with_limiter(limiter: Arc<KeyedLimiter<C>>, key: K) -> Self {
        Self {
            finder: KeyFinder::new(key, requests_name(limiter.rate())),
            limiter,
        }
    }
}

impl<K, C: Clock> RatePerKey<K, C> {
    /// Checks this key.
    #[inline]
    fn decide(
        &self,
        key: &impl Hash,
        now: Timestamp,
        terms: &Terms<'_>,
    ) -> AskOutcome<LimitOutcome<()>, Box<RateWait<C>>> {
        let one = self.limiter.key(key);
        let decision = one.check_at(now, terms.cost());
        events::trace_decision(&self.finder.name, || one.fingerprint(), &decision);
        if decision.is_allowed() {
            let fields = self.limit_fields(&decision, terms.answers);
            return AskOutcome::Now(LimitOutcome::Passed { held: (), fields });
        }
        if self.finder.waits(&decision, terms) {
            return self.enqueue(key, terms.cost());
        }
        self.deny(one.fingerprint(), &decision)
    }

    /// The header fields for a request that passed.
    #[inline(never)]
    fn limit_fields(&self, decision: &Decision, answers: &ResponseFormat) -> HeaderFields {
        answers.passed(|| Some(self.shown(decision)))
    }

    #[cold]
    #[inline(never)]
    fn enqueue(
        &self,
        key: &impl Hash,
        cost: u64,
    ) -> AskOutcome<LimitOutcome<()>, Box<RateWait<C>>> {
        AskOutcome::Later(Box::new(RateWait {
            fingerprint: self.limiter.fingerprint(key),
            key: self.limiter.key_owned(key),
            cost,
        }))
    }

    #[cold]
    #[inline(never)]
    fn deny(
        &self,
        fingerprint: u64,
        decision: &Decision,
    ) -> AskOutcome<LimitOutcome<()>, Box<RateWait<C>>> {
        let denial = self.denial(decision, fingerprint);
        AskOutcome::Now(LimitOutcome::Denied(Box::new(denial)))
    }

    fn denial(&self, decision: &Decision, fingerprint: u64) -> Denial {
        let denial = self
            .finder
            .denial(reason_of(decision), fingerprint, decision);
        denial.with_shown_limit(Some(self.shown(decision)))
    }

    fn shown(&self, decision: &Decision) -> ShownLimit<'_> {
        ShownLimit::of_bucket(&self.finder.name, decision, self.limiter.rate())
    }
}

/// The default name of a limit. It has the rate in it, as two layers on one path seldom have the same rate, and
/// clients distinguish limits by name.
fn requests_name(rate: Rate) -> String {
    format!("requests:{rate}")
}

/// A cost that exceeds the whole limit never passes, so it isn't a matter of the rate.
fn reason_of(decision: &Decision) -> DenyReason {
    match decision.outcome {
        Outcome::Never => DenyReason::TooLarge,
        _ => DenyReason::Rate,
    }
}

impl<R: Request + ?Sized, K: KeyExtractor<R>, C: Clock + 'static> RequestLimits<R>
    for RatePerKey<K, C>
{
    type Held = ();
    /// In a box: few requests wait, and all pay for moving this type.
    type Question = Box<RateWait<C>>;

    #[inline(always)]
    fn check_fast(&self, request: &R, terms: &Terms<'_>) -> FastCheck<(), Box<RateWait<C>>> {
        // First, because reading the clock takes a while in which the key can be extracted.
        let now = self.limiter.clock().now();
        let Some(key) = self.finder.key.glance(request) else {
            return FastCheck::Unclear;
        };
        self.finder.keyless.record_key_found();
        let (one, cost) = (self.limiter.key(&key), terms.cost());
        let Some(glance) = one.try_fast_check(now, cost) else {
            return FastCheck::Unclear;
        };
        if glance.is_allowed() {
            return FastCheck::Passed(if terms.answers.are_silent() {
                HeaderFields::new()
            } else {
                self.limit_fields(&glance.decision(), terms.answers)
            });
        }
        let decision = glance.decision();
        if self.finder.waits(&decision, terms)
            // Extracts the key again, so that the fast path needn't keep it; in full, as a key may be on the fast
            // path only once.
            && let Some(key) = self.finder.key.key(request)
        {
            return FastCheck::Over(self.enqueue(&key, cost));
        }
        FastCheck::Over(self.deny(one.fingerprint(), &decision))
    }

    #[inline]
    fn ask(
        &self,
        request: &R,
        terms: &Terms<'_>,
    ) -> AskOutcome<LimitOutcome<()>, Box<RateWait<C>>> {
        let now = self.limiter.clock().now();
        let KeyFinder {
            key, keyless, name, ..
        } = &self.finder;
        if let Some(key) = key.key(request) {
            keyless.record_key_found();
            return self.decide(&key, now, terms);
        }
        match keyless.substitute_key(key, request, name) {
            Ok(shared) => self.decide(&shared, now, terms),
            Err(judged) => AskOutcome::Now(judged),
        }
    }

    async fn answer(&self, waiting: Box<RateWait<C>>, terms: &Terms<'_>) -> LimitOutcome<()> {
        let acquire = waiting.key.acquire_n(waiting.cost);
        match acquire.timeout(self.finder.longest_wait).await {
            Ok(_) => LimitOutcome::Passed {
                held: (),
                fields: self.limit_fields(&waiting.key.peek(), terms.answers),
            },
            Err(refused) => {
                let denial = self.denial(refused.decision(), waiting.fingerprint);
                LimitOutcome::Denied(Box::new(denial))
            }
        }
    }

    fn takes_time(&self) -> bool {
        !self.finder.longest_wait.is_zero()
    }

    fn is_global(&self) -> bool {
        self.finder.key.is_everyone()
    }
}

/// The default number of keys that are sure to be kept: about 100 bytes each.
const EXACT_KEYS: usize = 100_000;

/// A rate for each key, in memory, that reserves the cost of a request until it is known: for [counting only some
/// responses](super::RequestLimiter::count_responses) and for [settling](super::RequestLimiter::settle) actual costs.
///
/// ```
/// use tollgate::Rate;
/// use tollgate_http::guard::{SettlingRatePerKey, keys::ClientAddress};
///
/// let logins = SettlingRatePerKey::new(Rate::per_minute(5), ClientAddress::new())?.named("logins");
/// # let _ = logins;
/// # Ok::<(), tollgate::LimitError>(())
/// ```
pub type SettlingRatePerKey<K, C = Monotonic> = KeyedLimits<StoredKeyLimiter<Fingerprint, C>, K>;

/// A request that waits in the queue.
#[derive(Debug)]
pub struct SettlingRateWait<C: Clock> {
    key: ExactOwnedKey<Fingerprint, C>,
    cost: u64,
    print: Fingerprint,
}

impl<K> SettlingRatePerKey<K> {
    /// This rate for each key. A hundred thousand keys are sure to be kept.
    ///
    /// # Errors
    /// If the rate is invalid.
    pub fn new(rate: Rate, key: K) -> Result<Self, LimitError> {
        let limiter = StoredKeyLimiter::builder(rate, EXACT_KEYS).algorithm(Algorithm::TokenBucket);
        Ok(Self::with_limiter(Arc::new(limiter.build()?), key))
    }
}

impl<K, C: Clock> SettlingRatePerKey<K, C> {
    /// Uses a limiter of any algorithm.
    pub fn with_limiter(limiter: Arc<StoredKeyLimiter<Fingerprint, C>>, key: K) -> Self {
        Self {
            finder: KeyFinder::new(key, requests_name(limiter.rate())),
            limiter,
        }
    }

    /// The longest time until a cost is settled: 10 minutes by default. After that, the estimate is charged.
    pub const fn settle_within(mut self, longest: Duration) -> Self {
        self.finder.settle_within = longest;
        self
    }

    fn shown(&self, decision: &Decision) -> ShownLimit<'_> {
        ShownLimit::of_bucket(&self.finder.name, decision, self.limiter.rate())
    }
}

impl<K, C: Clock + 'static> SettlingRatePerKey<K, C> {
    fn decide(
        &self,
        print: Fingerprint,
        terms: &Terms<'_>,
    ) -> AskOutcome<LimitOutcome<Option<EstimateHold>>, Box<SettlingRateWait<C>>> {
        let cost = terms.cost();
        let key = self.limiter.key_owned(&print);
        if cost == 0 {
            let decision = key.check_n(0);
            let fields = terms.answers.passed(|| Some(self.shown(&decision)));
            return AskOutcome::Now(LimitOutcome::Passed { held: None, fields });
        }
        let levels = [Limit::estimated("", key, cost)];
        let held = CompositeLimiter::new().hold(
            &levels,
            stack::ReservationTerms::for_at_most(self.finder.settle_within),
        );
        let held = held.map_err(|refusal| refusal.decision);
        if let Err(over) = &held
            && self.finder.waits(over, terms)
        {
            let key = self.limiter.key_owned(&print);
            return AskOutcome::Later(Box::new(SettlingRateWait { key, cost, print }));
        }
        AskOutcome::Now(self.outcome(print, held, terms))
    }

    fn outcome(
        &self,
        print: Fingerprint,
        held: Result<CostReservation<'static>, Decision>,
        terms: &Terms<'_>,
    ) -> LimitOutcome<Option<EstimateHold>> {
        let (held, decision) = match held {
            Ok(hold) => (
                Some(EstimateHold::new(hold)),
                self.limiter.key(&print).peek(),
            ),
            Err(decision) => (None, decision),
        };
        let [key, _] = print;
        events::trace_decision(&self.finder.name, || key, &decision);
        if held.is_some() {
            let fields = terms.answers.passed(|| Some(self.shown(&decision)));
            return LimitOutcome::Passed { held, fields };
        }
        let denial = self.finder.denial(reason_of(&decision), key, &decision);
        LimitOutcome::Denied(Box::new(
            denial.with_shown_limit(Some(self.shown(&decision))),
        ))
    }
}

impl<R: Request + ?Sized, K: KeyExtractor<R>, C: Clock + 'static> RequestLimits<R>
    for SettlingRatePerKey<K, C>
{
    type Held = Option<EstimateHold>;
    /// In a box: few requests wait, and all pay for moving this type.
    type Question = Box<SettlingRateWait<C>>;

    fn ask(
        &self,
        request: &R,
        terms: &Terms<'_>,
    ) -> AskOutcome<LimitOutcome<Self::Held>, Self::Question> {
        match self.finder.find(request) {
            Ok(print) => self.decide(print, terms),
            Err(judged) => AskOutcome::Now(judged),
        }
    }

    async fn answer(
        &self,
        waiting: Box<SettlingRateWait<C>>,
        terms: &Terms<'_>,
    ) -> LimitOutcome<Self::Held> {
        let SettlingRateWait { key, cost, print } = *waiting;
        let acquire = key.acquire_n(cost).timeout(self.finder.longest_wait);
        let held = acquire
            .hold(stack::ReservationTerms::for_at_most(
                self.finder.settle_within,
            ))
            .await;
        self.outcome(print, held.map_err(|refused| *refused.decision()), terms)
    }

    fn takes_time(&self) -> bool {
        !self.finder.longest_wait.is_zero()
    }

    fn is_global(&self) -> bool {
        self.finder.key.is_everyone()
    }
}

impl<K, C: Clock> SettleCosts for SettlingRatePerKey<K, C> {}
