//! The future of `acquire().await`: a queue position and one timer, only if it has to wait.

use std::fmt;
use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use pin_project_lite::pin_project;
use tollgate_core::Timestamp;

use super::{Acquire, AcquireStart, add_jitter};
use crate::cell::ChargeTicket;
use crate::clock::alarm::Alarm;
use crate::queued_limit::LimitHandle;
use crate::queued_limit::sealed::QueuedLimit as _;
use crate::wait_queue::{QueuedWaiterFuture, WaitQueue};
use crate::{RateDenied, Reservation};

pin_project! {
    /// The future that [`Acquire`] turns into. Dropping it leaves the queue.
    #[must_use = "futures do nothing unless awaited"]
    pub struct AcquireFuture<H: LimitHandle> {
        #[pin]
        stage: AcquireStage<H>,
    }
}

pin_project! {
    #[project = StageProjection]
    enum AcquireStage<H: LimitHandle> {
        Start {
            acquire: Acquire<H>,
        },
        Waiting {
            #[pin]
            wait: QueuedWaiterFuture<H>,
            jitter: Duration,
            arrived: Timestamp,
        },
        // The tokens are granted, and it waits for its random delay.
        Jittering {
            home: H,
            #[pin]
            alarm: Alarm,
            until: Timestamp,
            arrived: Timestamp,
        },
        Done,
    }
}

impl<H: LimitHandle> Acquire<H> {
    /// Waits, and returns the charge as a reservation that is due, so that it can still be cancelled.
    ///
    /// # Errors
    /// As [`wait_blocking`](Self::wait_blocking).
    ///
    /// ```
    /// use tollgate::{Limiter, Rate, RateDenied};
    ///
    /// # fn is_still_wanted() -> bool { true }
    /// async fn send(limiter: &Limiter) -> Result<(), RateDenied> {
    ///     let charge = limiter.acquire().into_reservation().await?;
    ///     if is_still_wanted() {
    ///         charge.keep();
    ///     } else {
    ///         charge.cancel();
    ///     }
    ///     Ok(())
    /// }
    /// # let limiter = Limiter::new(Rate::per_second(1));
    /// # let _ = send(&limiter);
    /// ```
    pub async fn into_reservation(self) -> Result<Reservation<H>, RateDenied> {
        let arrived = self.arrival_time();
        let ticket = match self.start(arrived)? {
            AcquireStart::Passed(ticket) => ticket,
            AcquireStart::Waiting(standing) => {
                let ticket = QueuedWaiterFuture::new(standing).await?.ticket;
                ticket.unwrap_or(ChargeTicket::Free(arrived))
            }
        };
        Ok(Reservation::new(self.home, ticket))
    }
}

impl<H: LimitHandle> IntoFuture for Acquire<H> {
    type Output = Result<Duration, RateDenied>;
    type IntoFuture = AcquireFuture<H>;

    fn into_future(self) -> AcquireFuture<H> {
        AcquireFuture {
            stage: AcquireStage::Start { acquire: self },
        }
    }
}

impl<H: LimitHandle> Future for AcquireFuture<H> {
    type Output = Result<Duration, RateDenied>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        loop {
            match this.stage.as_mut().project() {
                StageProjection::Done => panic!("`Acquiring` was polled after it had passed"),
                StageProjection::Start { acquire } => {
                    let (arrived, jitter) = (acquire.arrival_time(), acquire.jitter);
                    let started = acquire.start(arrived);
                    this.stage.set(AcquireStage::Done);
                    match started? {
                        AcquireStart::Passed(_) => return Poll::Ready(Ok(Duration::ZERO)),
                        AcquireStart::Waiting(standing) => this.stage.set(AcquireStage::Waiting {
                            wait: QueuedWaiterFuture::new(standing),
                            jitter,
                            arrived,
                        }),
                    }
                }
                StageProjection::Waiting {
                    mut wait,
                    jitter,
                    arrived,
                } => {
                    let turn = ready!(wait.as_mut().poll(context));
                    let home = wait.as_ref().at().clone();
                    let (jitter, arrived) = (*jitter, *arrived);
                    this.stage.set(AcquireStage::Done);
                    let at = turn?.at;
                    if jitter.is_zero() {
                        return Poll::Ready(Ok(home.limit().now() - arrived));
                    }
                    this.stage.set(AcquireStage::Jittering {
                        home,
                        alarm: Alarm::new(),
                        until: add_jitter(at, jitter),
                        arrived,
                    });
                }
                StageProjection::Jittering {
                    home,
                    alarm,
                    until,
                    arrived,
                } => {
                    let limit = home.limit();
                    ready!(alarm.poll(limit.clock(), *until, context));
                    let waited = limit.now() - *arrived;
                    this.stage.set(AcquireStage::Done);
                    return Poll::Ready(Ok(waited));
                }
            }
        }
    }
}

impl<H: LimitHandle> fmt::Debug for AcquireFuture<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Acquiring").finish_non_exhaustive()
    }
}
