//! The observer of permits that end, from which an adaptive limit learns.

use std::sync::Arc;
use std::time::Duration;

use tollgate_core::Timestamp;

/// How the work under a permit ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
// A whole word, as all fields of a permit are; `permit.rs` says why.
#[repr(u64)]
pub enum PermitOutcome {
    /// The work was done; its latency shows the load of the server that did it.
    Success,
    /// The work timed out or was rejected for overload: the server has too much to do.
    Dropped,
    /// The outcome has no information about capacity, such as an invalid request or a cache hit.
    Ignored,
}

/// A permit at its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CompletedCall {
    /// The outcome.
    pub ending: PermitOutcome,
    /// The weight of the permit.
    pub weight: u32,
    /// The permits in use when it started, including this one.
    pub in_flight: u32,
    /// The limit when it ended.
    pub limit: u32,
    /// When it started on the limiter's clock: when the permit was granted, not when the wait began.
    pub started: Timestamp,
    /// How long the permit was held.
    pub latency: Duration,
}

/// Is notified of every permit that ends, and may return another limit.
///
/// The thread that ends the permit calls it, after the permit was released, and without holding a lock.
/// Without an observer, a limiter reads no clock to grant or end a permit.
///
/// ```
/// use tollgate::{ConcurrencyLimiter, concurrency::{CompletedCall, PermitOutcome, PermitObserver}};
///
/// /// Halves the limit on each sign of overload.
/// struct Halve;
///
/// impl PermitObserver for Halve {
///     fn on_completed(&self, ended: &CompletedCall) -> Option<u32> {
///         (ended.ending == PermitOutcome::Dropped).then(|| (ended.limit / 2).max(1))
///     }
/// }
///
/// let limiter = ConcurrencyLimiter::builder(100).observer(Halve).build();
/// limiter.try_acquire()?.success();
/// assert_eq!(limiter.peek().limit, 100);
/// limiter.try_acquire()?.dropped();
/// assert_eq!(limiter.peek().limit, 50);
/// # Ok::<(), tollgate::concurrency::PermitDenied>(())
/// ```
pub trait PermitObserver: Send + Sync {
    /// A permit ended. Returns the new limit, or `None` to keep the current one.
    fn on_completed(&self, ended: &CompletedCall) -> Option<u32>;

    /// The limit that should be in force now; `None`, the default, if it is known only when a permit
    /// ends.
    ///
    /// After a change, the limiter reads this until it matches the limit in force. Otherwise, of two
    /// concurrent changes, the earlier limit could be applied last.
    fn limit(&self) -> Option<u32> {
        None
    }
}

impl<T: PermitObserver + ?Sized> PermitObserver for Arc<T> {
    fn on_completed(&self, ended: &CompletedCall) -> Option<u32> {
        (**self).on_completed(ended)
    }

    fn limit(&self) -> Option<u32> {
        (**self).limit()
    }
}
