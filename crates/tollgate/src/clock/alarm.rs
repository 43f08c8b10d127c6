//! Waking a task at a time: by the clock itself if it can, by tokio's timer inside a tokio runtime, and
//! by one thread of ours anywhere else. Which one is looked up when a wait arms it, whatever features are on.

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
    /// Wakes a task at a time; it is armed for one time at once.
    pub(crate) struct Alarm {
        // What it is armed for, on the limiter's clock.
        at: Option<Timestamp>,
        #[pin]
        timer: AlarmTimer,
    }
}

pin_project! {
    #[project = TimerProjection]
    enum AlarmTimer {
        Off,
        // Dropping it calls the wake-up off.
        Clock { wakeup: Wakeup },
        Thread { entry: TimerEntry },
        Runtime { #[pin] sleeping: RuntimeSleep },
    }
}

impl AlarmTimer {
    /// Wakes the task after so long, when the clock shows `at`.
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

    /// Whether the clock shows `at` by now. If not, the task is woken when it does, and no sooner time
    /// that it was armed for counts any more.
    ///
    /// # Panics
    /// If tokio's time is paused and the clock goes on: such a test could wait for ever, or not at all.
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
                        // The runtime that it is polled in has ended, so the thread keeps the time.
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
                    // The clock is a little behind, or stale: what is left of it is waited for too.
                    this.timer.set(AlarmTimer::Off);
                }
                // Armed anew each time: it may have fired a little too soon, or for another task.
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

    /// From now on it wakes no task.
    pub(crate) fn disarm(self: Pin<&mut Self>) {
        self.project().timer.set(AlarmTimer::Off);
    }
}
