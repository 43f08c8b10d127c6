//! The future of `acquire().await`: a place in line and one alarm, only if it has to wait.

use std::fmt;
use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use pin_project_lite::pin_project;
use tollgate_core::Timestamp;

use super::{Acquire, Place, Started};
use crate::Refused;
use crate::clock::alarm::Alarm;
use crate::home::Home;
use crate::line::Await;

pin_project! {
    /// The future that [`Acquire`] turns into. Dropping it frees the place in line.
    #[must_use = "futures do nothing unless awaited"]
    pub struct Acquiring<H: Home> {
        acquire: Acquire<H>,
        #[pin]
        stage: Stage<H>,
    }
}

pin_project! {
    #[project = StageProjection]
    enum Stage<H: Home> {
        Start,
        Waiting {
            // Free before it counts as free.
            #[pin]
            wait: Await<H>,
            place: Place<H>,
            arrived: Timestamp,
        },
        // Its turn came, and it spreads out.
        Spreading {
            #[pin]
            alarm: Alarm,
            until: Timestamp,
            arrived: Timestamp,
        },
        Done,
    }
}

impl<H: Home> IntoFuture for Acquire<H> {
    type Output = Result<Duration, Refused>;
    type IntoFuture = Acquiring<H>;

    fn into_future(self) -> Acquiring<H> {
        Acquiring {
            acquire: self,
            stage: Stage::Start,
        }
    }
}

impl<H: Home> Future for Acquiring<H> {
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
                        Started::Waiting { standing, place } => this.stage.set(Stage::Waiting {
                            wait: Await::new(standing),
                            place,
                            arrived,
                        }),
                    }
                }
                StageProjection::Waiting {
                    wait,
                    place: _,
                    arrived,
                } => {
                    let turn = ready!(wait.poll(context));
                    let arrived = *arrived;
                    this.stage.set(Stage::Done);
                    let (at, _) = turn?;
                    if this.acquire.jitter.is_zero() {
                        return Poll::Ready(Ok(this.acquire.home.now() - arrived));
                    }
                    this.stage.set(Stage::Spreading {
                        alarm: Alarm::new(),
                        until: this.acquire.spread(at),
                        arrived,
                    });
                }
                StageProjection::Spreading {
                    alarm,
                    until,
                    arrived,
                } => {
                    ready!(alarm.poll(this.acquire.home.clock(), *until, context));
                    let waited = this.acquire.home.now() - *arrived;
                    this.stage.set(Stage::Done);
                    return Poll::Ready(Ok(waited));
                }
            }
        }
    }
}

impl<H: Home> fmt::Debug for Acquiring<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Acquiring")
            .field("acquire", &self.acquire)
            .finish_non_exhaustive()
    }
}
