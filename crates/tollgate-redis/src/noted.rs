//! A store whose failures are counted by their kind, whichever call met them.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, Waker, ready};

use pin_project_lite::pin_project;
use tollgate::clock::Wakeup;
use tollgate::{Decision, Timestamp};
use tollgate_engine::backend::{Answer, Backend, Check, Gift, Limit, Source};

use crate::error::StoreError;
use crate::failure::Failures;

/// A backend, and what failed there.
#[derive(Debug)]
pub(crate) struct Noted<B> {
    pub(crate) inner: B,
    pub(crate) failures: Failures,
}

impl<B: Backend<Error = StoreError>> Backend for Noted<B> {
    type Error = StoreError;
    type Asking<'a>
        = Noting<'a, B>
    where
        Self: 'a;

    #[inline]
    fn check<'a>(&'a self, checks: &'a [Check<'a>]) -> Noting<'a, B> {
        Noting {
            failures: &self.failures,
            asking: self.inner.check(checks),
        }
    }

    async fn check_each<'a>(
        &'a self,
        checks: &'a [Check<'a>],
    ) -> Result<(Answer, Vec<Decision>), StoreError> {
        let told = self.inner.check_each(checks).await;
        let was_known = told
            .as_ref()
            .map(|(answer, _)| answer.source == Source::Known);
        self.failures.hear(was_known);
        told
    }

    async fn peek<'a>(&'a self, checks: &'a [Check<'a>]) -> Result<Vec<Decision>, StoreError> {
        let told = self.inner.peek(checks).await;
        // Whether all of it was known here isn't told.
        self.failures.hear(told.as_ref().map(|_| true));
        told
    }

    async fn forget<'a>(&'a self, checks: &'a [Check<'a>]) -> Result<Gift, StoreError> {
        let forgotten = self.inner.forget(checks).await;
        // As for what is given back.
        self.failures.hear(forgotten.as_ref().map(|_| true));
        forgotten
    }

    async fn give_back<'a>(&'a self, checks: &'a [Check<'a>]) -> Result<Gift, StoreError> {
        let given = self.inner.give_back(checks).await;
        // If there was nothing to give back, the store wasn't asked.
        self.failures.hear(given.as_ref().map(|_| true));
        given
    }

    fn spent_ahead(&self, check: &Check<'_>) -> u64 {
        self.inner.spent_ahead(check)
    }

    fn now(&self) -> Timestamp {
        self.inner.now()
    }

    fn wake_at(&self, at: Timestamp, waker: &Waker) -> Option<Wakeup> {
        self.inner.wake_at(at, waker)
    }

    #[inline]
    fn prefetch(&self, limit: &Limit, fingerprint: [u64; 2]) {
        self.inner.prefetch(limit, fingerprint);
    }

    fn supports(&self, limit: &Limit) -> Result<(), String> {
        self.inner.supports(limit)
    }

    fn epoch(&self) -> u64 {
        self.inner.epoch()
    }

    fn repeats_refusals(&self) -> bool {
        self.inner.repeats_refusals()
    }

    fn known_denial(&self, checks: &[Check<'_>]) -> Option<(usize, Decision)> {
        self.inner.known_denial(checks)
    }

    fn is_in_part(&self, error: &StoreError) -> bool {
        self.inner.is_in_part(error)
    }

    fn is_of_key(&self, error: &StoreError) -> bool {
        self.inner.is_of_key(error)
    }
}

pin_project! {
    /// An answer on its way, which is noted when it fails.
    pub(crate) struct Noting<'a, B>
    where
        B: Backend,
        B: 'a,
    {
        failures: &'a Failures,
        #[pin]
        asking: B::Asking<'a>,
    }
}

impl<B: Backend<Error = StoreError>> Future for Noting<'_, B> {
    type Output = Result<Answer, StoreError>;

    #[inline]
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let own = self.project();
        let answer = ready!(own.asking.poll(context));
        own.failures
            .hear(answer.as_ref().map(|answer| answer.source == Source::Known));
        Poll::Ready(answer)
    }
}

impl<B: Backend> fmt::Debug for Noting<'_, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Noting").finish_non_exhaustive()
    }
}
