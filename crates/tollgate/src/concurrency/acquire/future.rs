//! The future of `acquire().await` for a permit: an alarm only if the wait is bounded.

use std::fmt;
use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::task::{Context, Poll};

use pin_project_lite::pin_project;

use super::{Acquire, QueuedAcquire, StartedAcquire};
use crate::clock::alarm::Alarm;
use crate::concurrency::home::PermitHome;
use crate::concurrency::{NoPermit, Permit};
use crate::patience::ClockAwareDeadline;

pin_project! {
    /// The future that [`Acquire`] turns into. Dropping it leaves the queue.
    #[must_use = "futures do nothing unless awaited"]
    pub struct Acquiring<H: PermitHome> {
        stage: AcquireStage<H>,
        until: Option<ClockAwareDeadline>,
        #[pin]
        alarm: Alarm,
    }
}

enum AcquireStage<H: PermitHome> {
    Start(Acquire<H>),
    Waiting(QueuedAcquire<H>),
    Done,
}

impl<H: PermitHome> IntoFuture for Acquire<H> {
    type Output = Result<Permit<H>, NoPermit>;
    type IntoFuture = Acquiring<H>;

    fn into_future(self) -> Acquiring<H> {
        Acquiring {
            stage: AcquireStage::Start(self),
            until: None,
            alarm: Alarm::new(),
        }
    }
}

impl<H: PermitHome> Future for Acquiring<H> {
    type Output = Result<Permit<H>, NoPermit>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        let mut place = match std::mem::replace(this.stage, AcquireStage::Done) {
            AcquireStage::Done => panic!("`Acquiring` was polled after it had ended"),
            AcquireStage::Waiting(place) => place,
            AcquireStage::Start(acquire) => match acquire.start()? {
                StartedAcquire::Passed(permit) => return Poll::Ready(Ok(permit)),
                StartedAcquire::Waiting { place, until } => {
                    *this.until = until;
                    place
                }
            },
        };
        if let Some(result) = place.ask(context.waker()) {
            return Poll::Ready(result);
        }
        if let (Some(until), Some(clock)) = (this.until.as_mut(), place.clock())
            && let at = until.at(clock.now())
            && this.alarm.as_mut().poll(clock, at, context).is_ready()
        {
            return Poll::Ready(place.expire());
        }
        *this.stage = AcquireStage::Waiting(place);
        Poll::Pending
    }
}

impl<H: PermitHome> fmt::Debug for Acquiring<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Acquiring").finish_non_exhaustive()
    }
}
