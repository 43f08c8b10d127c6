//! Dates as arguments: when something is to happen, by the calendar.

use std::str::FromStr;

use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use jiff::{Timestamp as Instant, Zoned};
use tollgate::Timestamp;

/// A moment, as `2026-03-01T12:00:00Z`, with another offset or `[Europe/Zurich]`, or a date alone in UTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Date(Instant);

impl Date {
    /// The moment that a clock of wall time shows.
    pub(crate) fn of(at: Timestamp) -> Self {
        let nanos = i128::from(at.as_nanos());
        Self(Instant::from_nanosecond(nanos).unwrap_or(Instant::MAX))
    }

    pub(crate) fn timestamp(self) -> Timestamp {
        Timestamp::from_nanos(u64::try_from(self.0.as_nanosecond()).unwrap_or(0))
    }
}

impl std::fmt::Display for Date {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for Date {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let zoned = || text.parse::<Zoned>().map(|zoned| zoned.timestamp());
        let plain = || {
            let date: DateTime = text.parse()?;
            Ok(TimeZone::UTC
                .to_ambiguous_zoned(date)
                .compatible()?
                .timestamp())
        };
        let found = text.parse::<Instant>().or_else(|_| zoned());
        let found = found.or_else(|_| plain());
        match found.map_err(|_: jiff::Error| ()) {
            Ok(at) if at >= Instant::UNIX_EPOCH => Ok(Self(at)),
            Ok(_) => Err("the calendar begins in 1970 here".to_owned()),
            Err(()) => Err(format!(
                "{text:?} is no date; write it as 2026-03-01, 2026-03-01T12:00:00Z or 2026-03-01T12:00+01:00[Europe/Zurich]"
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_read_with_or_without_a_zone() {
        for (text, expected) in [
            ("2026-03-01T12:00:00Z", "2026-03-01T12:00:00Z"),
            ("2026-03-01T12:00:00.5+01:00", "2026-03-01T11:00:00.5Z"),
            ("2026-07-01T12:00[Europe/Zurich]", "2026-07-01T10:00:00Z"),
            ("2026-03-01", "2026-03-01T00:00:00Z"),
            ("2026-03-01T07:30", "2026-03-01T07:30:00Z"),
        ] {
            let date: Date = text.parse().unwrap();
            assert_eq!(date.to_string(), expected);
            assert_eq!(Date::of(date.timestamp()), date);
        }
        assert!("1969-12-31".parse::<Date>().is_err());
        let error = "soon".parse::<Date>().unwrap_err();
        assert!(
            error.starts_with("\"soon\" is no date; write it as "),
            "{error}"
        );
    }
}
