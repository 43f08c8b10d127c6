//! Futures of waiters in line, each with one alarm for when it has to look again by itself.

use std::fmt;
use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use pin_project_lite::pin_project;

use super::queue::Discipline;
use super::{Passed, Post, QueuePointer, SharedWaitQueue, Standing, Turn, WaitProgress};
use crate::Refused;
use crate::clock::Clock;
use crate::clock::alarm::Alarm;

pin_project! {
    /// Waits for a place's turn: when it came, and how long that took.
    pub(crate) struct QueuedWaiterFuture<S: QueuePointer> {
        standing: Standing<S>,
        #[pin]
        alarm: Alarm,
    }
}

impl<S: QueuePointer> QueuedWaiterFuture<S> {
    pub(crate) const fn new(standing: Standing<S>) -> Self {
        Self {
            standing,
            alarm: Alarm::new(),
        }
    }

    /// Where it stands.
    pub(crate) fn at(self: Pin<&Self>) -> &S {
        self.project_ref().standing.at()
    }
}

impl<S: QueuePointer> Future for QueuedWaiterFuture<S> {
    type Output = Result<Passed, Refused>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        loop {
            let until = match this.standing.look(context.waker()) {
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
            // When its time has come it looks again.
            let post = this.standing.at().post();
            ready!(this.alarm.as_mut().poll(post.clock(), until, context));
        }
    }
}

pin_project! {
    /// The future that [`Turn`] turns into. Dropping it frees the place in line.
    #[must_use = "futures do nothing unless awaited"]
    pub struct Turning<'a, D: Discipline, C: Clock> {
        #[pin]
        stage: QueuedAcquireStage<'a, D, C>,
    }
}

pin_project! {
    #[project = StageProjection]
    enum QueuedAcquireStage<'a, D: Discipline, C: Clock> {
        Start { turn: Option<Turn<'a, D, C>> },
        Waiting { #[pin] wait: QueuedWaiterFuture<&'a SharedWaitQueue<D, C>> },
        Done,
    }
}

impl<'a, D: Discipline, C: Clock> IntoFuture for Turn<'a, D, C> {
    type Output = Result<Duration, Refused>;
    type IntoFuture = Turning<'a, D, C>;

    fn into_future(self) -> Turning<'a, D, C> {
        Turning {
            stage: QueuedAcquireStage::Start { turn: Some(self) },
        }
    }
}

impl<D: Discipline, C: Clock> Future for Turning<'_, D, C> {
    type Output = Result<Duration, Refused>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        loop {
            match this.stage.as_mut().project() {
                StageProjection::Done => panic!("`Turning` was polled after it had passed"),
                StageProjection::Start { turn } => {
                    let started = turn.take().map_or(Ok(None), Turn::start);
                    this.stage.set(QueuedAcquireStage::Done);
                    match started? {
                        None => return Poll::Ready(Ok(Duration::ZERO)),
                        Some(standing) => this.stage.set(QueuedAcquireStage::Waiting {
                            wait: QueuedWaiterFuture::new(standing),
                        }),
                    }
                }
                StageProjection::Waiting { wait } => {
                    let result = ready!(wait.poll(context));
                    this.stage.set(QueuedAcquireStage::Done);
                    return Poll::Ready(result.map(|passed| passed.waited));
                }
            }
        }
    }
}

impl<D: Discipline, C: Clock> fmt::Debug for Turning<'_, D, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Turning").finish_non_exhaustive()
    }
}
