//! Waking a task at a time: by the clock itself if it can, by tokio's timer inside a tokio runtime, and by one thread
//! of this crate elsewhere. Which one is decided when a wait arms the alarm, whatever features are enabled.

use std::pin::Pin;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use pin_project_lite::pin_project;
use tollgate_core::Timestamp;

use super::{Clock, Wakeup};

mod timer_thread;
mod tokio_timer;

use timer_thread::TimerEntry;
use tokio_timer::{RuntimeSleep, is_time_paused, sleep};

pin_project! {
    /// Wakes a task at a time. Arming it again replaces that time.
    pub(crate) struct Alarm {
        // The time for which it is armed, on the limiter's clock.
        at: Option<Timestamp>,
        #[pin]
        timer: AlarmTimer,
    }
}

pin_project! {
    #[project = TimerProjection]
    enum AlarmTimer {
        Off,
        // Dropping it cancels the wake-up.
        Clock { wakeup: Wakeup },
        Thread { entry: TimerEntry },
        Runtime { #[pin] sleeping: RuntimeSleep },
    }
}

impl AlarmTimer {
    /// Wakes the task after `left`, when the clock shows `at`.
    fn new(clock: &dyn Clock, at: Timestamp, left: Duration, waker: &Waker) -> Self {
        if let Some(wakeup) = clock.schedule_wakeup(at, waker) {
            return Self::Clock { wakeup };
        }
        match sleep(left) {
            Some(sleeping) => Self::Runtime { sleeping },
            None => Self::Thread {
                entry: TimerEntry::new(left, waker),
            },
        }
    }
}

impl Alarm {
    pub(crate) const fn new() -> Self {
        Self {
            at: None,
            timer: AlarmTimer::Off,
        }
    }

    /// Whether the clock shows `at` by now. If not, the task is woken when it does; an earlier time for which the alarm
    /// was armed no longer counts.
    ///
    /// # Panics
    /// If tokio's time is paused and the clock goes on: such a test could wait forever, or not at all.
    pub(crate) fn poll(
        self: Pin<&mut Self>,
        clock: &dyn Clock,
        at: Timestamp,
        context: &mut Context<'_>,
    ) -> Poll<()> {
        let mut this = self.project();
        loop {
            let left = at - clock.now();
            if left.is_zero() {
                this.timer.set(AlarmTimer::Off);
                return Poll::Ready(());
            }
            let is_armed = *this.at == Some(at);
            match this.timer.as_mut().project() {
                TimerProjection::Runtime { mut sleeping } if is_armed => {
                    if ready!(sleeping.as_mut().poll(context)).is_err() {
                        // The runtime that polls it has ended, so the timer thread takes over.
                        let entry = TimerEntry::new(left, context.waker());
                        this.timer.set(AlarmTimer::Thread { entry });
                        return Poll::Pending;
                    }
                    assert!(
                        clock.now() >= at || !is_time_paused(&sleeping),
                        "tokio's time is paused, but this limiter's clock isn't tokio's: make the limiter \
                         with `clock::Tokio`, which follows `tokio::time::pause` and `advance`, or with \
                         `clock::Manual`"
                    );
                    // The clock is a little behind, or stale, so the remaining time is waited for, too.
                    this.timer.set(AlarmTimer::Off);
                }
                // Armed again each time: it may have fired a little too early, or for another task.
                _ => {
                    *this.at = Some(at);
                    this.timer.set(AlarmTimer::Off);
                    let timer = AlarmTimer::new(clock, at, left, context.waker());
                    let is_polled = matches!(timer, AlarmTimer::Runtime { .. });
                    this.timer.set(timer);
                    if !is_polled {
                        return Poll::Pending;
                    }
                }
            }
        }
    }

    /// Cancels the wake-up.
    pub(crate) fn disarm(self: Pin<&mut Self>) {
        self.project().timer.set(AlarmTimer::Off);
    }
}
