//! Futures of queued waiters, each with one timer for when it must poll again by itself.

use std::fmt;
use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use pin_project_lite::pin_project;

use super::shared_queue::QueueDiscipline;
use super::{
    QueuePointer, QueuedAcquire, QueuedWaiter, SharedWaitQueue, WaitOutcome, WaitProgress,
    WaitQueue,
};
use crate::RateDenied;
use crate::clock::Clock;
use crate::clock::alarm::Alarm;

pin_project! {
    /// Waits until a place is served. Returns the due time and the duration of the wait.
    pub(crate) struct QueuedWaiterFuture<S: QueuePointer> {
        standing: QueuedWaiter<S>,
        #[pin]
        alarm: Alarm,
    }
}

impl<S: QueuePointer> QueuedWaiterFuture<S> {
    pub(crate) const fn new(standing: QueuedWaiter<S>) -> Self {
        Self {
            standing,
            alarm: Alarm::new(),
        }
    }

    /// Its queue.
    pub(crate) fn at(self: Pin<&Self>) -> &S {
        self.project_ref().standing.at()
    }
}

impl<S: QueuePointer> Future for QueuedWaiterFuture<S> {
    type Output = Result<WaitOutcome, RateDenied>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        loop {
            let until = match this.standing.poll_outcome(context.waker()) {
                WaitProgress::Done(result) => {
                    this.alarm.disarm();
                    return Poll::Ready(result);
                }
                WaitProgress::Waiting(until) => until,
            };
            let Some(until) = until else {
                this.alarm.as_mut().disarm();
                return Poll::Pending;
            };
            // Polls again when its timer has fired.
            let post = this.standing.at().post();
            ready!(this.alarm.as_mut().poll(post.clock(), until, context));
        }
    }
}

pin_project! {
    /// The future that [`QueuedAcquire`] turns into. Dropping it leaves the queue.
    #[must_use = "futures do nothing unless awaited"]
    pub struct QueuedAcquireFuture<'a, D: QueueDiscipline, C: Clock> {
        // Until it is polled for the first time.
        turn: Option<QueuedAcquire<'a, D, C>>,
        // While it is in the queue.
        #[pin]
        wait: Option<QueuedWaiterFuture<&'a SharedWaitQueue<D, C>>>,
    }
}

impl<'a, D: QueueDiscipline, C: Clock> IntoFuture for QueuedAcquire<'a, D, C> {
    type Output = Result<Duration, RateDenied>;
    type IntoFuture = QueuedAcquireFuture<'a, D, C>;

    fn into_future(self) -> QueuedAcquireFuture<'a, D, C> {
        QueuedAcquireFuture {
            turn: Some(self),
            wait: None,
        }
    }
}

impl<D: QueueDiscipline, C: Clock> Future for QueuedAcquireFuture<'_, D, C> {
    type Output = Result<Duration, RateDenied>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        if let Some(turn) = this.turn.take() {
            let Some(standing) = turn.start()? else {
                return Poll::Ready(Ok(Duration::ZERO));
            };
            this.wait.set(Some(QueuedWaiterFuture::new(standing)));
        }
        let Some(wait) = this.wait.as_mut().as_pin_mut() else {
            panic!("`Turning` was polled after it had passed");
        };
        let result = ready!(wait.poll(context));
        this.wait.set(None);
        Poll::Ready(result.map(|passed| passed.waited))
    }
}

impl<D: QueueDiscipline, C: Clock> fmt::Debug for QueuedAcquireFuture<'_, D, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Turning").finish_non_exhaustive()
    }
}
