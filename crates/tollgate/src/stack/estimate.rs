//! Estimated costs while a request runs, and how they are settled, in time or late.

use std::time::Duration;

use super::held_permits::HeldResource;
use crate::concurrency::PermitOutcome;

/// How an estimate ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EstimateOutcome {
    /// The request had this actual cost.
    Spent(u64),
    /// The request is charged its estimate.
    Charged,
    /// The request ended without a report of its cost.
    NotReported,
    /// The request never ran.
    Cancelled,
}

/// Whether the actual cost of a request was reported in time.
///
/// ```
/// use tollgate::stack::SettlementTiming;
///
/// // Of several estimates, a late one decides.
/// assert_eq!(SettlementTiming::InTime.max(SettlementTiming::Late), SettlementTiming::Late);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SettlementTiming {
    /// In time: the rest of the estimate was refunded, or the excess over it is owed.
    InTime,
    /// After the estimate expired: only the excess over what is still charged was charged, and nothing
    /// was refunded.
    Late,
}

impl SettlementTiming {
    pub(super) fn of(is_late: bool) -> Self {
        if is_late { Self::Late } else { Self::InTime }
    }
}

/// Which estimates [`HeldPermits::expire`](super::HeldPermits::expire) expires.
///
/// ```
/// use tollgate::stack::{ExpireScope, HeldPermits};
///
/// let mut pass = HeldPermits::default();
/// pass.expire(ExpireScope::Due);
/// assert!(pass.is_empty());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExpireScope {
    /// Those whose deadline has passed.
    Due,
    /// All.
    All,
}

/// A held estimate that lives outside the limiters of this crate: see
/// [`HeldPermits::hold_estimate`](super::HeldPermits::hold_estimate).
///
/// ```
/// use std::sync::Arc;
/// use std::sync::atomic::{AtomicU64, Ordering};
/// use std::time::Duration;
/// use tollgate::stack::{ExpireScope, HeldPermits, EstimateOutcome, SettlementTiming, HeldEstimate};
///
/// /// An estimate without an expiry, which stores the actual cost.
/// struct Endless(Arc<AtomicU64>);
///
/// impl HeldEstimate for Endless {
///     fn settle(&mut self, settled: EstimateOutcome) -> SettlementTiming {
///         match settled {
///             EstimateOutcome::Spent(tokens) => self.0.store(tokens, Ordering::Relaxed),
///             EstimateOutcome::Charged | EstimateOutcome::NotReported | EstimateOutcome::Cancelled => {}
///         }
///         SettlementTiming::InTime
///     }
///     fn time_left(&self) -> Option<Duration> {
///         None
///     }
///     fn expire(&mut self, _: ExpireScope) {}
///     fn renew(&mut self) {}
/// }
///
/// let (book, mut pass) = (Arc::new(AtomicU64::new(0)), HeldPermits::default());
/// pass.hold_estimate(Endless(Arc::clone(&book)));
/// assert_eq!((pass.time_left(), pass.settle(1_500)), (None, SettlementTiming::InTime));
/// assert_eq!(book.load(Ordering::Relaxed), 1_500);
/// ```
pub trait HeldEstimate: Send + Sync {
    /// Settles the estimate by this outcome, in time or late. Called once.
    fn settle(&mut self, settled: EstimateOutcome) -> SettlementTiming;

    /// The time until the estimate expires; none if it [has expired](Self::expire).
    fn time_left(&self) -> Option<Duration>;

    /// Expires the estimate because it wasn't settled. A late settlement may still follow.
    fn expire(&mut self, which: ExpireScope);

    /// Restarts the time of the estimate, unless it has expired.
    fn renew(&mut self);
}

/// A held estimate that settles at most once: explicitly, or when it is dropped.
pub(super) struct HeldEstimateSlot<E: HeldEstimate> {
    estimate: E,
    is_settled: bool,
}

impl<E: HeldEstimate> HeldEstimateSlot<E> {
    pub(super) fn new(estimate: E) -> Self {
        Self {
            estimate,
            is_settled: false,
        }
    }

    fn settle_once(&mut self, settled: EstimateOutcome) -> SettlementTiming {
        if std::mem::replace(&mut self.is_settled, true) {
            return SettlementTiming::InTime;
        }
        self.estimate.settle(settled)
    }
}

impl<E: HeldEstimate> HeldResource for HeldEstimateSlot<E> {
    fn end(mut self: Box<Self>, _: PermitOutcome) {
        self.settle_once(EstimateOutcome::NotReported);
    }

    fn cancel(mut self: Box<Self>) {
        self.settle_once(EstimateOutcome::Cancelled);
    }

    fn settle(&mut self, spent: u64) -> SettlementTiming {
        self.settle_once(EstimateOutcome::Spent(spent))
    }

    fn charge(&mut self) {
        self.settle_once(EstimateOutcome::Charged);
    }

    fn time_left(&self) -> Option<Duration> {
        self.estimate.time_left().filter(|_| !self.is_settled)
    }

    fn expire(&mut self, which: ExpireScope) {
        if !self.is_settled {
            self.estimate.expire(which);
        }
    }

    fn renew(&mut self) {
        if !self.is_settled {
            self.estimate.renew();
        }
    }

    fn may_be_settled(&self) -> bool {
        !self.is_settled
    }
}

impl<E: HeldEstimate> Drop for HeldEstimateSlot<E> {
    fn drop(&mut self) {
        self.settle_once(EstimateOutcome::NotReported);
    }
}
