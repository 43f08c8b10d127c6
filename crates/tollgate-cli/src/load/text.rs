//! Times that are read and numbers that are written.

use std::time::Duration;

use crate::policy::duration;

/// Reads a time that something takes, such as `300ms`, `5s` or `1m`.
pub(super) fn length(text: &str) -> Result<Duration, String> {
    let length = duration(text)?;
    if length.is_zero() {
        return Err("it has to take some time, such as 300ms, 5s or 1m".to_owned());
    }
    Ok(length)
}

/// A number with its thousands apart: `1,234,567`.
pub(super) fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A latency in the unit that suits it, to three digits: `210ns`, `4.35us`, `12.4ms`, `1.02s`.
pub(super) fn short(nanos: u64) -> String {
    let (unit, length) = match nanos {
        0..1_000 => return format!("{nanos}ns"),
        1_000..1_000_000 => ("us", 1e3),
        1_000_000..1_000_000_000 => ("ms", 1e6),
        _ => ("s", 1e9),
    };
    let number = nanos as f64 / length;
    let decimals = match number {
        0.0..10.0 => 2,
        10.0..100.0 => 1,
        _ => 0,
    };
    format!("{number:.decimals$}{unit}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_no_moment() {
        assert_eq!(length("300ms"), Ok(Duration::from_millis(300)));
        assert_eq!(length("1m"), Ok(Duration::from_secs(60)));
        let error = "it has to take some time, such as 300ms, 5s or 1m";
        assert_eq!(length("0s"), Err(error.to_owned()));
        assert!(length("5").is_err());
    }

    #[test]
    fn numbers_are_easy_to_read() {
        for (number, expected) in [
            (0, "0"),
            (999, "999"),
            (1_000, "1,000"),
            (1_234_567, "1,234,567"),
        ] {
            assert_eq!(thousands(number), expected);
        }
        for (nanos, expected) in [
            (210, "210ns"),
            (4_350, "4.35us"),
            (12_400_000, "12.4ms"),
            (999_000, "999us"),
            (1_020_000_000, "1.02s"),
        ] {
            assert_eq!(short(nanos), expected);
        }
    }
}
