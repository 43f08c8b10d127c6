//! The future of `acquire().await` for a permit. It needs a timer only if the wait is bounded.

use std::fmt;
use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::task::{Context, Poll};

use pin_project_lite::pin_project;

use super::{Acquire, QueuedAcquire, StartedAcquire};
use crate::clock::alarm::Alarm;
use crate::concurrency::permit_source::PermitSource;
use crate::concurrency::{Permit, PermitDenied};
use crate::patience::ClockAwareDeadline;

pin_project! {
    /// The future that [`Acquire`] turns into. Dropping it leaves the queue.
    #[must_use = "futures do nothing unless awaited"]
    pub struct PermitFuture<H: PermitSource> {
        stage: AcquireStage<H>,
        until: Option<ClockAwareDeadline>,
        #[pin]
        alarm: Alarm,
    }
}

enum AcquireStage<H: PermitSource> {
    Start(Acquire<H>),
    Waiting(QueuedAcquire<H>),
    Done,
}

impl<H: PermitSource> IntoFuture for Acquire<H> {
    type Output = Result<Permit<H>, PermitDenied>;
    type IntoFuture = PermitFuture<H>;

    fn into_future(self) -> PermitFuture<H> {
        PermitFuture {
            stage: AcquireStage::Start(self),
            until: None,
            alarm: Alarm::new(),
        }
    }
}

impl<H: PermitSource> Future for PermitFuture<H> {
    type Output = Result<Permit<H>, PermitDenied>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        let mut place = match std::mem::replace(this.stage, AcquireStage::Done) {
            AcquireStage::Done => panic!("`Acquiring` was polled after it had ended"),
            AcquireStage::Waiting(place) => place,
            AcquireStage::Start(acquire) => match acquire.start()? {
                StartedAcquire::Acquired(permit) => return Poll::Ready(Ok(permit)),
                StartedAcquire::Waiting { place, until } => {
                    *this.until = until;
                    place
                }
            },
        };
        if let Some(result) = place.poll_grant(context.waker()) {
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

impl<H: PermitSource> fmt::Debug for PermitFuture<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Acquiring").finish_non_exhaustive()
    }
}
