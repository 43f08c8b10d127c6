//! Who answers checks: the one seam between the engine and where state is kept.

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

/// What became of a refund or a reset.
///
/// ```
/// use tollgate_engine::backend::RefundResult;
///
/// // Of several, one that is lost decides.
/// assert_eq!(RefundResult::Refunded.max(RefundResult::Lost), RefundResult::Lost);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RefundResult {
    /// It was given.
    Refunded,
    /// The store couldn't be told, and there is nothing to remember it by.
    Lost,
}

/// How much a [refund](Backend::refund) gives back.
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
    /// What the checks cost, whatever it was charged for: at most what was spent.
    Cost,
    /// The same, of a request that was dropped before it ran: nobody waits until it is done. The backend starts all of it
    /// when the future is first polled, and finishes it although that is dropped then.
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
    /// Shows what [`Backend::now`] does, and wakes tasks as [`Clock::wake_at`] says.
    #[debug(skip)]
    pub clock: Arc<dyn Clock>,
    /// Shows the time of day, by which operators' [orders](crate::orders) end.
    #[debug(skip)]
    pub wall: Arc<dyn Clock>,
}

/// Those of the system.
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
/// A backend keeps state by [`Limit::counter`] and key; the limit itself comes with each check, so a
/// policy can change at any time. A failure is never a denial: it is an error, or [`OracleAnswer::unavailable`].
///
/// A backend that keeps its state elsewhere implements two methods:
///
/// ```
/// use std::convert::Infallible;
/// use std::time::Duration;
/// use tollgate::{Clock, Decision, Outcome, Timestamp, clock::Manual};
/// use tollgate_engine::backend::{Answer, Backend, Check, CheckResult};
///
/// /// Nothing passes.
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
    /// Why it can't be asked.
    type Error: fmt::Display + Send;

    /// Charges all checks, or none. If `each` is given, it is empty, and gets what each check says by itself: what is left
    /// after the charge, or whether it would have passed alone, and if not after how long. It stays empty if the backend
    /// doesn't know, as of a denial that was known without a question about the other checks: [`peek`](Self::peek) tells.
    /// No two of the checks are of one counter and key, unless one of them costs nothing.
    fn ask<'a>(
        &'a self,
        checks: &'a [Check<'a>],
        each: Option<&'a mut Vec<CheckResult>>,
    ) -> impl Future<Output = Result<Answer, Self::Error>> + Send + 'a;

    /// What each check would say by itself, charging nothing: whether its cost would pass, if not after how long,
    /// and what is left. By default each is asked at no cost what is left, and if that isn't enough the
    /// wait is until the limit is as if never used.
    fn peek<'a>(
        &'a self,
        checks: &'a [Check<'a>],
    ) -> impl Future<Output = Result<Vec<CheckResult>, Self::Error>> + Send + 'a {
        peek_by_asking(self, checks)
    }

    /// Gives back so much of what these checks were charged. By default nothing is.
    fn refund<'a>(
        &'a self,
        checks: &'a [Check<'a>],
        refund: Refund,
    ) -> impl Future<Output = Result<RefundResult, Self::Error>> + Send + 'a {
        let _ = (checks, refund);
        std::future::ready(Ok(RefundResult::Refunded))
    }

    /// The time by which it judges, to tell how long something takes and how long a denial holds.
    fn now(&self) -> Timestamp;

    /// Its clocks, which an engine asks for once: by default the system's. A backend with a [`now`](Self::now) of its own has
    /// a timer of its own, too, by which adaptive limits measure requests.
    fn clocks(&self) -> Clocks {
        Clocks::default()
    }

    /// A check of this limit, and of a key with this [fingerprint](RequestKey::fingerprint), is likely to
    /// come: a backend in memory starts to fetch what it needs for that, and doesn't wait for it.
    #[inline]
    fn prefetch(&self, limit: &Limit, fingerprint: [u64; 2]) {
        let _ = (limit, fingerprint);
    }

    /// Whether it can keep such a limit: asked before a policy is put in force. By default it can.
    ///
    /// # Errors
    /// Why not, and what to do instead.
    fn supports(&self, limit: &Limit) -> Result<(), String> {
        let _ = limit;
        Ok(())
    }

    /// A number that changes whenever something that was denied may pass sooner than it was told: a charge was
    /// given back, or a key was reset. A denial that was remembered in an earlier epoch is not repeated.
    ///
    /// None if the backend remembers denials and repeats them by itself, as a remote one may with a [`DenyCache`]: then the
    /// engine doesn't do so too ([`with_deny_cache`](crate::Engine::with_deny_cache)), as one cache on a path is enough, and
    /// denials are counted in one place.
    fn deny_epoch(&self) -> Option<u64> {
        Some(0)
    }
}

/// Refunds what a request was charged that was dropped before it had its answer. Nobody waits for it: see
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

/// Asks about each check by itself, at no cost.
async fn peek_by_asking<B: Backend + ?Sized>(
    backend: &B,
    checks: &[Check<'_>],
) -> Result<Vec<CheckResult>, B::Error> {
    let mut each = Vec::with_capacity(checks.len());
    for check in checks {
        let free = [Check { cost: 0, ..*check }];
        let answer = backend.ask(&free, None).await?;
        // Only a limit that is closed without its store has no answer.
        let failure = answer.unavailable.filter(|_| answer.is_unavailable());
        let mut decision = answer.decision;
        let cost = match check.limit.kind() {
            LimitKind::Concurrency(most) => {
                if answer.allowed {
                    // It took a permit, and has given it back.
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
            // When there is enough isn't told, only when the limit is as if never used.
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

    /// A store that is away, with what its limits have chosen for that.
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
