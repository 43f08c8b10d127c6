//! The future of `acquire().await`: at most one timer, made only if it has to wait.

use std::fmt;
use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use pin_project_lite::pin_project;
use tokio::time::Sleep;
use tollgate_core::Timestamp;

use super::{Acquire, Place, Started};
use crate::clock::{Clock, Monotonic};
use crate::{Refused, Reservation};

pin_project! {
    /// The future that [`Acquire`] turns into. Dropping it gives the slot back.
    #[must_use = "futures do nothing unless awaited"]
    pub struct Acquiring<'a, C: Clock = Monotonic> {
        acquire: Acquire<'a, C>,
        #[pin]
        stage: Stage<'a, C>,
    }
}

pin_project! {
    #[project = StageProjection]
    enum Stage<'a, C: Clock> {
        Start,
        Done,
        Waiting {
            slot: Reservation<'a, C>,
            place: Place<'a>,
            arrived: Timestamp,
            #[pin]
            timer: Sleep,
        },
    }
}

impl<'a, C: Clock> IntoFuture for Acquire<'a, C> {
    type Output = Result<Duration, Refused>;
    type IntoFuture = Acquiring<'a, C>;

    fn into_future(self) -> Acquiring<'a, C> {
        Acquiring {
            acquire: self,
            stage: Stage::Start,
        }
    }
}

impl<C: Clock> Future for Acquiring<'_, C> {
    type Output = Result<Duration, Refused>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        loop {
            match this.stage.as_mut().project() {
                StageProjection::Done => panic!("`Acquiring` was polled after it had passed"),
                StageProjection::Start => {
                    let arrived = this.acquire.arrival();
                    match this.acquire.start(arrived)? {
                        Started::Passed => {
                            this.stage.set(Stage::Done);
                            return Poll::Ready(Ok(Duration::ZERO));
                        }
                        Started::Waiting { slot, place, until } => {
                            let timer = tokio::time::sleep(until - arrived);
                            this.stage.set(Stage::Waiting {
                                slot,
                                place,
                                arrived,
                                timer,
                            });
                        }
                    }
                }
                StageProjection::Waiting {
                    slot,
                    place: _,
                    arrived,
                    timer,
                } => {
                    ready!(timer.poll(context));
                    slot.mark_used();
                    let waited = this.acquire.limiter.clock().now() - *arrived;
                    this.stage.set(Stage::Done);
                    return Poll::Ready(Ok(waited));
                }
            }
        }
    }
}

impl<C: Clock> fmt::Debug for Acquiring<'_, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Acquiring")
            .field("acquire", &self.acquire)
            .finish_non_exhaustive()
    }
}
