//! Waiting until no action runs any more.

use std::fmt;
use std::task::{Poll, Waker};
use std::time::Duration;

use tollgate::{Clock, Timestamp};

use super::{Store, Work, inside};
use crate::sync::waker_of_this_thread;

#[cfg(not(any(loom, shuttle)))]
pub(crate) use future::Draining;

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
        if state.action.is_none() && state.running <= inside::depth(self.id()) {
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
mod future {
    use std::fmt;
    use std::future::Future;
    use std::pin::Pin;
    use std::sync::Arc;
    use std::task::{Context, Poll};
    use std::time::Duration;

    use pin_project_lite::pin_project;
    use tollgate::Clock;
    use tollgate::clock::{Sleep, sleep_until};

    use super::{StillRunning, Store, Work};

    pin_project! {
        /// Waits until no action runs any more; the future of `stop_and_wait`.
        #[must_use = "futures do nothing unless awaited"]
        pub(crate) struct Draining<S: Store, C: Clock> {
            work: Arc<Work<S, C>>,
            most: Duration,
            #[pin]
            sleep: Sleep<C>,
        }
    }

    impl<S: Store, C: Clock + Clone> Draining<S, C> {
        pub(crate) fn new(work: Arc<Work<S, C>>, most: Duration) -> Self {
            let clock = work.clock().clone();
            let deadline = clock.now() + most;
            Self {
                work,
                most,
                sleep: sleep_until(clock, deadline),
            }
        }
    }

    impl<S: Store, C: Clock> Future for Draining<S, C> {
        type Output = Result<(), StillRunning>;

        fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
            let this = self.project();
            if this.work.drained(context.waker()).is_ready() {
                return Poll::Ready(Ok(()));
            }
            let waited = *this.most;
            this.sleep
                .poll(context)
                .map(|()| Err(StillRunning { waited }))
        }
    }

    impl<S: Store, C: Clock> fmt::Debug for Draining<S, C> {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.debug_struct("Draining").finish_non_exhaustive()
        }
    }
}
