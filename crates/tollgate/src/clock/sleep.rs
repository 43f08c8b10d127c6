//! Waiting for a time of a clock, on any executor.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use pin_project_lite::pin_project;
use tollgate_core::Timestamp;

use super::Clock;
use super::alarm::Alarm;

/// Waits until a clock shows a time, on any executor: the timer of the limiters' waits.
///
/// ```
/// use std::pin::pin;
/// use std::task::{Context, Poll, Waker};
/// use std::time::Duration;
/// use tollgate::clock::{Clock, Manual, sleep_until};
///
/// let clock = Manual::new();
/// let mut sleep = pin!(sleep_until(clock.clone(), clock.now() + Duration::from_secs(1)));
/// let mut context = Context::from_waker(Waker::noop());
/// assert!(sleep.as_mut().poll(&mut context).is_pending());
/// clock.advance(Duration::from_secs(1));
/// assert_eq!(sleep.as_mut().poll(&mut context), Poll::Ready(()));
/// ```
pub const fn sleep_until<C: Clock>(clock: C, at: Timestamp) -> Sleep<C> {
    Sleep {
        clock,
        at,
        alarm: Alarm::new(),
    }
}

pin_project! {
    /// The future of [`sleep_until`].
    ///
    /// ```
    /// use tollgate::Timestamp;
    /// use tollgate::clock::{Manual, Sleep, sleep_until};
    ///
    /// let sleep: Sleep<Manual> = sleep_until(Manual::new(), Timestamp::from_secs(5));
    /// # drop(sleep);
    /// ```
    #[must_use = "futures do nothing unless awaited"]
    pub struct Sleep<C> {
        clock: C,
        at: Timestamp,
        #[pin]
        alarm: Alarm,
    }
}

impl<C: Clock> Sleep<C> {
    /// Changes the time to wait for.
    pub fn reset(self: Pin<&mut Self>, at: Timestamp) {
        *self.project().at = at;
    }
}

impl<C: Clock> Future for Sleep<C> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let own = self.project();
        own.alarm.poll(own.clock, *own.at, context)
    }
}

impl<C> fmt::Debug for Sleep<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sleep")
            .field("at", &self.at)
            .finish_non_exhaustive()
    }
}
