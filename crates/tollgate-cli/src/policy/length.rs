//! Lengths of time as people read them.

use std::time::Duration;

/// In the units that suit it, whole: `100ms`, `1.5s`, `1h30m`, `7d`.
pub(super) fn readable(length: Duration) -> String {
    const UNITS: [(u64, &str); 3] = [(86_400, "d"), (3_600, "h"), (60, "m")];
    let mut text = String::new();
    let mut seconds = length.as_secs();
    for (unit, name) in UNITS {
        if seconds >= unit {
            text.push_str(&format!("{}{name}", seconds / unit));
            seconds %= unit;
        }
    }
    let rest = Duration::new(seconds, length.subsec_nanos());
    match rest {
        Duration::ZERO if text.is_empty() => "0s".to_owned(),
        Duration::ZERO => text,
        _ => format!("{text}{rest:?}").replace('µ', "u"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_are_shown_as_such_and_days_too() {
        for (millis, expected) in [
            (0, "0s"),
            (1, "1ms"),
            (100, "100ms"),
            (1_500, "1.5s"),
            (55_000, "55s"),
            (60_000, "1m"),
            (90_500, "1m30.5s"),
            (5_400_000, "1h30m"),
            (86_400_000, "1d"),
            (90_061_001, "1d1h1m1.001s"),
        ] {
            assert_eq!(readable(Duration::from_millis(millis)), expected);
        }
        assert_eq!(readable(Duration::from_micros(250)), "250us");
    }
}
