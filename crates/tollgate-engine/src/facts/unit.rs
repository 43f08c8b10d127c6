//! The units of Envoy's limits, as its files name and count them.

use std::time::Duration;

/// The units of Envoy's limits.
///
/// ```
/// use tollgate_engine::facts::Unit;
///
/// assert_eq!(Unit::Day.seconds(), 86_400);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Unit {
    /// A second.
    Second,
    /// A minute.
    Minute,
    /// An hour.
    Hour,
    /// 24 hours.
    Day,
    /// Seven days.
    Week,
    /// 30 days.
    Month,
    /// 365 days.
    Year,
}

impl Unit {
    /// All units, from short to long.
    pub const ALL: [Self; 7] = [
        Self::Second,
        Self::Minute,
        Self::Hour,
        Self::Day,
        Self::Week,
        Self::Month,
        Self::Year,
    ];

    /// The unit of this length.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollgate_engine::facts::Unit;
    ///
    /// assert_eq!(Unit::of(Duration::from_secs(60)), Some(Unit::Minute));
    /// assert_eq!(Unit::of(Duration::from_secs(61)), None);
    /// ```
    pub fn of(length: Duration) -> Option<Self> {
        let is_as_long = |unit: &Self| Duration::from_secs(unit.seconds()) == length;
        Self::ALL.into_iter().find(is_as_long)
    }

    /// As envoyproxy/ratelimit's files say it.
    ///
    /// ```
    /// use tollgate_engine::facts::Unit;
    ///
    /// assert_eq!(Unit::Hour.name(), "hour");
    /// ```
    pub const fn name(self) -> &'static str {
        match self {
            Self::Second => "second",
            Self::Minute => "minute",
            Self::Hour => "hour",
            Self::Day => "day",
            Self::Week => "week",
            Self::Month => "month",
            Self::Year => "year",
        }
    }

    /// Its length in seconds, as envoyproxy/ratelimit counts.
    pub const fn seconds(self) -> u64 {
        match self {
            Self::Second => 1,
            Self::Minute => 60,
            Self::Hour => 3_600,
            Self::Day => 86_400,
            Self::Week => 7 * 86_400,
            Self::Month => 30 * 86_400,
            Self::Year => 365 * 86_400,
        }
    }
}
