//! Formats text for a terminal: times, aligned columns, wrapped lines.

pub(super) const SECOND: u128 = 1_000_000_000;
pub(super) const MINUTE: u128 = 60 * SECOND;
pub(super) const HOUR: u128 = 60 * MINUTE;
pub(super) const DAY: u128 = 24 * HOUR;

/// A duration in a fitting unit, to three decimals: `10ms`, `2.5s`, `0.95s`.
pub(super) fn format_nanos(nanos: u128) -> String {
    // Hours and days only where they are exact: "4000s" is clearer than "1.111h".
    let exact = |length: u128| nanos >= length && (nanos * 1_000).is_multiple_of(length);
    let (unit, length) = match nanos {
        0 => ("s", SECOND),
        1..1_000 => ("ns", 1),
        1_000..1_000_000 => ("us", 1_000),
        // From 0.9 s on, values near a second are shown in seconds.
        1_000_000..900_000_000 => ("ms", 1_000_000),
        _ if exact(DAY) => ("d", DAY),
        _ if exact(HOUR) => ("h", HOUR),
        _ => ("s", SECOND),
    };
    let thousandths = nanos * 1_000 / length;
    let decimals = format!("{:03}", thousandths % 1_000);
    format_decimal(thousandths / 1_000, &decimals) + unit
}

/// A number with its decimals, without trailing zeros.
pub(super) fn format_decimal(whole: u128, decimals: &str) -> String {
    let number = format!("{whole}.{decimals}");
    number
        .trim_end_matches('0')
        .trim_end_matches('.')
        .to_owned()
}

/// A time for a column of times: seconds to the millisecond, `0.995s`, unless it is far from a second.
pub(super) fn format_seconds(seconds: f64) -> String {
    match seconds {
        0.0 | 0.001..7_200.0 => format!("{seconds:.3}s"),
        0.0..0.001 => format!("{:.3}us", seconds * 1e6),
        7_200.0..172_800.0 => format!("{:.2}h", seconds / 3_600.0),
        _ => format!("{:.2}d", seconds / 86_400.0),
    }
}

/// A label and a text, wrapped at spaces to `width`, with the text's lines aligned behind the label.
pub(super) fn format_hanging(label: &str, indent: usize, text: &str, width: usize) -> String {
    let mut lines = String::new();
    let mut words = text.split(' ').peekable();
    let mut line = format!("{label:<indent$}");
    while let Some(word) = words.next() {
        line.push_str(word);
        let letters = line.chars().count();
        match words.peek() {
            Some(next) if letters + 1 + next.chars().count() <= width => line.push(' '),
            _ => {
                lines = lines + line.trim_end() + "\n";
                line = " ".repeat(indent);
            }
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_take_the_unit_that_suits_them() {
        for (nanos, expected) in [
            (0, "0s"),
            (7, "7ns"),
            (500_000, "500us"),
            (8_333_333, "8.333ms"),
            (10_000_000, "10ms"),
            (950_000_000, "0.95s"),
            (2_500_000_000, "2.5s"),
            (60_000_000_000, "60s"),
            (HOUR * 3 / 2, "1.5h"),
            (4_000 * SECOND, "4000s"),
            (7 * DAY, "7d"),
        ] {
            assert_eq!(format_nanos(nanos), expected);
        }
        for (micros, expected) in [
            (0, "0.000s"),
            (99, "99.000us"),
            (995_000, "0.995s"),
            (4_991_666, "4.992s"),
            (90_000_000_000, "25.00h"),
            (259_200_000_000, "3.00d"),
        ] {
            let time = std::time::Duration::from_micros(micros);
            assert_eq!(format_seconds(time.as_secs_f64()), expected);
        }
    }

    #[test]
    fn long_text_hangs_behind_its_label() {
        assert_eq!(
            format_hanging("to:", 5, "one two three four", 14),
            "to:  one two\n     three\n     four\n"
        );
        assert_eq!(format_hanging("to:", 5, "", 14), "to:\n");
    }
}
