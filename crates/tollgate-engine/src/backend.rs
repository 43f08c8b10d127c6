//! The backend trait: the one interface between the engine and the place where counters are kept.

use std::fmt;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Duration;

use tollgate::clock::{Monotonic, Wall};
use tollgate::{Clock, Outcome, Timestamp};

mod memory;

pub use crate::limits::{
    Answer, AnswerSource, CarryOver, Check, CheckResult, Counter, DenyCache, DenyRecheck,
    DenyVersion, FailureKind, KnownDenial, Limit, LimitKind, Prepared, RequestKey, StandaloneLimit,
    StoreUnavailable,
};
pub use memory::{Memory, MemoryBuilder, TableStats};

/// The result of a refund or a reset.
///
/// ```
/// use tollgate_engine::backend::RefundResult;
///
/// // The result of several refunds is the worst of them.
/// assert_eq!(RefundResult::Refunded.max(RefundResult::Lost), RefundResult::Lost);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RefundResult {
    /// The refund was applied.
    Refunded,
    /// The store was unreachable, and the refund couldn't be kept for later.
    Lost,
}

/// How much a [refund](Backend::refund) returns.
///
/// ```
/// # use std::{pin::pin, task::{Context, Poll, Waker}};
/// # use tollgate::{Algorithm, Rate, clock::Manual};
/// use tollgate_engine::backend::{Backend, RefundResult, LimitKind, Memory, Refund, StandaloneLimit};
///
/// # let memory = Memory::builder().clock(Manual::new()).wall(Manual::new()).build();
/// let kind = LimitKind::Rate { rate: Rate::per_hour(5), algorithm: Algorithm::Gcra };
/// let (limit, ada) = (StandaloneLimit::new("mails", kind)?, StandaloneLimit::facts("ada"));
/// assert_eq!(memory.answer(&[limit.check(&ada, 3)]).decision.remaining, 2);
/// let one = [limit.check(&ada, 1)];
/// # let poll = |refund| {
/// #     let refund = pin!(memory.refund(&one, refund));
/// #     assert_eq!(refund.poll(&mut Context::from_waker(Waker::noop())), Poll::Ready(Ok(RefundResult::Refunded)));
/// # };
/// # poll(Refund::Cost); // as `memory.refund(&one, Refund::Cost).await?` does
/// assert_eq!(memory.peek_each(&one)[0].remaining, 3);
/// # poll(Refund::Reset);
/// // After `memory.refund(&one, Refund::Reset).await?`:
/// assert_eq!(memory.peek_each(&one)[0].remaining, 5);
/// # Ok::<(), tollgate::LimitError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refund {
    /// The cost of the checks, whatever was charged for it: at most what was spent.
    Cost,
    /// The cost of a request that was dropped before it ran. No task waits for the result: the backend starts the
    /// whole refund when the future is first polled, and finishes it even if the future is dropped then.
    Dropped,
    /// All that the keys of the checks have spent: a reset. Permits that are held stay held.
    Reset,
}

/// The clocks of a backend, for the parts of an engine that outlive a decision.
///
/// ```
/// use tollgate::{Clock, Timestamp};
/// use tollgate_engine::backend::Clocks;
///
/// assert!(Clocks::default().wall.now() > Timestamp::ZERO);
/// ```
#[derive(Clone, derive_more::Debug)]
pub struct Clocks {
    /// The same time as [`Backend::now`]. It wakes tasks as [`Clock::schedule_wakeup`] describes.
    #[debug(skip)]
    pub clock: Arc<dyn Clock>,
    /// The time of day, by which operators' [overrides](crate::overrides) expire.
    #[debug(skip)]
    pub wall: Arc<dyn Clock>,
}

impl Default for Clocks {
    fn default() -> Self {
        Self {
            clock: Arc::new(Monotonic::new()),
            wall: Arc::new(Wall),
        }
    }
}

/// Answers checks, all or none: in memory, in a store, or leased from one.
///
/// A backend keeps state by [`Limit::counter`] and key. The limit itself comes with each check, so a policy can
/// change at any time. A failure is never a plain denial: it is an error, or an [`Answer::unavailable`].
///
/// A backend that keeps its state elsewhere implements two methods:
///
/// ```
/// use std::convert::Infallible;
/// use std::time::Duration;
/// use tollgate::{Clock, Decision, Outcome, Timestamp, clock::Manual};
/// use tollgate_engine::backend::{Answer, Backend, Check, CheckResult};
///
/// /// A backend that denies everything.
/// struct Closed(Manual);
///
/// impl Backend for Closed {
///     type Error = Infallible;
///
///     async fn ask<'a>(
///         &'a self,
///         checks: &'a [Check<'a>],
///         _each: Option<&'a mut Vec<CheckResult>>,
///     ) -> Result<Answer, Infallible> {
///         let never = Decision::new(Outcome::Never, 0, 0, Duration::MAX, Duration::ZERO);
///         Ok(Answer::new(checks.len().checked_sub(1), never))
///     }
///
///     fn now(&self) -> Timestamp {
///         self.0.now()
///     }
/// }
/// assert_eq!(Closed(Manual::new()).now(), Timestamp::ZERO);
/// ```
pub trait Backend: Send + Sync {
    /// Why the backend is unavailable.
    type Error: fmt::Display + Send;

    /// Charges all checks, or none.
    ///
    /// If `each` is given, it is empty, and the backend fills it with one result per check: what remains after the
    /// charge, or whether the check alone would be allowed, and if not its wait. It stays empty if the backend
    /// doesn't know, for example if a cached denial of one check answered for all. [`peek`](Self::peek) then returns
    /// the results. No two checks have the same counter and key, unless one of them costs nothing.
    fn ask<'a>(
        &'a self,
        checks: &'a [Check<'a>],
        each: Option<&'a mut Vec<CheckResult>>,
    ) -> impl Future<Output = Result<Answer, Self::Error>> + Send + 'a;

    /// Returns what each check alone would decide, and charges nothing: whether its cost would be allowed, if not its
    /// wait, and what remains. The default implementation queries each check at no cost. If too little remains, it
    /// reports the time until the limit is fully refilled as the wait.
    fn peek<'a>(
        &'a self,
        checks: &'a [Check<'a>],
    ) -> impl Future<Output = Result<Vec<CheckResult>, Self::Error>> + Send + 'a {
        peek_by_asking(self, checks)
    }

    /// Refunds what these checks were charged, as `refund` states. The default implementation refunds nothing.
    fn refund<'a>(
        &'a self,
        checks: &'a [Check<'a>],
        refund: Refund,
    ) -> impl Future<Output = Result<RefundResult, Self::Error>> + Send + 'a {
        let _ = (checks, refund);
        std::future::ready(Ok(RefundResult::Refunded))
    }

    /// The time by which the backend decides, to measure how long a denial holds.
    fn now(&self) -> Timestamp;

    /// The backend's clocks, which an engine reads once: the system's by default. A backend with its own
    /// [`now`](Self::now) also needs its own timer, by which adaptive limits measure requests.
    fn clocks(&self) -> Clocks {
        Clocks::default()
    }

    /// Announces that a check of this limit, for a key with this [fingerprint](RequestKey::fingerprint), is likely to
    /// follow. A backend in memory starts to load the entry into the CPU's cache, and doesn't wait for it.
    #[inline]
    fn prefetch(&self, limit: &Limit, fingerprint: [u64; 2]) {
        let _ = (limit, fingerprint);
    }

    /// Whether the backend can keep this limit. Called before a policy is put in force. By default it can.
    ///
    /// # Errors
    /// Why the backend can't, and what to do instead.
    fn supports(&self, limit: &Limit) -> Result<(), String> {
        let _ = limit;
        Ok(())
    }

    /// A number that changes whenever a denied request may be allowed sooner than reported, because a charge was
    /// refunded or a key was reset. A denial that was cached in an earlier epoch is not repeated.
    ///
    /// `None` if the backend caches denials itself, as a remote one may with a [`DenyCache`]. The engine then keeps
    /// no cache of its own ([`with_deny_cache`](crate::Engine::with_deny_cache)): one cache per path is enough, and
    /// denials are counted in one place.
    fn deny_epoch(&self) -> Option<u64> {
        Some(0)
    }
}

/// Refunds the charges of a request that was dropped before it got its answer. No task waits for the refund: see
/// [`Refund::Dropped`].
///
/// ```
/// use tollgate_engine::backend::{Memory, refund_detached};
///
/// refund_detached(&Memory::new(), &[]); // Nothing was charged.
/// ```
pub fn refund_detached<B: Backend>(backend: &B, checks: &[Check<'_>]) {
    let refund = pin!(backend.refund(checks, Refund::Dropped));
    let _ = refund.poll(&mut Context::from_waker(Waker::noop()));
}

/// Peeks each check by itself, by a query at no cost.
async fn peek_by_asking<B: Backend + ?Sized>(
    backend: &B,
    checks: &[Check<'_>],
) -> Result<Vec<CheckResult>, B::Error> {
    let mut each = Vec::with_capacity(checks.len());
    for check in checks {
        let free = [Check { cost: 0, ..*check }];
        let answer = backend.ask(&free, None).await?;
        // Only a limit that is closed while the store is unavailable has no result.
        let failure = answer.unavailable.filter(|_| answer.is_unavailable());
        let mut decision = answer.decision;
        let cost = match check.limit.kind() {
            LimitKind::Concurrency(most) => {
                if answer.allowed {
                    // The query took a permit and has released it already.
                    decision.remaining = u64::from(*most);
                }
                1
            }
            _ => check.cost,
        };
        if cost > decision.limit {
            decision.outcome = Outcome::Never;
            decision.set_wait(Duration::MAX);
        } else if decision.remaining < cost {
            // The answer has no time for this cost, only the time until the limit is fully refilled.
            decision.outcome = Outcome::Denied;
            decision.set_wait(decision.reset_after);
        }
        each.push(failure.map_or(Ok(decision), Err));
    }
    Ok(each)
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use tollgate::{Decision, Timestamp};

    use super::*;
    use crate::limits::{Answer, FailureKind, StandaloneLimit, StoreUnavailable};
    use crate::policy::OnStoreFailure;

    /// An unreachable store, whose limits have this fallback.
    struct Away(OnStoreFailure);

    impl Backend for Away {
        type Error = Infallible;

        async fn ask<'a>(
            &'a self,
            _: &'a [Check<'a>],
            _: Option<&'a mut Vec<CheckResult>>,
        ) -> Result<Answer, Infallible> {
            let unavailable = StoreUnavailable {
                kind: FailureKind::TimedOut,
                fallback: self.0,
            };
            Ok(match self.0 {
                OnStoreFailure::Closed => Answer::unavailable(0, unavailable),
                _ => Answer {
                    unavailable: Some(unavailable),
                    ..Answer::new(Some(0), Decision::UNLIMITED)
                },
            })
        }

        fn now(&self) -> Timestamp {
            Timestamp::ZERO
        }
    }

    #[test]
    fn only_a_limit_that_is_closed_without_its_store_has_no_answer() {
        let limit = StandaloneLimit::new("jobs", LimitKind::Concurrency(8)).expect("a limit");
        let facts = StandaloneLimit::facts("nightly");
        let checks = [limit.check(&facts, 1)];
        for (fallback, is_known) in [
            (OnStoreFailure::Open, true),
            (OnStoreFailure::Local, true),
            (OnStoreFailure::Closed, false),
        ] {
            let away = Away(fallback);
            let peek =
                pin!(peek_by_asking(&away, &checks)).poll(&mut Context::from_waker(Waker::noop()));
            let Poll::Ready(Ok(each)) = peek else {
                panic!("it answers immediately");
            };
            assert_eq!(each[0].is_ok(), is_known, "{fallback:?}");
        }
    }
}
