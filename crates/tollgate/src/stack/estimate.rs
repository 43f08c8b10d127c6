//! Costs that are estimates, while a request runs: how they end, in their time or later.

use std::time::Duration;

use super::held_permits::HeldResource;
use crate::concurrency::PermitOutcome;

/// How an estimate ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EstimateOutcome {
    /// The request cost so much.
    Spent(u64),
    /// It cost what was estimated.
    Charged,
    /// It ended, and nobody said what it cost.
    NotReported,
    /// It never ran.
    Cancelled,
}

/// Whether it was said in time what a request cost.
///
/// ```
/// use tollgate::stack::SettlementTiming;
///
/// // Of several estimates, one that is late decides.
/// assert_eq!(SettlementTiming::InTime.max(SettlementTiming::Late), SettlementTiming::Late);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SettlementTiming {
    /// The rest of the estimate came back, or what was underestimated is owed.
    InTime,
    /// The time was over: what the request cost beyond what was still charged is charged, and nothing came back.
    Late,
}

impl SettlementTiming {
    pub(super) fn of(is_late: bool) -> Self {
        if is_late { Self::Late } else { Self::InTime }
    }
}

/// Which estimates [end](super::HeldPermits::expire).
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
    /// Those whose time is over.
    Due,
    /// All.
    All,
}

/// An estimate that is held elsewhere for a time: see [`HeldPermits::hold_estimate`](super::HeldPermits::hold_estimate).
///
/// ```
/// use std::sync::Arc;
/// use std::sync::atomic::{AtomicU64, Ordering};
/// use std::time::Duration;
/// use tollgate::stack::{ExpireScope, HeldPermits, EstimateOutcome, SettlementTiming, HeldEstimate};
///
/// /// One that has no end, and whose book takes what was spent.
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
    /// The request ended so, in its time or later. Called once.
    fn settle(&mut self, settled: EstimateOutcome) -> SettlementTiming;

    /// How long its time still is; none if it is over, and was [ended](Self::expire).
    fn time_left(&self) -> Option<Duration>;

    /// Ends it as one that nobody settles. It may be settled later.
    fn expire(&mut self, which: ExpireScope);

    /// Its time begins anew, if it isn't over.
    fn renew(&mut self);
}

/// A timed estimate until it is settled.
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
