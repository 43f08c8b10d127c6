//! `ConcurrencyLimiter`: a bound on requests in flight, by permits that are released.

use std::fmt;
use std::sync::Arc;

use crate::clock::{Clock, Monotonic};

mod acquire;
mod builder;
mod gate;
mod keyed;
mod observer;
mod permit;
mod permit_denied;
mod permit_source;
mod stats;

pub use acquire::Acquire;
#[cfg(not(any(loom, shuttle)))]
pub use acquire::PermitFuture;
pub use builder::{Builder, Settings};
pub use keyed::{
    Key, KeyedBuilder, KeyedConcurrencyLimiter, KeyedPermit, KeyedPermitSource, KeyedSettings,
    OwnedKeyedPermit,
};
pub use observer::{CompletedCall, PermitObserver, PermitOutcome};
pub use permit::Permit;
pub use permit_denied::{Occupancy, PermitDenied};
use permit_source::PermitSettings;
pub(crate) use permit_source::SharedSource;
pub use permit_source::{PermitSource, PermitSourceWith};
pub use stats::Stats;

pub(crate) use gate::Gate;
use gate::MAX_LIMIT;
#[doc(hidden)]
pub use gate::percent_of_limit;

/// A permit that shares its limiter instead of borrowing it, so that it can move into a task.
///
/// ```
/// use std::sync::Arc;
/// use tollgate::{ConcurrencyLimiter, concurrency::OwnedPermit};
///
/// let limiter = Arc::new(ConcurrencyLimiter::new(2));
/// let permit: OwnedPermit = limiter.try_acquire_owned()?;
/// std::thread::spawn(move || permit.success()).join().unwrap();
/// assert_eq!(limiter.peek().in_use, 0);
/// # Ok::<(), tollgate::concurrency::PermitDenied>(())
/// ```
pub type OwnedPermit<C = Monotonic> = Permit<Arc<ConcurrencyLimiter<C>>>;

/// A concurrency limit: hands out permits up to a limit; dropping a permit releases it.
///
/// A rate bounds how often requests pass, a concurrency limit how many run at the same time. 50 permits
/// allow 50,000 calls a second that take 1 ms each, and 50 a second when they take 1 s. That protects a
/// slow backend, where a rate limit doesn't notice that calls pile up.
///
/// * A permit has a weight, 1 by default ([`try_acquire_n`](Self::try_acquire_n)). A weight of 0 takes
///   nothing, and passes if the limit isn't exceeded and nobody waits.
/// * The queue is first in, first out, whatever the weight, and nobody overtakes it: while it isn't
///   empty, [`try_acquire`](Self::try_acquire) is denied.
/// * The queue is bounded, and so is the wait, if a timeout is set. With both this is a **bulkhead**:
///   `builder(10).max_waiters(20).timeout(d)`.
/// * The limit may change at any time ([`set_limit`](Self::set_limit)).
///
/// To acquire or release a permit is one atomic operation, without a lock while nobody waits.
///
/// ```
/// use tollgate::ConcurrencyLimiter;
///
/// let limiter = ConcurrencyLimiter::new(2);
/// let first = limiter.try_acquire()?;
/// let second = limiter.try_acquire()?;
/// assert_eq!(
///     limiter.try_acquire().unwrap_err().to_string(),
///     "concurrency limit: 2 of 2 in use, 0 waiting"
/// );
/// first.success(); // or just dropped
/// assert!(limiter.try_acquire().is_ok());
/// # drop(second);
/// # Ok::<(), tollgate::concurrency::PermitDenied>(())
/// ```
pub struct ConcurrencyLimiter<C: Clock = Monotonic> {
    pub(crate) gate: Gate,
    settings: PermitSettings<C>,
}

impl ConcurrencyLimiter {
    /// The highest limit: 2³¹ − 1. A higher value is capped to it.
    pub const MAX_LIMIT: u32 = MAX_LIMIT;

    /// A limit on concurrent requests, on the default clock. A limit of 0 denies everything.
    pub fn new(limit: u32) -> Self {
        Self::builder(limit).build()
    }

    /// A builder for the bound on waiters, the default timeout, an observer and the clock.
    pub fn builder(limit: u32) -> Builder {
        Builder::new(limit)
    }
}

impl<C: Clock> ConcurrencyLimiter<C> {
    /// Acquires a permit without waiting.
    ///
    /// # Errors
    /// [`PermitDenied`]: nothing was acquired.
    #[inline]
    pub fn try_acquire(&self) -> Result<Permit<&Self>, PermitDenied> {
        Permit::try_new(self, 1)
    }

    /// Acquires a permit of this weight without waiting.
    ///
    /// # Errors
    /// [`PermitDenied`]: nothing was acquired.
    #[inline]
    pub fn try_acquire_n(&self, weight: u32) -> Result<Permit<&Self>, PermitDenied> {
        Permit::try_new(self, weight)
    }

    /// Waits for a permit in the queue. Await it, or call [`wait_blocking`](Acquire::wait_blocking).
    pub fn acquire(&self) -> Acquire<&Self> {
        self.acquire_n(1)
    }

    /// Waits for a permit of this weight in the queue.
    pub fn acquire_n(&self, weight: u32) -> Acquire<&Self> {
        Acquire::new(Ok(self), weight)
    }

    /// As [`try_acquire`](Self::try_acquire), with a permit that shares the limiter.
    ///
    /// # Errors
    /// [`PermitDenied`]: nothing was acquired.
    pub fn try_acquire_owned(self: &Arc<Self>) -> Result<OwnedPermit<C>, PermitDenied> {
        self.try_acquire_owned_n(1)
    }

    /// As [`try_acquire_n`](Self::try_acquire_n), with a permit that shares the limiter.
    ///
    /// # Errors
    /// [`PermitDenied`]: nothing was acquired.
    pub fn try_acquire_owned_n(
        self: &Arc<Self>,
        weight: u32,
    ) -> Result<OwnedPermit<C>, PermitDenied> {
        Permit::try_new(Arc::clone(self), weight)
    }

    /// As [`acquire`](Self::acquire), with a permit that shares the limiter.
    pub fn acquire_owned(self: &Arc<Self>) -> Acquire<Arc<Self>> {
        self.acquire_owned_n(1)
    }

    /// As [`acquire_n`](Self::acquire_n), with a permit that shares the limiter.
    pub fn acquire_owned_n(self: &Arc<Self>, weight: u32) -> Acquire<Arc<Self>> {
        Acquire::new(Ok(Arc::clone(self)), weight)
    }

    /// The permits in use and the waiters, without acquiring any.
    pub fn peek(&self) -> Occupancy {
        self.gate.occupancy()
    }

    /// The number of permits that a new request could acquire now.
    pub fn available(&self) -> u32 {
        self.peek().available()
    }

    /// Changes the limit. Permits in flight stay valid.
    ///
    /// A higher limit admits waiters in order. If more permits are in use than a lower limit has, none
    /// is handed out until enough were released. Waiters whose weight is above the new limit are
    /// denied: nobody knows when it will rise again, and they would block the queue.
    ///
    /// ```
    /// use tollgate::ConcurrencyLimiter;
    ///
    /// let limiter = ConcurrencyLimiter::new(2);
    /// let (first, second) = (limiter.try_acquire()?, limiter.try_acquire()?);
    /// limiter.set_limit(1);
    /// drop(first);
    /// assert!(limiter.try_acquire().is_err(), "one is still out");
    /// drop(second);
    /// assert!(limiter.try_acquire().is_ok());
    /// # Ok::<(), tollgate::concurrency::PermitDenied>(())
    /// ```
    pub fn set_limit(&self, limit: u32) {
        self.gate.set_limit(limit);
    }

    /// The counters since it was built.
    pub fn stats(&self) -> Stats {
        self.settings.counters.stats()
    }

    /// The limiter's clock.
    pub fn clock(&self) -> &C {
        &self.settings.clock
    }
}

impl<C: Clock> fmt::Debug for ConcurrencyLimiter<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConcurrencyLimiter")
            .field("occupancy", &self.peek())
            .field("max_waiters", &self.settings.max_waiters)
            .field("timeout", &self.settings.timeout)
            .finish_non_exhaustive()
    }
}
