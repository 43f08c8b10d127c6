//! The longest duration of a wait, and the wake-up of a waiting thread.

use std::sync::Arc;
use std::task::{Wake, Waker};
use std::time::Duration;

use tollgate_core::Timestamp;

use crate::clock_steps::CLOCK_SLACK;
use crate::sync::{Thread, current_thread};

/// The default for how many requests may wait on one limiter.
pub(crate) const DEFAULT_MAX_WAITERS: usize = 65_536;

/// The longest duration of a wait.
#[derive(Clone, Copy, Debug)]
pub(crate) enum WaitLimit {
    /// The caller set none.
    Default,
    Timeout(Duration),
    Deadline(Timestamp),
}

impl WaitLimit {
    /// The deadline of the wait, if there is one.
    pub(crate) fn deadline(self, now: Timestamp) -> Option<Timestamp> {
        match self {
            Self::Default => None,
            Self::Timeout(timeout) => Some(now + timeout),
            Self::Deadline(deadline) => Some(deadline),
        }
    }
}

/// The deadline of a waiter, on a clock that may be set back meanwhile.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClockAwareDeadline {
    at: Timestamp,
    last_seen: Timestamp,
}

impl ClockAwareDeadline {
    pub(crate) const fn new(at: Timestamp, now: Timestamp) -> Self {
        Self { at, last_seen: now }
    }

    /// The deadline when the clock shows `now`. It moves with a clock that was set back.
    pub(crate) fn at(&mut self, now: Timestamp) -> Timestamp {
        if self.last_seen - now > CLOCK_SLACK {
            self.at = self.at.shifted(self.last_seen, now);
            self.last_seen = now;
        }
        self.last_seen = self.last_seen.max(now);
        self.at
    }
}

/// Wakes the calling thread, which is parked or sleeps for a moment: for the crates of this project.
pub fn thread_waker() -> Waker {
    Waker::from(Arc::new(ThreadWaker(current_thread())))
}

struct ThreadWaker(Thread);

impl Wake for ThreadWaker {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.unpark();
    }
}
