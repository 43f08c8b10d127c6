//! Waiting for tokens: a position in the limit's queue. First in, first out; dropping a wait leaves the
//! queue.

use std::time::Duration;

use tollgate_core::Timestamp;

use crate::RateDenied;
use crate::cell::ChargeTicket;
use crate::patience::WaitLimit;
use crate::queued_limit::LimitHandle;
use crate::queued_limit::sealed::QueuedLimit as _;
use crate::wait_queue::fifo_queue::JoinOutcome;
use crate::wait_queue::waiter_count::WaiterGuard;
use crate::wait_queue::{QueuedWaiter, WaitQueue};

#[cfg(not(any(loom, shuttle)))]
mod future;
mod jitter;

#[cfg(not(any(loom, shuttle)))]
pub use future::AcquireFuture;

/// A wait for tokens: await it, or call [`wait_blocking`](Self::wait_blocking). The result is how long
/// it took.
///
/// It joins the queue when the wait starts. Waiters pass in the order in which they came, no check
/// overtakes them, a late wake-up loses no rate, and a deadline that can't be met fails immediately. A
/// waiter is charged only when it reaches the head of the queue. So dropping the future leaves the
/// queue, and every waiter behind it moves up. (Except a [`Reservation`](crate::Reservation) that was
/// made behind waiters: it was promised a time, and keeps it.)
///
/// ```
/// use std::future::IntoFuture;
/// use std::pin::pin;
/// use std::task::{Context, Waker};
/// use std::time::Duration;
/// use tollgate::{Limiter, Rate, clock::Manual};
///
/// let limiter = Limiter::with_clock(Rate::per_second(10).burst(1), Manual::new());
/// assert!(limiter.allow());
/// {
///     let mut waiting = pin!(limiter.acquire().into_future());
///     let mut context = Context::from_waker(Waker::noop());
///     assert!(waiting.as_mut().poll(&mut context).is_pending());
///     assert_eq!(limiter.check().wait_or_max(), Duration::from_millis(200), "behind it");
/// }
/// assert_eq!(limiter.check().wait_or_max(), Duration::from_millis(100), "it is gone");
/// ```
///
/// It can be awaited on any executor. Inside a tokio runtime (feature `tokio`) a wait ends on tokio's
/// timer, which ticks once a millisecond. A task that paces itself at burst 1 passes once or twice a
/// tick, 1,000 to 2,000 times a second (1,755 measured), whatever the rate. A burst that covers a few
/// milliseconds (100 at 20,000/s) makes up for late wake-ups and delivers the whole rate.
///
/// Outside tokio, one thread of this crate wakes the waiters when they are due. The limiter's clock
/// decides: a test moves a [`clock::Manual`](crate::clock::Manual) by hand, or pauses tokio's time and
/// uses `clock::Tokio`.
///
/// # Panics
/// In a tokio runtime without timers; tokio's message says to call `enable_time`. (The only way to find
/// out whether a runtime has timers is to create one.) Also if tokio's time is paused while it has to
/// wait on a clock that isn't.
///
/// ```
/// # #[cfg(feature = "tokio")]
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() {
/// use std::time::Duration;
/// use tollgate::{Limiter, Rate, RateDenied, clock::Tokio};
///
/// let limiter = Limiter::with_clock(Rate::per_second(10).burst(1), Tokio::new());
/// assert_eq!(limiter.acquire().await, Ok(Duration::ZERO));
/// assert_eq!(limiter.acquire().await, Ok(Duration::from_millis(100)));
///
/// let hasty = limiter.acquire().timeout(Duration::from_millis(50)).await;
/// assert!(matches!(hasty, Err(RateDenied::DeadlineExceeded(_))));
/// # }
/// # #[cfg(not(feature = "tokio"))]
/// # fn main() {}
/// ```
///
/// It becomes a future when it is awaited, so `tokio::spawn(limiter.acquire())` doesn't compile ("is
/// not a future"). Spawn a task that owns the limiter in an [`Arc`](std::sync::Arc) and awaits there:
///
/// ```
/// use std::sync::Arc;
/// use tollgate::{Limiter, Rate};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let limiter = Arc::new(Limiter::new(Rate::per_second(10)));
/// let task = tokio::spawn({
///     let limiter = Arc::clone(&limiter);
///     async move { limiter.acquire().await }
/// });
/// assert!(task.await.expect("it doesn't panic").is_ok());
/// # }
/// ```
#[derive(Debug)]
#[must_use = "no wait begins until this is awaited, or `wait_blocking` is called"]
pub struct Acquire<H: LimitHandle> {
    home: H,
    cost: u64,
    arrived_at: Option<Timestamp>,
    patience: WaitLimit,
    jitter: Duration,
}

/// The state of a wait after its start.
enum AcquireStart<H: LimitHandle> {
    Passed(ChargeTicket),
    Waiting(QueuedWaiter<H>),
}

impl<H: LimitHandle> Acquire<H> {
    pub(crate) fn new(home: H, cost: u64) -> Self {
        Self {
            home,
            cost,
            arrived_at: None,
            patience: WaitLimit::Default,
            jitter: Duration::ZERO,
        }
    }

    pub(crate) const fn limit_handle(&self) -> &H {
        &self.home
    }

    pub(crate) const fn cost(&self) -> u64 {
        self.cost
    }

    /// The same wait through another handle of the same limit.
    pub(crate) fn map_limit(self, change: impl FnOnce(H) -> H) -> Self {
        Self {
            home: change(self.home),
            ..self
        }
    }

    /// Fails immediately if the wait would take longer than this.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.patience = WaitLimit::Timeout(timeout);
        self
    }

    /// Fails immediately if the request can't pass by this time on the limiter's clock, and also if
    /// that time has passed already, even if tokens are available. If the clock is set back by more
    /// than a minute during the wait, the deadline moves with it, so that no wait takes longer than
    /// requested.
    pub fn deadline(mut self, deadline: Timestamp) -> Self {
        self.patience = WaitLimit::Deadline(deadline);
        self
    }

    /// Adds a random delay of up to `most` after the tokens are granted, so that waiters with the same
    /// due time spread out. The delay may overrun a deadline.
    pub fn jitter(mut self, most: Duration) -> Self {
        self.jitter = most;
        self
    }

    /// Sets the time of arrival on the limiter's clock, instead of now.
    pub fn at(mut self, now: Timestamp) -> Self {
        self.arrived_at = Some(now);
        self
    }

    /// Blocks the thread until the tokens may be used; returns how long that took.
    ///
    /// # Errors
    /// [`RateDenied`] immediately if it can never pass or can't pass before the deadline, or if the
    /// queue is full.
    pub fn wait_blocking(self) -> Result<Duration, RateDenied> {
        let arrived = self.arrival_time();
        match self.start(arrived)? {
            AcquireStart::Passed(_) => Ok(Duration::ZERO),
            AcquireStart::Waiting(standing) => {
                let at = standing.wait_blocking()?.at;
                if !self.jitter.is_zero() {
                    let limit = self.home.limit();
                    limit.clock().sleep_until_time(add_jitter(at, self.jitter));
                }
                Ok(self.home.limit().now() - arrived)
            }
        }
    }

    /// As [`wait_blocking`](Self::wait_blocking), but gives up after this many polls, as a dropped
    /// future would. For the model checker.
    #[cfg(any(loom, shuttle))]
    #[doc(hidden)]
    pub fn wait_for_polls(self, looks: usize) -> Option<Result<(), RateDenied>> {
        match self.start(self.arrival_time()) {
            Ok(AcquireStart::Passed(_)) => Some(Ok(())),
            Ok(AcquireStart::Waiting(standing)) => {
                let result = standing.wait_for_polls(looks)?;
                Some(result.map(|_| ()))
            }
            Err(refused) => Some(Err(refused)),
        }
    }

    fn arrival_time(&self) -> Timestamp {
        self.arrived_at.unwrap_or_else(|| self.home.limit().now())
    }

    /// Passes immediately, joins the queue, or returns why it can do neither.
    fn start(&self, now: Timestamp) -> Result<AcquireStart<H>, RateDenied> {
        let (limit, deadline) = (self.home.limit(), self.patience.deadline(now));
        if deadline.is_some_and(|deadline| deadline < now) {
            return Err(RateDenied::DeadlineExceeded(limit.peek_in_order(now, 0)));
        }
        // Most callers pass immediately; these never count as waiting.
        let refused = match limit.book_in_order(now, self.cost, Duration::ZERO) {
            Ok(ticket) => return Ok(AcquireStart::Passed(ticket)),
            Err(RateDenied::DeadlineExceeded(decision))
                if deadline.is_none_or(|deadline| {
                    now + decision.wait_or_max() <= deadline
                        || limit.may_pass_before(now, self.cost, deadline)
                }) =>
            {
                decision
            }
            Err(refused) => return Err(refused),
        };
        let Some(place) = WaiterGuard::enter(limit.waiting()) else {
            return Err(RateDenied::QueueFull(refused));
        };
        Ok(match limit.join_queue(now, self.cost, deadline)? {
            JoinOutcome::Passed(ticket) => AcquireStart::Passed(ticket),
            JoinOutcome::Waiting(id) => {
                place.keep();
                AcquireStart::Waiting(QueuedWaiter::new(self.home.clone(), id))
            }
        })
    }
}

/// The time when a waiter that was due at this time continues.
fn add_jitter(at: Timestamp, jitter: Duration) -> Timestamp {
    at + jitter::random_up_to(jitter)
}
