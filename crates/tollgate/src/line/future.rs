//! The future of a turn: one timer, armed only while it keeps the time for all or has a deadline.

use std::fmt;
use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use pin_project_lite::pin_project;
use tokio::time::{Instant, Sleep};
use tollgate_core::Timestamp;

use super::queue::Discipline;
use super::{Progress, Standing, Turn};
use crate::Refused;
use crate::clock::Clock;

pin_project! {
    /// The future that [`Turn`] turns into. Dropping it frees the place in line.
    #[must_use = "futures do nothing unless awaited"]
    pub struct Turning<'a, D: Discipline, C: Clock> {
        stage: Stage<'a, D, C>,
        #[pin]
        timer: Option<Sleep>,
        // What the timer is set to, on the limiter's clock.
        until: Option<Timestamp>,
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
            timer: None,
            until: None,
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
                    this.timer.set(None);
                    *this.stage = Stage::Done;
                    return Poll::Ready(result);
                }
                Progress::Waiting(until) => until,
            };
            if *this.until != until || this.timer.is_none() {
                *this.until = until;
                let left = until.map(|until| until - standing.line.clock().now());
                match (left, this.timer.as_mut().as_pin_mut()) {
                    (None, _) => this.timer.set(None),
                    (Some(left), None) => this.timer.set(Some(tokio::time::sleep(left))),
                    // Beyond what a timer holds it is looked at again when that fires.
                    (Some(left), Some(timer)) => match Instant::now().checked_add(left) {
                        Some(deadline) => timer.reset(deadline),
                        None => this.timer.set(Some(tokio::time::sleep(left))),
                    },
                }
            }
            let Some(timer) = this.timer.as_mut().as_pin_mut() else {
                return Poll::Pending;
            };
            ready!(timer.poll(context));
            // Its time has come: look again, with a timer that is armed anew.
            this.timer.set(None);
        }
    }
}

impl<D: Discipline, C: Clock> fmt::Debug for Turning<'_, D, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Turning")
            .field("until", &self.until)
            .finish_non_exhaustive()
    }
}
