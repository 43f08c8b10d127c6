//! What can be chosen about a concurrency limiter before it is built.

use std::fmt;
use std::time::Duration;

use super::gate::Gate;
use super::stats::Tally;
use super::{ConcurrencyLimiter, PermitObserver};
use crate::acquire::Waiting;
use crate::clock::{Clock, Monotonic};
use crate::limiter::DefaultClock;

/// Builds a [`ConcurrencyLimiter`]; made by [`ConcurrencyLimiter::builder`].
///
/// ```
/// use std::time::Duration;
/// use tollgate::ConcurrencyLimiter;
///
/// // A bulkhead: ten calls at once, twenty more may wait, none of them for longer than 100 ms.
/// let bulkhead = ConcurrencyLimiter::builder(10)
///     .max_waiters(20)
///     .timeout(Duration::from_millis(100))
///     .build();
/// assert!(bulkhead.acquire().wait_blocking().is_ok());
/// ```
#[must_use = "a builder does nothing until it is built"]
pub struct Builder<C = DefaultClock> {
    limit: u32,
    max_waiters: usize,
    timeout: Option<Duration>,
    observer: Option<Box<dyn PermitObserver>>,
    clock: C,
}

impl Builder {
    pub(super) fn new(limit: u32) -> Self {
        Self {
            limit,
            max_waiters: Waiting::DEFAULT_MAX,
            timeout: None,
            observer: None,
            clock: DefaultClock::new(),
        }
    }

    /// Builds it on the default clock.
    pub fn build(self) -> ConcurrencyLimiter {
        self.clock(Monotonic::new()).build()
    }
}

impl<C> Builder<C> {
    /// How many may wait at once; one more gets
    /// [`QueueFull`](super::NoPermit::QueueFull). The default is 65,536.
    pub fn max_waiters(mut self, most: usize) -> Self {
        self.max_waiters = most;
        self
    }

    /// Lets any number wait. Only for callers that are bounded elsewhere.
    pub fn unbounded_waiters(self) -> Self {
        self.max_waiters(usize::MAX)
    }

    /// How long a wait may take if the call doesn't say: without end, unless this is given. A call
    /// that wants no end then says `timeout(Duration::MAX)`.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Tells this observer of every permit that ends.
    pub fn observer(mut self, observer: impl PermitObserver + 'static) -> Self {
        self.observer = Some(Box::new(observer));
        self
    }

    /// Reads this clock instead of the default one.
    pub fn clock<D: Clock>(self, clock: D) -> Builder<D> {
        Builder {
            limit: self.limit,
            max_waiters: self.max_waiters,
            timeout: self.timeout,
            observer: self.observer,
            clock,
        }
    }
}

impl<C: Clock> Builder<C> {
    /// Builds it on the clock that was given.
    pub fn build(self) -> ConcurrencyLimiter<C> {
        ConcurrencyLimiter {
            gate: Gate::new(self.limit),
            tally: Tally::new(),
            observer: self.observer,
            max_waiters: self.max_waiters,
            timeout: self.timeout,
            clock: self.clock,
        }
    }
}

impl<C> fmt::Debug for Builder<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder")
            .field("limit", &self.limit)
            .field("max_waiters", &self.max_waiters)
            .field("timeout", &self.timeout)
            .finish_non_exhaustive()
    }
}
