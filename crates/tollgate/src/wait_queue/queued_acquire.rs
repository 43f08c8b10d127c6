//! A wait in the queue of a fair limiter or of lanes, and its blocking form.

use std::fmt;
use std::time::Duration;

use tollgate_core::Timestamp;

use super::shared_queue::QueueDiscipline;
use super::{QueuedWaiter, SharedWaitQueue};
use crate::RateDenied;
use crate::clock::Clock;
use crate::patience::WaitLimit;

/// A wait in a queue: await it, or call [`wait_blocking`](Self::wait_blocking). The result is how long
/// it took.
///
/// It joins the queue when the wait starts. Dropping the future leaves the queue and costs nothing; a
/// charge for a waiter that left before it noticed goes to the next waiter, or is refunded.
///
/// A deadline that can't be met fails immediately with the expected wait. That estimate counts every
/// current waiter with precedence and no later one. Requests that come after a waiter may delay it by
/// up to their own shares; then it is dropped when its deadline passes, without having cost a token.
///
/// The first waiter keeps the time for all. If its future was polled once and then is neither polled
/// nor dropped, it holds up the others until another request comes or a deadline passes. So don't set
/// such a future aside.
///
/// It can be awaited on any executor, and panics where [`Acquire`](crate::wait::Acquire) does.
///
/// ```
/// # #[cfg(feature = "tokio")]
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), tollgate::LimitError> {
/// use std::time::Duration;
/// use tollgate::{FairLimiter, Rate, RateDenied, clock::Tokio};
///
/// let rate = Rate::every(Duration::from_millis(10));
/// let limiter = FairLimiter::builder(rate).clock(Tokio::new()).build()?;
/// assert_eq!(limiter.acquire("ada").await, Ok(Duration::ZERO));
/// // Weight 2 and weight 1: bob gets two of every three tokens.
/// let (bob, ada) = tokio::join!(limiter.acquire("bob").weight(2), limiter.acquire("ada"));
/// assert_eq!((bob, ada), (Ok(Duration::from_millis(10)), Ok(Duration::from_millis(20))));
///
/// let hasty = limiter.acquire("ada").timeout(Duration::from_millis(5)).await;
/// assert!(matches!(hasty, Err(RateDenied::DeadlineExceeded(_))));
/// # Ok(())
/// # }
/// # #[cfg(not(feature = "tokio"))]
/// # fn main() {}
/// ```
#[must_use = "no wait begins until this is awaited, or `wait_blocking` is called"]
pub struct QueuedAcquire<'a, D: QueueDiscipline, C: Clock> {
    line: &'a SharedWaitQueue<D, C>,
    pub(crate) client: D::Client,
    cost: u64,
    patience: WaitLimit,
}

impl<'a, D: QueueDiscipline, C: Clock> QueuedAcquire<'a, D, C> {
    pub(crate) const fn new(line: &'a SharedWaitQueue<D, C>, ask: D::Client, cost: u64) -> Self {
        Self {
            line,
            client: ask,
            cost,
            patience: WaitLimit::Default,
        }
    }

    /// Fails immediately if the wait would take longer than this, and after this if others delayed it.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.patience = WaitLimit::Timeout(timeout);
        self
    }

    /// Fails immediately if it can't pass by this time on the limiter's clock, and at that time if
    /// others delayed it.
    pub fn deadline(mut self, deadline: Timestamp) -> Self {
        self.patience = WaitLimit::Deadline(deadline);
        self
    }

    /// Blocks the thread until it is served; returns how long that took.
    ///
    /// # Errors
    /// [`RateDenied`]: immediately if it can never pass or can't pass before the deadline, or if the
    /// queue is full; later if it was shed or its deadline passed.
    pub fn wait_blocking(self) -> Result<Duration, RateDenied> {
        let Some(standing) = self.start()? else {
            return Ok(Duration::ZERO);
        };
        standing.wait_blocking().map(|passed| passed.waited)
    }

    /// As [`wait_blocking`](Self::wait_blocking), but gives up after this many polls, as a dropped
    /// future would. For the model checker.
    #[cfg(shuttle)]
    #[doc(hidden)]
    pub fn wait_for_polls(self, looks: usize) -> Option<Result<Duration, RateDenied>> {
        let standing = match self.start() {
            Ok(Some(standing)) => standing,
            Ok(None) => return Some(Ok(Duration::ZERO)),
            Err(refused) => return Some(Err(refused)),
        };
        let result = standing.wait_for_polls(looks)?;
        Some(result.map(|passed| passed.waited))
    }

    /// Passes immediately, joins the queue, or returns why it can do neither.
    pub(super) fn start(
        self,
    ) -> Result<Option<QueuedWaiter<&'a SharedWaitQueue<D, C>>>, RateDenied> {
        let patience = self.patience;
        self.line
            .enter(self.client, self.cost, |now| patience.deadline(now))
    }
}

impl<D: QueueDiscipline, C: Clock> fmt::Debug for QueuedAcquire<'_, D, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Turn")
            .field("cost", &self.cost)
            .field("patience", &self.patience)
            .finish_non_exhaustive()
    }
}
