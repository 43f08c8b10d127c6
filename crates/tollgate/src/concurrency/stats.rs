//! What a concurrency limit has counted since it was made.

use super::Ending;
use crate::stripes::Counters;

/// What happened at a limit since it was made. The numbers are read one after another, so under
/// traffic they may be a few calls apart.
///
/// ```
/// use tollgate::ConcurrencyLimiter;
///
/// let limiter = ConcurrencyLimiter::new(1);
/// let permit = limiter.try_acquire()?;
/// assert!(limiter.try_acquire().is_err());
/// permit.success();
/// let stats = limiter.stats();
/// assert_eq!((stats.acquired, stats.refused, stats.succeeded), (1, 1, 1));
/// # Ok::<(), tollgate::concurrency::NoPermit>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Permits given.
    pub acquired: u64,
    /// Requests refused, waits that timed out among them.
    pub refused: u64,
    /// Waits that were given up by dropping their future.
    pub abandoned: u64,
    /// Permits that ended as a success.
    pub succeeded: u64,
    /// Permits that ended as a sign of overload.
    pub dropped: u64,
    /// Permits that ended saying nothing, those among them that were just dropped.
    pub ignored: u64,
    /// Permits that were given back as if never given.
    pub cancelled: u64,
}

/// What is counted.
#[derive(Clone, Copy, Debug)]
pub(super) enum Count {
    Acquired,
    Refused,
    Abandoned,
    Succeeded,
    Dropped,
    Ignored,
    Cancelled,
}

/// A count of each.
#[derive(Debug)]
pub(crate) struct ConcurrencyCounters(Counters<7>);

impl ConcurrencyCounters {
    pub(super) fn new() -> Self {
        Self(Counters::new())
    }

    #[inline]
    pub(super) fn count(&self, count: Count) {
        self.0.add(count as usize);
    }

    pub(super) fn stats(&self) -> Stats {
        let sum = |count: Count| self.0.sum(count as usize);
        Stats {
            acquired: sum(Count::Acquired),
            refused: sum(Count::Refused),
            abandoned: sum(Count::Abandoned),
            succeeded: sum(Count::Succeeded),
            dropped: sum(Count::Dropped),
            ignored: sum(Count::Ignored),
            cancelled: sum(Count::Cancelled),
        }
    }
}

impl From<Ending> for Count {
    fn from(ending: Ending) -> Self {
        match ending {
            Ending::Success => Self::Succeeded,
            Ending::Dropped => Self::Dropped,
            Ending::Ignored => Self::Ignored,
        }
    }
}
