//! A limit of concurrent requests for each key.

use std::sync::Arc;
use std::time::Duration;

use tollgate::clock::{Clock, Monotonic};
use tollgate::concurrency::{Acquire, KeyedPermitSource, OwnedKeyedPermit, PermitDenied};
use tollgate::{Decision, KeyedConcurrencyLimiter, Outcome};

use super::events;
use super::keys::KeyExtractor;
use super::missing_key::{Fingerprint, KeyFinder, KeyedLimits};
use super::request::Request;
use super::{AskOutcome, LimitOutcome, RequestLimits, Terms};
use crate::{DenyReason, ShownLimit};

/// The most keys with requests in flight.
const KEYS: usize = 100_000;

/// A limit of concurrent requests for each key. A request holds its permit until the body of its response has ended
/// or is dropped.
///
/// A denial is 429 (`concurrency`), with two exceptions that are 503 (`shed`), as the server is the cause:
///
/// * The limit is for the whole service ([`keys::Global`](super::keys::Global)).
/// * There is no room for another key, not even in the counter that new keys share
///   ([`WhenFull`](tollgate::WhenFull)). The client itself may have no request in flight.
///
/// ```
/// use tollgate_http::guard::{ConcurrencyLimit, keys};
///
/// let per_client = ConcurrencyLimit::new(10, keys::ClientAddress::new());
/// let streams = ConcurrencyLimit::new(100, keys::Connection).named("streams");
/// # let _ = (per_client, streams);
/// ```
pub type ConcurrencyLimit<K, C = Monotonic> =
    KeyedLimits<KeyedConcurrencyLimiter<Fingerprint, C>, K>;

/// The permit of a request.
pub type ConcurrencyPermit<C = Monotonic> = OwnedKeyedPermit<Fingerprint, C>;

/// A request that waits for a permit.
#[derive(derive_more::Debug)]
pub struct PermitWait<C: Clock> {
    #[debug(skip)]
    acquire: Acquire<KeyedPermitSource<Arc<KeyedConcurrencyLimiter<Fingerprint, C>>>>,
    #[debug(skip)]
    print: Fingerprint,
}

impl<K> ConcurrencyLimit<K> {
    /// This many concurrent requests for each key, for up to a hundred thousand keys with requests in flight.
    pub fn new(limit: u32, key: K) -> Self {
        Self::with_limiter(Arc::new(KeyedConcurrencyLimiter::new(limit, KEYS)), key)
    }
}

impl<K, C: Clock> ConcurrencyLimit<K, C> {
    /// Uses a limiter that others may share.
    pub fn with_limiter(limiter: Arc<KeyedConcurrencyLimiter<Fingerprint, C>>, key: K) -> Self {
        Self {
            finder: KeyFinder::new(key, format!("requests-at-once:{}", limiter.limit())),
            limiter,
        }
    }

    fn outcome<R: Request + ?Sized>(
        &self,
        print: Fingerprint,
        taken: Result<ConcurrencyPermit<C>, PermitDenied>,
        terms: &Terms<'_>,
    ) -> LimitOutcome<Option<ConcurrencyPermit<C>>>
    where
        K: KeyExtractor<R>,
    {
        let [key, _] = print;
        match taken {
            Ok(permit) => {
                let limit = self.limiter.limit();
                let left = limit.saturating_sub(permit.in_flight());
                let decision = concurrency_decision(Outcome::Allowed, limit, left);
                events::trace_decision(&self.finder.name, || key, &decision);
                let fields = terms
                    .answers
                    .passed(|| Some(ShownLimit::of(&self.finder.name, &decision)));
                let held = Some(permit);
                LimitOutcome::Passed { held, fields }
            }
            Err(refused) => {
                let outcome = match refused {
                    PermitDenied::ExceedsLimit(_) => Outcome::Never,
                    _ => Outcome::Denied,
                };
                let occupancy = refused.occupancy();
                let decision =
                    concurrency_decision(outcome, occupancy.limit, occupancy.available());
                events::trace_decision(&self.finder.name, || key, &decision);
                // There is no room for this key, so the server is the cause.
                let is_crowded = matches!(refused, PermitDenied::TooManyKeys(_));
                let reason = match outcome {
                    Outcome::Never => DenyReason::TooLarge,
                    _ if is_crowded || self.finder.key.is_everyone() => DenyReason::Shed,
                    _ => DenyReason::Concurrency,
                };
                let mut denial = self.finder.denial(reason, key, &decision);
                if is_crowded {
                    // The permits in use there belong to other clients, so they aren't shown.
                    denial = denial.with_shown_limit(None);
                }
                LimitOutcome::Denied(Box::new(denial))
            }
        }
    }
}

fn concurrency_decision(outcome: Outcome, limit: u32, left: u32) -> Decision {
    // The time until a permit is released is unknown.
    let wait = Duration::ZERO;
    Decision::new(outcome, limit.into(), left.into(), wait, wait)
}

impl<R: Request + ?Sized, K: KeyExtractor<R>, C: Clock + 'static> RequestLimits<R>
    for ConcurrencyLimit<K, C>
{
    type Held = Option<ConcurrencyPermit<C>>;
    type Question = PermitWait<C>;

    fn ask(
        &self,
        request: &R,
        terms: &Terms<'_>,
    ) -> AskOutcome<LimitOutcome<Self::Held>, PermitWait<C>> {
        let print = match self.finder.find(request) {
            Ok(print) => print,
            Err(judged) => return AskOutcome::Now(judged),
        };
        let weight = u32::try_from(terms.cost()).unwrap_or(u32::MAX);
        if weight == 0 {
            return AskOutcome::Now(LimitOutcome::Exempt);
        }
        let key = self.limiter.key_owned(&print);
        let taken = key.try_acquire_n(weight);
        if let Err(PermitDenied::Full(_) | PermitDenied::TooManyKeys(_)) = taken
            && terms.may_wait
            && !self.finder.longest_wait.is_zero()
        {
            let key = self.limiter.key_owned(&print);
            let acquire = key.acquire_n(weight).timeout(self.finder.longest_wait);
            return AskOutcome::Later(PermitWait { acquire, print });
        }
        AskOutcome::Now(self.outcome::<R>(print, taken, terms))
    }

    async fn answer(&self, wait: PermitWait<C>, terms: &Terms<'_>) -> LimitOutcome<Self::Held> {
        let taken = wait.acquire.await;
        self.outcome::<R>(wait.print, taken, terms)
    }

    fn takes_time(&self) -> bool {
        !self.finder.longest_wait.is_zero()
    }

    fn is_global(&self) -> bool {
        // Not worth a warning: a permit is held only while its request runs, so no client can use up the limit for
        // others.
        false
    }
}
