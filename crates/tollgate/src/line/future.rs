//! The future of a turn: one alarm, armed only while it keeps the time for all or has a deadline.

use std::fmt;
use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use pin_project_lite::pin_project;

use super::queue::Discipline;
use super::{Progress, Standing, Turn};
use crate::Refused;
use crate::clock::Clock;
use crate::clock::alarm::Alarm;

pin_project! {
    /// The future that [`Turn`] turns into. Dropping it frees the place in line.
    #[must_use = "futures do nothing unless awaited"]
    pub struct Turning<'a, D: Discipline, C: Clock> {
        stage: Stage<'a, D, C>,
        #[pin]
        alarm: Alarm,
    }
}

enum Stage<'a, D: Discipline, C: Clock> {
    Start(Turn<'a, D, C>),
    Waiting(Standing<'a, D, C>),
    Done,
}

impl<'a, D: Discipline, C: Clock> IntoFuture for Turn<'a, D, C> {
    type Output = Result<Duration, Refused>;
    type IntoFuture = Turning<'a, D, C>;

    fn into_future(self) -> Turning<'a, D, C> {
        Turning {
            stage: Stage::Start(self),
            alarm: Alarm::new(),
        }
    }
}

impl<D: Discipline, C: Clock> Future for Turning<'_, D, C> {
    type Output = Result<Duration, Refused>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        if let Stage::Start(_) = this.stage
            && let Stage::Start(turn) = std::mem::replace(this.stage, Stage::Done)
        {
            match turn.start()? {
                None => return Poll::Ready(Ok(Duration::ZERO)),
                Some(standing) => *this.stage = Stage::Waiting(standing),
            }
        }
        loop {
            let Stage::Waiting(standing) = this.stage else {
                panic!("`Turning` was polled after it had passed");
            };
            let until = match standing.look(context.waker()) {
                Progress::Done(result) => {
                    this.alarm.disarm();
                    *this.stage = Stage::Done;
                    return Poll::Ready(result);
                }
                Progress::Waiting(until) => until,
            };
            let Some(until) = until else {
                this.alarm.as_mut().disarm();
                return Poll::Pending;
            };
            // When its time has come it looks again.
            ready!(
                this.alarm
                    .as_mut()
                    .poll(standing.line.clock(), until, context)
            );
        }
    }
}

impl<D: Discipline, C: Clock> fmt::Debug for Turning<'_, D, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Turning").finish_non_exhaustive()
    }
}
