//! What is told of each permit that ends: what an adaptive limit learns from.

use std::sync::Arc;
use std::time::Duration;

use tollgate_core::Timestamp;

/// How the work under a permit ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
// A whole word, as all fields of a permit are.
#[repr(u64)]
pub enum PermitOutcome {
    /// It was done; its latency tells how loaded the server that did it is.
    Success,
    /// It timed out or was rejected for overload: the server has too much to do.
    Dropped,
    /// It says nothing about capacity, as an invalid request or a cache hit.
    Ignored,
}

/// What is known of a permit when it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CompletedCall {
    /// How it ended.
    pub ending: PermitOutcome,
    /// How much of the limit it held.
    pub weight: u32,
    /// How much was in flight when it started, itself included.
    pub in_flight: u32,
    /// The limit in force when it ended.
    pub limit: u32,
    /// When it started, on the limiter's clock: when the permit was given, not when it was asked for.
    pub started: Timestamp,
    /// How long it was held.
    pub latency: Duration,
}

/// Is told of every permit that ends, and may answer with another limit.
///
/// It is called by whoever ends the permit, after what it held was given back, under no lock.
/// Without an observer a limiter reads no clock to give or end a permit.
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
    /// A permit ended. The answer is the limit to go on with, or `None` to keep it.
    fn on_completed(&self, ended: &CompletedCall) -> Option<u32>;

    /// The limit as it is to be now; `None`, as without this method, if it is known only when a permit ends.
    ///
    /// It is asked once a limit has changed, until that is the answer: of two permits that end at once, or one that ends while
    /// somebody sets the limit, the earlier answer may be put in force last.
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
