//! Why no permit was granted, and how full a limit is. A denial is a value, not a fault of the limiter.

use std::fmt;

/// How full a concurrency limit is, at one moment.
///
/// ```
/// use tollgate::ConcurrencyLimiter;
///
/// let limiter = ConcurrencyLimiter::new(50);
/// let permit = limiter.try_acquire_n(20)?;
/// let look = limiter.peek();
/// assert_eq!((look.limit, look.in_use, look.available()), (50, 20, 30));
/// # drop(permit);
/// # Ok::<(), tollgate::concurrency::PermitDenied>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Occupancy {
    /// The most permits that may be in use.
    pub limit: u32,
    /// The permits in use. May be above a limit that was lowered, until enough were released.
    pub in_use: u32,
    /// The number of waiters in the queue.
    pub waiting: usize,
}

impl Occupancy {
    /// The permits that a new request could acquire now: none while others wait, because they came
    /// first.
    pub const fn available(&self) -> u32 {
        if self.waiting > 0 {
            return 0;
        }
        self.limit.saturating_sub(self.in_use)
    }

    /// Whether a new request of this weight would acquire its permit immediately.
    pub const fn fits(&self, weight: u32) -> bool {
        self.waiting == 0
            && match self.in_use.checked_add(weight) {
                Some(sum) => sum <= self.limit,
                None => false,
            }
    }
}

/// No permit was granted, and nothing was acquired.
///
/// It isn't the [`RateDenied`](crate::RateDenied) of a rate, and has no `retry_after`, because time
/// alone frees no permits.
///
/// ```
/// use tollgate::{ConcurrencyLimiter, concurrency::PermitDenied};
///
/// let limiter = ConcurrencyLimiter::new(1);
/// let permit = limiter.try_acquire()?;
/// let denied = limiter.try_acquire().unwrap_err();
/// assert!(matches!(denied, PermitDenied::Full(_)));
/// assert_eq!(denied.to_string(), "concurrency limit: 1 of 1 in use, 0 waiting");
/// # drop(permit);
/// # Ok::<(), PermitDenied>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PermitDenied {
    /// There is no room now, or others wait already.
    Full(Occupancy),
    /// The weight is above the limit, so waiting would be pointless.
    ExceedsLimit(Occupancy),
    /// The permit wasn't granted by the deadline, or the deadline had passed already.
    DeadlineExceeded(Occupancy),
    /// The queue is full.
    QueueFull(Occupancy),
    /// The key is new and the table is full: as many keys as its capacity have permits in use. Under
    /// [`WhenFull::SharedBucket`](crate::WhenFull::SharedBucket) the permits that such keys share are
    /// used up, too, and a wait for one has timed out.
    TooManyKeys(Occupancy),
}

impl PermitDenied {
    /// How full the limit was.
    pub const fn occupancy(&self) -> &Occupancy {
        match self {
            Self::Full(occupancy)
            | Self::ExceedsLimit(occupancy)
            | Self::DeadlineExceeded(occupancy)
            | Self::QueueFull(occupancy)
            | Self::TooManyKeys(occupancy) => occupancy,
        }
    }
}

impl fmt::Display for Occupancy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} of {} in use, {} waiting",
            self.in_use, self.limit, self.waiting
        )
    }
}

impl fmt::Display for PermitDenied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("concurrency limit: ")?;
        match self {
            Self::Full(occupancy) => write!(f, "{occupancy}"),
            Self::ExceedsLimit(occupancy) => write!(
                f,
                "the weight is above the limit of {}, so it never passes",
                occupancy.limit
            ),
            Self::DeadlineExceeded(occupancy) => {
                write!(f, "no permit by the deadline; {occupancy}")
            }
            Self::QueueFull(occupancy) => {
                write!(f, "too many are waiting already; {occupancy}")
            }
            Self::TooManyKeys(_) => {
                f.write_str("too many keys are in flight already; retry when one has ended")
            }
        }
    }
}

impl std::error::Error for PermitDenied {}
