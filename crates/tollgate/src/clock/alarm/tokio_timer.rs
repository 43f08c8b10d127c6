//! tokio's timer, inside a tokio runtime.

/// The runtime has ended, so its timer no longer works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RuntimeEnded;

#[cfg(feature = "tokio")]
pub(super) use with_tokio::{RuntimeSleep, is_time_paused, sleep};

#[cfg(not(feature = "tokio"))]
pub(super) use without_tokio::{RuntimeSleep, is_time_paused, sleep};

#[cfg(feature = "tokio")]
mod with_tokio {
    use std::future::Future;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::pin::Pin;
    use std::task::{Context, Poll};
    use std::time::Duration;

    use super::RuntimeEnded;
    use pin_project_lite::pin_project;
    use tokio::runtime::Handle;
    use tokio::time::{Instant, Sleep};

    pin_project! {
        /// A timer of the runtime in which the wait began.
        pub(in super::super) struct RuntimeSleep {
            #[pin]
            sleep: Sleep,
            left: Duration,
            // The start on tokio's clock, and on the system's.
            began: (Instant, std::time::Instant),
        }
    }

    /// `None` outside a runtime.
    pub(in super::super) fn sleep(left: Duration) -> Option<RuntimeSleep> {
        Handle::try_current().ok()?;
        Some(RuntimeSleep {
            sleep: tokio::time::sleep(left),
            left,
            began: (Instant::now(), real_time()),
        })
    }

    /// Whether tokio's time advanced faster than the system's since the timer was armed.
    pub(in super::super) fn is_time_paused(sleeping: &RuntimeSleep) -> bool {
        let (virtually, really) = sleeping.began;
        let ahead = (Instant::now() - virtually).saturating_sub(real_time() - really);
        ahead > sleeping.left / 2 + Duration::from_millis(1)
    }

    impl Future for RuntimeSleep {
        type Output = Result<(), RuntimeEnded>;

        fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
            let this = self.project();
            // The timer of a runtime that ended is elapsed, and would panic if it were polled again.
            if this.sleep.is_elapsed() {
                return Poll::Ready(Ok(()));
            }
            // A timer armed in the context of an ended runtime panics at the first poll. Nothing tells that before.
            let poll = AssertUnwindSafe(|| this.sleep.poll(context));
            catch_unwind(poll).map_or(Poll::Ready(Err(RuntimeEnded)), |poll| poll.map(Ok))
        }
    }

    #[expect(
        clippy::disallowed_methods,
        reason = "tells paused time from real time, and decides nothing"
    )]
    fn real_time() -> std::time::Instant {
        std::time::Instant::now()
    }
}

/// Without the feature `tokio` there is no timer.
#[cfg(not(feature = "tokio"))]
mod without_tokio {
    use std::future::Pending;
    use std::time::Duration;

    pub(in super::super) type RuntimeSleep = Pending<Result<(), super::RuntimeEnded>>;

    pub(in super::super) fn sleep(_left: Duration) -> Option<RuntimeSleep> {
        None
    }

    pub(in super::super) fn is_time_paused(_sleeping: &RuntimeSleep) -> bool {
        false
    }
}
