//! The order of a call's protections, and how each learns the outcome.

use std::future::{Future, IntoFuture, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use derive_more::{Display, Error};
use tollgate::clock::{Clock, Monotonic};
use tollgate::concurrency::{Permit, PermitDenied, PermitOutcome};
use tollgate::{ConcurrencyLimiter, Limiter, Rate, RateDenied, Reservation};

use crate::breaker::{BreakerCall, CircuitBreaker, CircuitOpen};
use crate::undo_guard::UndoGuard;

/// The protections of calls to one backend: a breaker, a rate and a bulkhead, each optional.
///
/// ```
/// use std::sync::Arc;
/// use tollgate_adaptive::breaker::{CircuitBreaker, Thresholds};
/// use tollgate::concurrency::PermitOutcome;
/// use tollgate_adaptive::protect::CallGuard;
/// use tollgate::{ConcurrencyLimiter, Limiter, Rate};
///
/// # async fn fetch() -> Result<&'static str, std::io::Error> { Ok("page") }
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let backend = CallGuard::new()
///     .breaker(Arc::new(CircuitBreaker::new(Thresholds::default())))
///     .rate(Arc::new(Limiter::new(Rate::per_second(100))))
///     .bulkhead(Arc::new(ConcurrencyLimiter::new(10)));
/// let page = backend
///     .call(fetch, |result| match result {
///         Ok(_) => PermitOutcome::Success,
///         Err(error) if error.kind() == std::io::ErrorKind::NotFound => PermitOutcome::Ignored,
///         Err(_) => PermitOutcome::Dropped, // a failure to the breaker, a sign of overload to the bulkhead
///     })
///     .await?;
/// # let _ = page;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct CallGuard<C: Clock = Monotonic> {
    breaker: Option<Arc<CircuitBreaker<C>>>,
    rate: Option<Arc<Limiter<C>>>,
    bulkhead: Option<Arc<ConcurrencyLimiter<C>>>,
    max_wait: Duration,
}

/// Why a call wasn't made.
#[derive(Clone, Copy, Debug, Display, Error, PartialEq, Eq)]
#[display("not called: {_0}")]
#[error(ignore)]
#[non_exhaustive]
pub enum CallDenied {
    /// The breaker is open. Nothing was charged.
    Open(CircuitOpen),
    /// The wait for the rate would exceed the call's maximum. Nothing was charged.
    Rate(RateDenied),
    /// The bulkhead is full. The rate's token was refunded.
    Full(PermitDenied),
}

/// A call that failed, or wasn't made.
#[derive(Clone, Copy, Debug, Display, Error, PartialEq, Eq)]
#[error(ignore)]
pub enum CallError<E> {
    /// It wasn't made.
    NotCalled(CallDenied),
    /// It failed with this.
    Failed(E),
}

/// A call that may be made now. It holds its permit until it ends or is dropped.
#[must_use = "a call that is dropped counts as one without an answer, and releases its permit"]
#[derive(derive_more::Debug)]
pub struct ActiveCall<'a, C: Clock> {
    call: Option<BreakerCall<'a, C>>,
    #[debug(skip)]
    permit: Option<Permit<&'a ConcurrencyLimiter<C>>>,
}

impl<C: Clock> CallGuard<C> {
    /// Without any protection.
    pub const fn new() -> Self {
        Self {
            breaker: None,
            rate: None,
            bulkhead: None,
            max_wait: Duration::ZERO,
        }
    }

    /// Makes no call while this breaker is open.
    #[must_use]
    pub fn breaker(mut self, breaker: Arc<CircuitBreaker<C>>) -> Self {
        self.breaker = Some(breaker);
        self
    }

    /// Makes calls at this rate. A call that would have to wait for longer than
    /// [`max_wait`](Self::max_wait) isn't made.
    #[must_use]
    pub fn rate(mut self, rate: Arc<Limiter<C>>) -> Self {
        self.rate = Some(rate);
        self
    }

    /// Bounds the calls in flight. Whether calls wait for a permit, and for how long, is a setting of
    /// the bulkhead (`builder(10).max_waiters(20).timeout(…)`).
    #[must_use]
    pub fn bulkhead(mut self, bulkhead: Arc<ConcurrencyLimiter<C>>) -> Self {
        self.bulkhead = Some(bulkhead);
        self
    }

    /// The longest wait for the rate; by default calls don't wait.
    #[must_use]
    pub fn max_wait(mut self, patience: Duration) -> Self {
        self.max_wait = patience;
        self
    }

    /// Passes all protections, or none.
    ///
    /// # Errors
    /// [`CallDenied`]: nothing is charged and nothing held.
    pub async fn enter(&self) -> Result<ActiveCall<'_, C>, CallDenied> {
        let mut call = UndoGuard::new(self.admit_by_breaker()?, BreakerCall::ignored);
        let (mut token, mut has_waited) = (None, false);
        if let Some(rate) = self.rate.as_deref() {
            // In the queue, like any waiter: a reservation that is made to learn its delay, and then
            // cancelled, would move other waiters.
            let turn = rate.acquire().timeout(self.max_wait).into_reservation();
            let turn = track_waits(turn, &mut has_waited).await;
            let turn = turn.map_err(CallDenied::Rate)?;
            token = Some(UndoGuard::new(Some(turn), Reservation::cancel));
        }
        let permit = match self.bulkhead.as_deref() {
            Some(bulkhead) => {
                let permit = track_waits(bulkhead.acquire().into_future(), &mut has_waited);
                Some(permit.await.map_err(CallDenied::Full)?)
            }
            None => None,
        };
        if has_waited {
            // The circuit may have opened meanwhile, and a wait here doesn't count as the backend's
            // latency.
            drop(call);
            call = UndoGuard::new(self.admit_by_breaker()?, BreakerCall::ignored);
        }
        if let Some(slot) = token.and_then(UndoGuard::disarm) {
            slot.keep();
        }
        Ok(ActiveCall {
            call: call.disarm(),
            permit,
        })
    }

    fn admit_by_breaker(&self) -> Result<Option<BreakerCall<'_, C>>, CallDenied> {
        let call = self.breaker.as_deref().map(CircuitBreaker::try_call);
        call.transpose().map_err(CallDenied::Open)
    }

    /// Makes a call once it has passed all protections, and reports its outcome to them.
    ///
    /// # Errors
    /// [`CallError`]: the call's own error, or why it wasn't made.
    pub async fn call<T, E, F: Future<Output = Result<T, E>>>(
        &self,
        call: impl FnOnce() -> F,
        means: impl FnOnce(&Result<T, E>) -> PermitOutcome,
    ) -> Result<T, CallError<E>> {
        let entered = self.enter().await.map_err(CallError::NotCalled)?;
        let result = call().await;
        entered.end(means(&result));
        result.map_err(CallError::Failed)
    }

    /// The current rate, if there is one.
    pub fn limit(&self) -> Option<Rate> {
        self.rate.as_deref().map(Limiter::rate)
    }
}

/// Awaits a future, and records whether that took any time.
async fn track_waits<F: Future>(future: F, has_waited: &mut bool) -> F::Output {
    let mut future = pin!(future);
    poll_fn(|context| {
        let polled = future.as_mut().poll(context);
        *has_waited |= polled.is_pending();
        polled
    })
    .await
}

impl<C: Clock> Default for CallGuard<C> {
    fn default() -> Self {
        Self::new()
    }
}

impl<C: Clock> ActiveCall<'_, C> {
    /// Ends the call with this outcome; dropped is a failure for the breaker.
    pub fn end(self, ending: PermitOutcome) {
        if let Some(call) = self.call {
            match ending {
                PermitOutcome::Success => call.success(),
                PermitOutcome::Dropped => call.failure(),
                PermitOutcome::Ignored => call.ignored(),
            }
        }
        if let Some(permit) = self.permit {
            permit.end(ending);
        }
    }
}
