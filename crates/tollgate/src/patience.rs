//! How long a wait may take, and how a thread that waits is woken.

use std::sync::Arc;
use std::task::{Wake, Waker};
use std::time::Duration;

use tollgate_core::Timestamp;

use crate::clock_steps::CLOCK_SLACK;
use crate::sync::{Thread, current_thread};

/// How many may wait on one limiter, unless said otherwise.
pub(crate) const DEFAULT_MAX_WAITERS: usize = 65_536;

/// How long a wait may take.
#[derive(Clone, Copy, Debug)]
pub(crate) enum WaitLimit {
    /// The caller hasn't said.
    Default,
    Timeout(Duration),
    Deadline(Timestamp),
}

impl WaitLimit {
    /// Until when it lasts, if that was said.
    pub(crate) fn deadline(self, now: Timestamp) -> Option<Timestamp> {
        match self {
            Self::Default => None,
            Self::Timeout(timeout) => Some(now + timeout),
            Self::Deadline(deadline) => Some(deadline),
        }
    }
}

/// Until when a waiter waits, by a clock that may be set back meanwhile.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClockAwareDeadline {
    at: Timestamp,
    last_seen: Timestamp,
}

impl ClockAwareDeadline {
    pub(crate) const fn new(at: Timestamp, now: Timestamp) -> Self {
        Self { at, last_seen: now }
    }

    /// The deadline, now that the clock shows this. It moves with a clock that was set back.
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
