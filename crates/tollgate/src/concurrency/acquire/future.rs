//! The future of `acquire().await` for a permit: a timer only if the wait is bounded.

use std::fmt;
use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::task::{Context, Poll};

use pin_project_lite::pin_project;
use tokio::time::Sleep;

use super::{AcquirePermit, Place, Started};
use crate::concurrency::home::PermitHome;
use crate::concurrency::{ConcurrencyRefused, Permit};

pin_project! {
    /// The future that [`AcquirePermit`] turns into. Dropping it leaves the queue.
    #[must_use = "futures do nothing unless awaited"]
    pub struct AcquiringPermit<H: PermitHome> {
        stage: Stage<H>,
        #[pin]
        timer: Option<Sleep>,
    }
}

enum Stage<H: PermitHome> {
    Start(AcquirePermit<H>),
    Waiting(Place<H>),
    Done,
}

impl<H: PermitHome> IntoFuture for AcquirePermit<H> {
    type Output = Result<Permit<H>, ConcurrencyRefused>;
    type IntoFuture = AcquiringPermit<H>;

    fn into_future(self) -> AcquiringPermit<H> {
        AcquiringPermit {
            stage: Stage::Start(self),
            timer: None,
        }
    }
}

impl<H: PermitHome> Future for AcquiringPermit<H> {
    type Output = Result<Permit<H>, ConcurrencyRefused>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        let mut place = match std::mem::replace(this.stage, Stage::Done) {
            Stage::Done => panic!("`AcquiringPermit` was polled after it had ended"),
            Stage::Waiting(place) => place,
            Stage::Start(acquire) => match acquire.start(|| context.waker().clone())? {
                Started::Passed(permit) => return Poll::Ready(Ok(permit)),
                Started::Waiting { place, until } => {
                    let left = until.zip(place.home_now()).map(|(until, now)| until - now);
                    this.timer.set(left.map(tokio::time::sleep));
                    place
                }
            },
        };
        if let Some(result) = place.ask(context.waker()) {
            return Poll::Ready(result);
        }
        if let Some(timer) = this.timer.as_mut().as_pin_mut()
            && timer.poll(context).is_ready()
        {
            return Poll::Ready(place.expire());
        }
        *this.stage = Stage::Waiting(place);
        Poll::Pending
    }
}

impl<H: PermitHome> fmt::Debug for AcquiringPermit<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AcquiringPermit").finish_non_exhaustive()
    }
}
