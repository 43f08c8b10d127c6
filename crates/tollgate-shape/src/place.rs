//! Where drivers run, and with them actions: as tasks of the tokio runtime that they are built in, on a few threads of
//! this crate elsewhere, and on the thread that moves the time of a clock that is moved by hand.

use std::future::Future;
use std::pin::Pin;
use std::task::Waker;

use tollgate::{Clock, Timestamp};

mod task;
mod threads;

use task::{On, Task};

/// Runs a future to its end.
pub(crate) fn run(clock: &impl Clock, future: impl Future<Output = ()> + Send + 'static) {
    if wakes_by_itself(clock) {
        // A test moves the time, and sees what came of it as soon as `advance` returns.
        return Task::start(Box::pin(future), On::Waker);
    }
    if let Some(future) = in_a_runtime(Box::pin(future)) {
        Task::start(future, On::Threads);
    }
}

/// Whether the clock's time is moved by somebody, who then wakes tasks.
fn wakes_by_itself(clock: &impl Clock) -> bool {
    clock.wake_at(Timestamp::MAX, Waker::noop()).is_some()
}

type Boxed = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Hands the future back if there is no runtime.
#[cfg(feature = "tokio")]
fn in_a_runtime(future: Boxed) -> Option<Boxed> {
    match tokio::runtime::Handle::try_current() {
        Ok(runtime) => {
            runtime.spawn(future);
            None
        }
        Err(_) => Some(future),
    }
}

#[cfg(not(feature = "tokio"))]
fn in_a_runtime(future: Boxed) -> Option<Boxed> {
    Some(future)
}
