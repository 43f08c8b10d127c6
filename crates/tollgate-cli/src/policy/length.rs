//! Lengths of time, as people write and read them.

use std::time::Duration;

use jiff::fmt::friendly::{Designator, FractionalUnit, Spacing, SpanPrinter};
use jiff::{Span, SpanRelativeTo};

/// Reads a length of time such as `300ms`, `2.5s`, `1h30m` or `30d`.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let span: Option<Span> = text.parse().ok();
    let length = span.and_then(|span| {
        let days = SpanRelativeTo::days_are_24_hours();
        Duration::try_from(span.to_duration(days).ok()?).ok()
    });
    // ISO's form is nobody's on a command line, and a sign is a slip.
    let is_plain = text.starts_with(|first: char| first.is_ascii_digit());
    length.filter(|_| is_plain).ok_or_else(|| {
        format!("{text:?} is no length of time; write it as 10ms, 2.5s, 1h30m or 7d")
    })
}

/// In the units that suit it: `100ms`, `1.5s`, `1h30m`, `7d`. What nobody waits for is rounded up: parts of a second to
/// milliseconds, and of a millisecond to microseconds.
pub(crate) fn readable(length: Duration) -> String {
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
        // Beyond all that a calendar has.
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
            assert_eq!(readable(length), expected);
            assert_eq!(duration(expected), Ok(length));
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
            assert_eq!(readable(Duration::from_nanos(nanos)), expected);
        }
        assert_eq!(readable(Duration::MAX), "18446744073709551615s");
    }

    #[test]
    fn what_is_no_length_is_told() {
        for text in ["", "5", "s", "-1s", "P1D", "1mo", "5s burst 3", "5x"] {
            let error =
                format!("{text:?} is no length of time; write it as 10ms, 2.5s, 1h30m or 7d");
            assert_eq!(duration(text), Err(error));
        }
    }
}
