//! The settings of a concurrency limiter before it is built.

use std::fmt;
use std::time::Duration;

use super::gate::Gate;
use super::permit_source::PermitSettings;
use super::stats::ConcurrencyCounters;
use super::{ConcurrencyLimiter, PermitObserver};
use crate::clock::{ClockChoice, DefaultClock, WithClock};
use crate::wait_queue::waiter_count::WaiterCount;

/// Builds a [`ConcurrencyLimiter`]; made by [`ConcurrencyLimiter::builder`].
///
/// ```
/// use std::time::Duration;
/// use tollgate::ConcurrencyLimiter;
///
/// // A bulkhead: ten concurrent calls, twenty more may wait, none of them for longer than 100 ms.
/// let bulkhead = ConcurrencyLimiter::builder(10)
///     .max_waiters(20)
///     .timeout(Duration::from_millis(100))
///     .build();
/// assert!(bulkhead.acquire().wait_blocking().is_ok());
/// ```
pub type Builder<C = DefaultClock> = WithClock<Settings, C>;

/// The settings of a concurrency limiter, except its clock.
pub struct Settings {
    limit: u32,
    max_waiters: usize,
    timeout: Option<Duration>,
    observer: Option<Box<dyn PermitObserver>>,
}

impl Builder {
    pub(super) fn new(limit: u32) -> Self {
        Self::from_settings(Settings {
            limit,
            max_waiters: WaiterCount::DEFAULT_MAX,
            timeout: None,
            observer: None,
        })
    }
}

impl<C> Builder<C> {
    /// The most waiters; one more gets [`QueueFull`](super::PermitDenied::QueueFull). The default is
    /// 65,536.
    pub fn max_waiters(mut self, most: usize) -> Self {
        self.settings.max_waiters = most;
        self
    }

    /// Removes the bound on waiters. Only for callers that are bounded elsewhere.
    pub fn unbounded_waiters(self) -> Self {
        self.max_waiters(usize::MAX)
    }

    /// The timeout of calls that set none. Without it, such calls wait without a bound; with it, a call
    /// that needs no bound sets `timeout(Duration::MAX)`.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.settings.timeout = Some(timeout);
        self
    }

    /// Notifies this observer of every permit that ends.
    pub fn observer(mut self, observer: impl PermitObserver + 'static) -> Self {
        self.settings.observer = Some(Box::new(observer));
        self
    }
}

impl<C: ClockChoice> Builder<C> {
    /// Builds it on the chosen clock, or on the default one.
    pub fn build(self) -> ConcurrencyLimiter<C::Clock> {
        let context = PermitSettings {
            counters: ConcurrencyCounters::new(),
            observer: self.settings.observer,
            max_waiters: self.settings.max_waiters,
            timeout: self.settings.timeout,
            total_waiters: None,
            clock: self.clock.into_clock(),
        };
        let gate = Gate::new(self.settings.limit);
        ConcurrencyLimiter {
            gate,
            settings: context,
        }
    }
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings")
            .field("limit", &self.limit)
            .field("max_waiters", &self.max_waiters)
            .field("timeout", &self.timeout)
            .finish_non_exhaustive()
    }
}
