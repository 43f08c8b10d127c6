//! Waiting until no action runs any more.

use std::fmt;
use std::task::{Poll, Waker};
use std::time::Duration;
#[cfg(not(any(loom, shuttle)))]
use std::{future::poll_fn, pin::pin, sync::Arc};

#[cfg(not(any(loom, shuttle)))]
use tollgate::clock::sleep_until;
use tollgate::{Clock, Timestamp};

use super::{Inside, Store, Work};
use crate::sync::waker_of_this_thread;

/// The deadline passed while an action ran. It goes on, but no other one starts.
///
/// ```
/// use std::time::Duration;
/// use tollgate_shape::StillRunning;
///
/// let error = StillRunning { waited: Duration::from_secs(5) };
/// assert_eq!(
///     error.to_string(),
///     "an action still runs after 5s: it goes on, and no other one starts"
/// );
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StillRunning {
    /// How long it was waited for.
    pub waited: Duration,
}

impl fmt::Display for StillRunning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let waited = self.waited;
        write!(
            f,
            "an action still runs after {waited:?}: it goes on, and no other one starts"
        )
    }
}

impl std::error::Error for StillRunning {}

impl<S: Store, C: Clock> Work<S, C> {
    /// Whether it was stopped and no action runs but those that this thread is inside of. If not, the waker is
    /// called when that is so.
    fn drained(&self, waker: &Waker) -> Poll<()> {
        let mut state = self.lock();
        if state.action.is_none() && state.running <= Inside::depth(self.id()) {
            return Poll::Ready(());
        }
        if !state.draining.iter().any(|known| known.will_wake(waker)) {
            state.draining.push(waker.clone());
        }
        Poll::Pending
    }

    /// Blocks the thread until no action runs, or for so long.
    pub(crate) fn drain_blocking(&self, most: Duration) -> Result<(), StillRunning> {
        let deadline = self.clock.now() + most;
        let waker = waker_of_this_thread();
        loop {
            if self.drained(&waker).is_ready() {
                return Ok(());
            }
            if self.clock.now() >= deadline && deadline != Timestamp::MAX {
                return Err(StillRunning { waited: most });
            }
            self.clock.nap_until(deadline);
        }
    }
}

#[cfg(not(any(loom, shuttle)))]
impl<S: Store, C: Clock + Clone> Work<S, C> {
    /// Waits until no action runs, or for so long from now on.
    pub(crate) fn drain(
        self: Arc<Self>,
        most: Duration,
    ) -> impl Future<Output = Result<(), StillRunning>> + Send {
        let clock = self.clock.clone();
        let deadline = clock.now() + most;
        async move {
            let mut sleep = pin!(sleep_until(clock, deadline));
            let drained = poll_fn(|context| {
                if self.drained(context.waker()).is_ready() {
                    return Poll::Ready(Ok(()));
                }
                let is_late = sleep.as_mut().poll(context);
                is_late.map(|()| Err(StillRunning { waited: most }))
            });
            drained.await
        }
    }
}
