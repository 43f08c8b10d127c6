//! Waiting for one's turn at a pacer.

use std::fmt;
use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use pin_project_lite::pin_project;
use tollgate::wait::Acquiring;
use tollgate::{Clock, Limiter, Timestamp};

use super::{PaceRefused, Patience, Shared, deadline};

/// A request to wait for its turn: await it, or call [`wait_blocking`](Self::wait_blocking). The result is how long it
/// took.
///
/// It takes its place when the wait begins. Dropping the future frees the place.
#[must_use = "nothing is waited for until this is awaited, or `wait_blocking` is called"]
pub struct Pace<C: Clock> {
    shared: Arc<Shared<C>>,
    deadline: Option<Timestamp>,
}

impl<C: Clock> Pace<C> {
    pub(super) const fn new(shared: Arc<Shared<C>>) -> Self {
        Self {
            shared,
            deadline: None,
        }
    }

    /// Fails at once if its turn would come after this time on the pacer's clock.
    pub const fn deadline(mut self, deadline: Timestamp) -> Self {
        self.deadline = Some(deadline);
        self
    }

    /// Fails at once if its turn would take longer than this to come.
    pub fn timeout(self, timeout: Duration) -> Self {
        let deadline = self.shared.clock.now() + timeout;
        self.deadline(deadline)
    }

    /// Blocks the thread until its turn has come; returns how long that took.
    ///
    /// # Errors
    /// [`PaceRefused`] at once, if the queue is full or its turn would come too late.
    pub fn wait_blocking(self) -> Result<Duration, PaceRefused> {
        let (until, patience) = self.until();
        let acquire = self
            .shared
            .limiter
            .acquire_n(self.shared.cost)
            .deadline(until);
        let waited = acquire.wait_blocking();
        waited.map_err(|refused| self.shared.refused(&refused, patience))
    }

    fn until(&self) -> (Timestamp, Patience) {
        let now = self.shared.clock.now();
        deadline(now, self.shared.most, self.deadline)
    }
}

impl<C: Clock> IntoFuture for Pace<C> {
    type Output = Result<Duration, PaceRefused>;
    type IntoFuture = Pacing<C>;

    fn into_future(self) -> Pacing<C> {
        Pacing {
            start: Some(self.deadline),
            patience: Patience::Queue,
            shared: self.shared,
            turn: None,
        }
    }
}

pin_project! {
    /// The future that [`Pace`] turns into. Dropping it frees the place in the queue.
    #[must_use = "futures do nothing unless awaited"]
    pub struct Pacing<C: Clock> {
        // The caller's deadline, until the wait has begun.
        start: Option<Option<Timestamp>>,
        patience: Patience,
        shared: Arc<Shared<C>>,
        #[pin]
        turn: Option<Acquiring<Arc<Limiter<C>>>>,
    }
}

impl<C: Clock> Future for Pacing<C> {
    type Output = Result<Duration, PaceRefused>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        if let Some(own) = this.start.take() {
            let (until, patience) = deadline(this.shared.clock.now(), this.shared.most, own);
            *this.patience = patience;
            let limiter = &this.shared.limiter;
            let acquire = limiter.acquire_owned_n(this.shared.cost).deadline(until);
            this.turn.set(Some(acquire.into_future()));
        }
        let Some(turn) = this.turn.as_pin_mut() else {
            panic!("`Pacing` was polled after it had ended");
        };
        let (shared, patience) = (this.shared, *this.patience);
        turn.poll(context)
            .map_err(|refused| shared.refused(&refused, patience))
    }
}

impl<C: Clock> fmt::Debug for Pace<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pace")
            .field("deadline", &self.deadline)
            .finish_non_exhaustive()
    }
}

impl<C: Clock> fmt::Debug for Pacing<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pacing").finish_non_exhaustive()
    }
}
