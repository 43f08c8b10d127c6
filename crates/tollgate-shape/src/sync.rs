//! The locks that model checking replaces, and how a thread that waits is woken.

use std::sync::Arc;
use std::task::{Wake, Waker};

#[cfg(loom)]
pub(crate) use loom::sync::{Mutex, MutexGuard};
#[cfg(shuttle)]
pub(crate) use shuttle::sync::{Mutex, MutexGuard};
#[cfg(not(any(loom, shuttle)))]
pub(crate) use std::sync::{Mutex, MutexGuard};

#[cfg(loom)]
use loom::thread::{Thread, current};
#[cfg(shuttle)]
use shuttle::thread::{Thread, current};
#[cfg(not(any(loom, shuttle)))]
use std::thread::{Thread, current};

#[cfg(loom)]
pub(crate) use loom::thread_local;
#[cfg(shuttle)]
pub(crate) use shuttle::thread_local;

/// Wakes the calling thread, which is parked or sleeps for a moment.
pub(crate) fn waker_of_this_thread() -> Waker {
    Waker::from(Arc::new(Unpark(current())))
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
