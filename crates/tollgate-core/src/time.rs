//! A point in time as whole nanoseconds since an origin that the caller chose.
//! The arithmetic never reads a clock: each function takes `now` as an argument.

use core::fmt;
use core::ops::{Add, AddAssign, Sub};
use core::time::Duration;

/// Nanoseconds since an origin: a clock's anchor, the start of a simulation, the Unix epoch.
///
/// Arithmetic saturates at both ends, so a hostile or faulty time can't panic or wrap around: an earlier time minus a
/// later one is zero.
///
/// ```
/// use core::time::Duration;
/// use tollgate_core::Timestamp;
///
/// let start = Timestamp::from_millis(10);
/// let end = start + Duration::from_millis(5);
/// assert_eq!(end - start, Duration::from_millis(5));
/// assert_eq!(start - end, Duration::ZERO);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(u64);

impl Timestamp {
    /// The origin itself.
    pub const ZERO: Self = Self(0);
    /// The last representable time, 584 years after the origin.
    pub const MAX: Self = Self(u64::MAX);

    /// The time this many nanoseconds after the origin.
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// The time this many microseconds after the origin, saturating.
    pub const fn from_micros(micros: u64) -> Self {
        Self(micros.saturating_mul(1_000))
    }

    /// The time this many milliseconds after the origin, saturating.
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis.saturating_mul(1_000_000))
    }

    /// The time this many seconds after the origin, saturating.
    pub const fn from_secs(secs: u64) -> Self {
        Self(secs.saturating_mul(1_000_000_000))
    }

    /// Whole nanoseconds since the origin.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Seconds since the origin, for display.
    #[expect(clippy::cast_precision_loss, reason = "only for people to read")]
    pub fn as_secs_f64(self) -> f64 {
        self.0 as f64 / 1e9
    }

    /// Nanoseconds from `earlier` to this time; zero when `earlier` is later.
    pub const fn nanos_since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }

    /// This time on a clock that shows `to` when this one shows `from`, saturating.
    ///
    /// ```
    /// use tollgate_core::Timestamp;
    ///
    /// let (at, from) = (Timestamp::from_secs(7), Timestamp::from_secs(5));
    /// assert_eq!(at.shifted(from, Timestamp::from_secs(100)), Timestamp::from_secs(102));
    /// assert_eq!(Timestamp::from_secs(2).shifted(from, Timestamp::ZERO), Timestamp::ZERO);
    /// ```
    #[must_use]
    pub const fn shifted(self, from: Self, to: Self) -> Self {
        let later = to.0.saturating_add(self.nanos_since(from));
        Self(later.saturating_sub(from.nanos_since(self)))
    }

    /// This time plus whole nanoseconds, saturating.
    #[must_use]
    pub const fn plus_nanos(self, nanos: u64) -> Self {
        Self(self.0.saturating_add(nanos))
    }
}

/// A duration as whole nanoseconds, saturating at 584 years.
pub(crate) fn duration_nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

impl Add<Duration> for Timestamp {
    type Output = Self;

    fn add(self, duration: Duration) -> Self {
        self.plus_nanos(duration_nanos(duration))
    }
}

impl AddAssign<Duration> for Timestamp {
    fn add_assign(&mut self, duration: Duration) {
        *self = *self + duration;
    }
}

impl Sub for Timestamp {
    type Output = Duration;

    fn sub(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.nanos_since(earlier))
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}.{:09}s",
            self.0 / 1_000_000_000,
            self.0 % 1_000_000_000
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn arithmetic_saturates_at_both_ends() {
        assert_eq!(Timestamp::ZERO - Timestamp::MAX, Duration::ZERO);
        assert_eq!(Timestamp::MAX + Duration::MAX, Timestamp::MAX);
        assert_eq!(Timestamp::from_secs(u64::MAX), Timestamp::MAX);
    }

    #[test]
    fn display_shows_seconds_with_nanoseconds() {
        assert_eq!(
            Timestamp::from_nanos(1_000_000_001).to_string(),
            "1.000000001s"
        );
    }
}
