//! Numbers as Redis reads and prints them.

/// Doubles are printed without an exponent below this.
const EXPONENT_FROM: f64 = 1e17;

/// A whole number, in the only form that Redis accepts.
pub(super) fn integer(text: &[u8]) -> Option<i64> {
    let text = str::from_utf8(text).ok()?;
    let number: i64 = text.parse().ok()?;
    (number.to_string() == text).then_some(number)
}

/// A score: any number but NaN and out-of-range ones. There is one zero.
pub(super) fn score(text: &[u8]) -> Option<f64> {
    let number = double(text)?;
    let is_meant = number.is_finite() || text.iter().any(|byte| byte.eq_ignore_ascii_case(&b'n'));
    is_meant.then_some(number + 0.0)
}

/// A bound of scores, and whether it is exclusive. Without digits it is 0.
pub(super) fn bound(text: &[u8]) -> Option<(f64, bool)> {
    let inner = text.strip_prefix(b"(");
    let digits = inner.unwrap_or(text);
    let number = if digits.is_empty() {
        0.0
    } else {
        double(digits)?
    };
    Some((number, inner.is_some()))
}

fn double(text: &[u8]) -> Option<f64> {
    let number: f64 = str::from_utf8(text).ok()?.parse().ok()?;
    (!number.is_nan()).then_some(number)
}

/// A double as `%.17g` prints it.
pub(super) fn print(number: f64) -> String {
    if number == 0.0 && number.is_sign_negative() {
        return "-0".to_owned();
    }
    if number.fract() == 0.0 && number.abs() < EXPONENT_FROM {
        return truncated(number).to_string();
    }
    if !number.is_finite() {
        return match (number.is_nan(), number.is_sign_negative()) {
            (true, true) => "-nan",
            (true, false) => "nan",
            (false, true) => "-inf",
            (false, false) => "inf",
        }
        .to_owned();
    }
    // Seventeen digits identify the nearest double; trailing zeros are left out.
    let text = format!("{number:.16e}");
    let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..17).contains(&exponent) {
        let places = usize::try_from(16 - exponent).unwrap_or(0);
        let text = format!("{number:.places$}");
        return text.trim_end_matches('0').trim_end_matches('.').to_owned();
    }
    let digits = digits.trim_end_matches('0').trim_end_matches('.');
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{digits}e{sign}{:02}", exponent.unsigned_abs())
}

/// The whole part. NaN and numbers beyond 64 bits become the smallest number, as in C on the machines that
/// Redis runs on.
#[expect(
    clippy::cast_possible_truncation,
    reason = "what is beyond is looked at"
)]
pub(super) fn truncated(number: f64) -> i64 {
    const INTEGER_LIMIT: f64 = 9_223_372_036_854_775_808.0;
    if (-INTEGER_LIMIT..INTEGER_LIMIT).contains(&number) {
        number as i64
    } else {
        i64::MIN
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doubles_are_printed_as_c_prints_them() {
        for (number, text) in [
            (0.0, "0"),
            (-0.0, "-0"),
            (1_700_000_000_000_000.0, "1700000000000000"),
            (-3.0, "-3"),
            (99_999_999_999_999_984.0, "99999999999999984"),
            (1e17, "1e+17"),
            (1.5e300, "1.5000000000000001e+300"),
            (0.1, "0.10000000000000001"),
            (0.5, "0.5"),
            (1234.25, "1234.25"),
            (1e-4, "0.0001"),
            (1e-5, "1.0000000000000001e-05"),
            (f64::INFINITY, "inf"),
            (f64::NEG_INFINITY, "-inf"),
        ] {
            assert_eq!(print(number), text);
        }
    }

    #[test]
    fn whole_numbers_are_written_one_way() {
        assert_eq!(integer(b"-7"), Some(-7));
        assert_eq!(integer(b"9223372036854775807"), Some(i64::MAX));
        for text in ["", "+7", "07", "7 ", "7.0", "9223372036854775808"] {
            assert_eq!(integer(text.as_bytes()), None, "{text:?}");
        }
    }
}
