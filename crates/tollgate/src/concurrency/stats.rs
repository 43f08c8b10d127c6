//! The counters of a concurrency limit.

use super::PermitOutcome;
use crate::striped_counters::Counters;

/// The counters of a limit since it was built. The numbers are read one after another, so under traffic
/// they may be a few calls apart.
///
/// ```
/// use tollgate::ConcurrencyLimiter;
///
/// let limiter = ConcurrencyLimiter::new(1);
/// let permit = limiter.try_acquire()?;
/// assert!(limiter.try_acquire().is_err());
/// permit.success();
/// let stats = limiter.stats();
/// assert_eq!((stats.acquired, stats.denied, stats.succeeded), (1, 1, 1));
/// # Ok::<(), tollgate::concurrency::PermitDenied>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Permits granted.
    pub acquired: u64,
    /// Requests denied, including waits that timed out.
    pub denied: u64,
    /// Waits that ended because their future was dropped.
    pub abandoned: u64,
    /// Permits that ended as a success.
    pub succeeded: u64,
    /// Permits that ended as a sign of overload.
    pub dropped: u64,
    /// Permits that ended without information about capacity, including those that were just dropped.
    pub ignored: u64,
    /// Permits that were cancelled, as if never granted.
    pub cancelled: u64,
}

/// Each counter.
#[derive(Clone, Copy, Debug)]
pub(super) enum Counter {
    Acquired,
    Denied,
    Abandoned,
    Succeeded,
    Dropped,
    Ignored,
    Cancelled,
}

/// One value per counter.
#[derive(Debug)]
pub(crate) struct ConcurrencyCounters(Counters<7>);

impl ConcurrencyCounters {
    pub(super) fn new() -> Self {
        Self(Counters::new())
    }

    #[inline]
    pub(super) fn increment(&self, count: Counter) {
        self.0.add(count as usize);
    }

    pub(super) fn stats(&self) -> Stats {
        let sum = |count: Counter| self.0.sum(count as usize);
        Stats {
            acquired: sum(Counter::Acquired),
            denied: sum(Counter::Denied),
            abandoned: sum(Counter::Abandoned),
            succeeded: sum(Counter::Succeeded),
            dropped: sum(Counter::Dropped),
            ignored: sum(Counter::Ignored),
            cancelled: sum(Counter::Cancelled),
        }
    }
}

impl From<PermitOutcome> for Counter {
    fn from(ending: PermitOutcome) -> Self {
        match ending {
            PermitOutcome::Success => Self::Succeeded,
            PermitOutcome::Dropped => Self::Dropped,
            PermitOutcome::Ignored => Self::Ignored,
        }
    }
}
