//! How long a wait may take, and how a thread that waits is woken.

use std::sync::Arc;
use std::task::{Wake, Waker};
use std::time::Duration;

use tollgate_core::Timestamp;

use crate::sync::{Thread, current_thread};

/// How long a wait may take.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Patience {
    /// The caller hasn't said.
    Unsaid,
    Timeout(Duration),
    Deadline(Timestamp),
}

impl Patience {
    /// Until when it lasts, if that was said.
    pub(crate) fn deadline(self, now: Timestamp) -> Option<Timestamp> {
        match self {
            Self::Unsaid => None,
            Self::Timeout(timeout) => Some(now + timeout),
            Self::Deadline(deadline) => Some(deadline),
        }
    }
}

/// Wakes the calling thread, which parks or naps.
pub(crate) fn waker_of_this_thread() -> Waker {
    Waker::from(Arc::new(Unpark(current_thread())))
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.unpark();
    }
}
