//! The kinds of limits, and what headers show about them.

use std::time::Duration;

use tollgate::quota::Quota;
use tollgate::{Algorithm, Rate};

use crate::policy::{Adaptive, FailureModes, OnStoreFailure};

/// The kind of a limit, and its size.
///
/// ```
/// use tollgate::quota::Quota;
/// use tollgate::{Algorithm, Rate};
/// use tollgate_engine::backend::LimitKind;
///
/// let kinds = [
///     LimitKind::Rate { rate: Rate::per_second(5), algorithm: Algorithm::Gcra },
///     LimitKind::Quota(Quota::per_day(9)),
///     LimitKind::Concurrency(8),
/// ];
/// assert_eq!(kinds.map(|kind| kind.to_string()), ["5/s", "9/day", "8 concurrent"]);
/// ```
#[derive(Clone, Debug, PartialEq, derive_more::Display)]
#[non_exhaustive]
pub enum LimitKind {
    /// A count per period.
    #[display("{rate}")]
    Rate {
        /// The rate.
        rate: Rate,
        /// The algorithm that counts it.
        algorithm: Algorithm,
    },
    /// A total over a long period.
    #[display("{_0}")]
    Quota(Quota),
    /// A count of requests in flight.
    #[display("{_0} concurrent")]
    Concurrency(u32),
    /// A concurrency limit that an algorithm sets. The [engine](crate::Engine) counts it itself, and queries no
    /// backend for it.
    #[display("{_0}")]
    Adaptive(Adaptive),
}

impl LimitKind {
    /// How many requests the limit allows in its [window](Self::window), or in flight (at most, if it adapts). `None`
    /// if it limits nothing.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollgate::quota::Quota;
    /// use tollgate_engine::backend::LimitKind;
    ///
    /// let day = LimitKind::Quota(Quota::rolling(500, Duration::from_secs(86_400))?);
    /// assert_eq!((day.quota(), day.window()), (Some(500), Some(Duration::from_secs(86_400))));
    /// let slots = LimitKind::Concurrency(8);
    /// assert_eq!((slots.quota(), slots.window()), (Some(8), None));
    /// # Ok::<(), tollgate::quota::QuotaError>(())
    /// ```
    pub fn quota(&self) -> Option<u64> {
        match self {
            Self::Rate { rate, .. } => (!rate.is_unlimited()).then(|| rate.count()),
            Self::Quota(quota) => (!quota.is_unlimited()).then(|| quota.count()),
            Self::Concurrency(slots) => Some(u64::from(*slots)),
            Self::Adaptive(own) => Some(u64::from(own.max)),
        }
    }

    /// The window of its [quota](Self::quota). `None` if it has none, or if it is a calendar's day or month, since
    /// these vary in length.
    pub fn window(&self) -> Option<Duration> {
        match self {
            Self::Rate { rate, .. } => rate.period(),
            Self::Quota(quota) => quota.rolling_period(),
            Self::Concurrency(_) | Self::Adaptive(_) => None,
        }
    }
}

impl LimitKind {
    /// What a limit of this kind does while the store is unavailable.
    pub(crate) const fn failure_in(&self, modes: &FailureModes) -> OnStoreFailure {
        match self {
            Self::Rate { .. } => modes.rate,
            Self::Quota(_) => modes.quota,
            Self::Concurrency(_) | Self::Adaptive(_) => modes.concurrency,
        }
    }
}
