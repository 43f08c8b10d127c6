//! `Redis` as a backend of the engine: each question goes to the store, or to the one of a test.

use std::convert::Infallible;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use futures_util::future::Either;
use tollgate::clock::{Manual, Wakeup};
use tollgate::{Clock, Decision, Timestamp};
use tollgate_engine::backend::{Answer, AskingOrFallback, Backend, Check, Gift, Limit};

use super::{Home, Redis};
use crate::direct::Direct;
use crate::host::{HostClock, HostWall};
use crate::noted::Noted;
use crate::rehearsal::Rehearsal;

impl Backend for Redis {
    type Error = Infallible;
    type Asking<'a> = Deciding<'a>;

    fn check<'a>(&'a self, checks: &'a [Check<'a>]) -> Self::Asking<'a> {
        match &self.home {
            Home::Store(fallback) => Deciding(Either::Left(fallback.check(checks))),
            Home::Memory(fallback) => Deciding(Either::Right(fallback.check(checks))),
        }
    }

    async fn check_each<'a>(
        &'a self,
        checks: &'a [Check<'a>],
    ) -> Result<(Answer, Vec<Decision>), Infallible> {
        match &self.home {
            Home::Store(fallback) => fallback.check_each(checks).await,
            Home::Memory(fallback) => fallback.check_each(checks).await,
        }
    }

    async fn peek<'a>(&'a self, checks: &'a [Check<'a>]) -> Result<Vec<Decision>, Infallible> {
        match &self.home {
            Home::Store(fallback) => fallback.peek(checks).await,
            Home::Memory(fallback) => fallback.peek(checks).await,
        }
    }

    async fn forget<'a>(&'a self, checks: &'a [Check<'a>]) -> Result<Gift, Infallible> {
        match &self.home {
            Home::Store(fallback) => fallback.forget(checks).await,
            Home::Memory(fallback) => fallback.forget(checks).await,
        }
    }

    async fn give_back<'a>(&'a self, checks: &'a [Check<'a>]) -> Result<Gift, Infallible> {
        match &self.home {
            Home::Store(fallback) => Backend::give_back(&**fallback, checks).await,
            Home::Memory(fallback) => Backend::give_back(&**fallback, checks).await,
        }
    }

    fn now(&self) -> Timestamp {
        match &self.home {
            Home::Store(fallback) => Backend::now(&**fallback),
            Home::Memory(fallback) => Backend::now(&**fallback),
        }
    }

    fn timer(&self) -> Arc<dyn Clock> {
        match &self.home {
            Home::Store(fallback) => Backend::timer(&**fallback),
            Home::Memory(fallback) => Backend::timer(&**fallback),
        }
    }

    fn wall(&self) -> Timestamp {
        match &self.home {
            Home::Store(fallback) => Backend::wall(&**fallback),
            Home::Memory(fallback) => Backend::wall(&**fallback),
        }
    }

    fn wake_at(&self, at: Timestamp, waker: &Waker) -> Option<Wakeup> {
        match &self.home {
            Home::Store(fallback) => fallback.wake_at(at, waker),
            Home::Memory(fallback) => fallback.wake_at(at, waker),
        }
    }

    fn supports(&self, limit: &Limit) -> Result<(), String> {
        match &self.home {
            Home::Store(fallback) => fallback.supports(limit),
            Home::Memory(fallback) => fallback.supports(limit),
        }
    }

    fn epoch(&self) -> u64 {
        match &self.home {
            Home::Store(fallback) => fallback.epoch(),
            Home::Memory(fallback) => fallback.epoch(),
        }
    }

    fn repeats_refusals(&self) -> bool {
        match &self.home {
            Home::Store(fallback) => fallback.repeats_refusals(),
            Home::Memory(fallback) => fallback.repeats_refusals(),
        }
    }
}

/// An answer on its way: from the store, or the one without it.
///
/// ```
/// use tollgate::clock::Manual;
/// use tollgate_engine::backend::Backend;
/// use tollgate_redis::{Deciding, Redis};
///
/// let redis = Redis::in_memory(Manual::new());
/// let deciding: Deciding<'_> = redis.check(&[]);
/// # drop(deciding);
/// ```
#[must_use = "a question that isn't awaited isn't asked"]
pub struct Deciding<'a>(Either<FromStore<'a>, FromMemory<'a>>);

type FromStore<'a> = AskingOrFallback<'a, Noted<Direct>, HostClock, HostWall>;
type FromMemory<'a> = AskingOrFallback<'a, Noted<Rehearsal>, Manual, Manual>;

impl Future for Deciding<'_> {
    type Output = Result<Answer, Infallible>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(context)
    }
}

impl fmt::Debug for Deciding<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Deciding").finish_non_exhaustive()
    }
}
