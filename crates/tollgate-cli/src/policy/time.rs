//! Parses and formats durations and dates.

use std::str::FromStr;
use std::time::Duration;

use jiff::civil::DateTime;
use jiff::fmt::friendly::{Designator, FractionalUnit, Spacing, SpanPrinter};
use jiff::tz::TimeZone;
use jiff::{Span, SpanRelativeTo};
use jiff::{Timestamp as Instant, Zoned};
use tollgate::Timestamp;

/// Parses a duration such as `300ms`, `2.5s`, `1h30m` or `30d`.
pub(crate) fn parse_duration(text: &str) -> Result<Duration, String> {
    let span: Option<Span> = text.parse().ok();
    let length = span.and_then(|span| {
        let days = SpanRelativeTo::days_are_24_hours();
        Duration::try_from(span.to_duration(days).ok()?).ok()
    });
    // The parser also accepts ISO 8601 and signs, which on a command line are more likely mistakes.
    let is_plain = text.starts_with(|first: char| first.is_ascii_digit());
    length.filter(|_| is_plain).ok_or_else(|| {
        format!("{text:?} is no length of time; write it as 10ms, 2.5s, 1h30m or 7d")
    })
}

/// A duration in fitting units: `100ms`, `1.5s`, `1h30m`, `7d`. Digits too small to matter are rounded up: parts of a
/// second to milliseconds, and of a millisecond to microseconds.
pub(crate) fn format_duration(length: Duration) -> String {
    const DAY: u64 = 86_400;
    let (step, unit) = match length {
        long if long >= Duration::from_secs(1) => (1_000_000, FractionalUnit::Second),
        short if short >= Duration::from_millis(1) => (1_000, FractionalUnit::Millisecond),
        _ => (1, FractionalUnit::Microsecond),
    };
    let nanos = length.subsec_nanos().next_multiple_of(step);
    let mut seconds = length.as_secs();
    let mut nanos = i64::from(nanos);
    if nanos == 1_000_000_000 {
        (seconds, nanos) = (seconds.saturating_add(1), 0);
    }
    let small = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
    let span = Span::new()
        .try_days(small(seconds / DAY))
        .and_then(|span| span.try_hours(small(seconds % DAY / 3_600)))
        .and_then(|span| span.try_minutes(small(seconds % 3_600 / 60)))
        .and_then(|span| span.try_seconds(small(seconds % 60)))
        .and_then(|span| span.try_nanoseconds(nanos));
    let Ok(span) = span else {
        // The duration exceeds the calendar's range.
        return format!("{seconds}s");
    };
    let printer = SpanPrinter::new()
        .designator(Designator::Compact)
        .spacing(Spacing::None)
        .fractional(Some(unit));
    match length {
        Duration::ZERO => "0s".to_owned(),
        short if short < Duration::from_micros(1) => format!("{nanos}ns"),
        _ => printer.span_to_string(&span).replace('µ', "u"),
    }
}

/// An instant, as `2026-03-01T12:00:00Z`, with another offset or `[Europe/Zurich]`, or a date alone in UTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Moment(Instant);

impl Moment {
    /// The instant of a wall-clock timestamp.
    pub(crate) fn of(at: Timestamp) -> Self {
        let nanos = i128::from(at.as_nanos());
        Self(Instant::from_nanosecond(nanos).unwrap_or(Instant::MAX))
    }

    pub(crate) fn timestamp(self) -> Timestamp {
        Timestamp::from_nanos(u64::try_from(self.0.as_nanosecond()).unwrap_or(0))
    }
}

impl std::fmt::Display for Moment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for Moment {
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
    fn lengths_are_read_as_they_are_shown() {
        for (nanos, expected) in [
            (0, "0s"),
            (5, "5ns"),
            (250_000, "250us"),
            (1_000_000, "1ms"),
            (100_000_000, "100ms"),
            (1_500_000_000, "1.5s"),
            (55_000_000_000, "55s"),
            (60_000_000_000, "1m"),
            (90_500_000_000, "1m30.5s"),
            (5_400_000_000_000, "1h30m"),
            (86_400_000_000_000, "1d"),
            (90_061_001_000_000, "1d1h1m1.001s"),
            (30 * 86_400_000_000_000, "30d"),
        ] {
            let length = Duration::from_nanos(nanos);
            assert_eq!(format_duration(length), expected);
            assert_eq!(parse_duration(expected), Ok(length));
        }
    }

    #[test]
    fn what_nobody_waits_for_is_rounded_up() {
        for (nanos, expected) in [
            (2_779_999_985, "2.78s"),
            (999_999_999, "1s"),
            (1_000_400, "1.001ms"),
            (1_999_999_999, "2s"),
        ] {
            assert_eq!(format_duration(Duration::from_nanos(nanos)), expected);
        }
        assert_eq!(format_duration(Duration::MAX), "18446744073709551615s");
    }

    #[test]
    fn what_is_no_length_is_told() {
        for text in ["", "5", "s", "-1s", "P1D", "1mo", "5s burst 3", "5x"] {
            let error =
                format!("{text:?} is no length of time; write it as 10ms, 2.5s, 1h30m or 7d");
            assert_eq!(parse_duration(text), Err(error));
        }
    }

    #[test]
    fn dates_are_read_with_or_without_a_zone() {
        for (text, expected) in [
            ("2026-03-01T12:00:00Z", "2026-03-01T12:00:00Z"),
            ("2026-03-01T12:00:00.5+01:00", "2026-03-01T11:00:00.5Z"),
            ("2026-07-01T12:00[Europe/Zurich]", "2026-07-01T10:00:00Z"),
            ("2026-03-01", "2026-03-01T00:00:00Z"),
            ("2026-03-01T07:30", "2026-03-01T07:30:00Z"),
        ] {
            let date: Moment = text.parse().unwrap();
            assert_eq!(date.to_string(), expected);
            assert_eq!(Moment::of(date.timestamp()), date);
        }
        assert!("1969-12-31".parse::<Moment>().is_err());
        let error = "soon".parse::<Moment>().unwrap_err();
        assert!(
            error.starts_with("\"soon\" is no date; write it as "),
            "{error}"
        );
    }
}
