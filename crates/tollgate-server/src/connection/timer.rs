//! What a client may take, request by request: one timer that is moved as seldom as possible.

use std::future::{Future, poll_fn};
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::{Instant, Sleep, sleep_until};

/// Does something before the time that is set is over.
pub(super) async fn in_time<T>(
    mut timer: Pin<&mut Timer>,
    mut doing: Pin<&mut impl Future<Output = io::Result<T>>>,
) -> io::Result<T> {
    poll_fn(|cx| match doing.as_mut().poll(cx) {
        Poll::Ready(done) => Poll::Ready(done),
        Poll::Pending => timer
            .as_mut()
            .poll_over(cx)
            .map(|()| Err(io::ErrorKind::TimedOut.into())),
    })
    .await
}

pin_project_lite::pin_project! {
    /// An alarm that is set for each request. The clock is read once something has to be waited for, and the timer is
    /// moved only when it goes off too early: most alarms are set anew long before.
    pub(super) struct Timer {
        #[pin]
        sleep: Sleep,
        alarm: Alarm,
    }
}

/// When time is over.
#[derive(Clone, Copy)]
enum Alarm {
    /// So long after it is waited for.
    In(Duration),
    At(Instant),
}

impl Timer {
    pub(super) fn new(time: Duration) -> Self {
        Self {
            sleep: sleep_until(Instant::now() + time),
            alarm: Alarm::In(time),
        }
    }

    /// Sets it anew, from when it is waited for.
    pub(super) fn set(self: Pin<&mut Self>, time: Duration) {
        *self.project().alarm = Alarm::In(time);
    }

    pub(super) fn poll_over(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let mut this = self.project();
        let until = match *this.alarm {
            Alarm::At(until) => until,
            Alarm::In(time) => Instant::now() + time,
        };
        *this.alarm = Alarm::At(until);
        // It would go off too late.
        if this.sleep.deadline() > until {
            this.sleep.as_mut().reset(until);
        }
        while this.sleep.as_mut().poll(cx).is_ready() {
            if Instant::now() >= until {
                return Poll::Ready(());
            }
            this.sleep.as_mut().reset(until);
        }
        Poll::Pending
    }
}
