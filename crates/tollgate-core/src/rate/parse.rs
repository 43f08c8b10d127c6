//! Reads "100/s burst 200": a small scanner whose errors quote the text and point at the place.

use alloc::borrow::ToOwned;
use alloc::string::String;
use core::fmt;
use core::ops::Range;
use core::time::Duration;

use super::{Rate, TIME_UNITS};

/// Why a text is not a rate, and at which place.
///
/// ```
/// use tollgate_core::Rate;
///
/// let error = "100/fortnight".parse::<Rate>().unwrap_err();
/// assert_eq!(
///     error.to_string(),
///     "invalid rate \"100/fortnight\": unknown unit \"fortnight\" at column 5; \
///      use ns, us, ms, s, m (minute), h, d or w\n  100/fortnight\n      ^^^^^^^^^"
/// );
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RateParseError {
    text: String,
    place: Range<usize>,
    problem: RateProblem,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RateProblem {
    Empty,
    CountMissing,
    CountTooLarge,
    Fraction,
    /// `1k` or `1e3`.
    Abbreviated,
    PeriodMissing,
    PeriodZero,
    PeriodTooLong,
    UnitMissing,
    UnitUnknown,
    /// A month or a year.
    Calendar,
    BurstMissing,
    Trailing,
}

impl RateParseError {
    /// The byte range of the error in the text; empty at the place of a missing part.
    pub fn span(&self) -> Range<usize> {
        self.place.clone()
    }
}

impl fmt::Display for RateParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bad = &self.text[self.place.clone()];
        let column = self.text[..self.place.start].chars().count() + 1;
        write!(f, "invalid rate {:?}: ", self.text)?;
        self.write_problem(f, bad, column)?;
        self.write_marker(f, column, bad.chars().count().max(1))
    }
}

impl RateParseError {
    /// Writes what is wrong with `bad`, which begins at this column, and a correction.
    fn write_problem(&self, f: &mut fmt::Formatter<'_>, bad: &str, column: usize) -> fmt::Result {
        match self.problem {
            RateProblem::Empty => f.write_str("it is empty; write a rate such as 100/s burst 200"),
            RateProblem::CountMissing => write!(
                f,
                "expected a count at column {column}; write a rate such as 100/s burst 200"
            ),
            RateProblem::CountTooLarge => {
                write!(f, "{bad} at column {column} is above {}", u64::MAX)
            }
            RateProblem::Fraction => write!(
                f,
                "numbers are whole, but column {column} has a fraction; \
                 take another unit or period: 1.5s is 1500ms, 0.5/s is 1 per 2s"
            ),
            RateProblem::Abbreviated => {
                write!(
                    f,
                    "numbers are written in full, but column {column} has {bad}; write "
                )?;
                match expand_abbreviation(bad) {
                    Some(number) => write!(f, "{number}"),
                    None => f.write_str("all of its digits"),
                }
            }
            RateProblem::Calendar => write!(
                f,
                "{bad:?} at column {column} isn't always equally long; use a quota for months and years, as in \
                 quota: 1000/month, or write days: 30d"
            ),
            RateProblem::PeriodMissing => write!(
                f,
                "expected \"/\" or \"per\" and a period at column {column}, as in 100/s or 10 per 250ms"
            ),
            RateProblem::PeriodZero => write!(
                f,
                "the period at column {column} is zero; write unlimited if that is meant"
            ),
            RateProblem::PeriodTooLong => {
                write!(f, "the period at column {column} is above 10^15 s")
            }
            RateProblem::UnitMissing => write!(
                f,
                "expected a unit at column {column}: ns, us, ms, s, m (minute), h, d or w"
            ),
            RateProblem::UnitUnknown => write!(
                f,
                "unknown unit {bad:?} at column {column}; use ns, us, ms, s, m (minute), h, d or w"
            ),
            RateProblem::BurstMissing => write!(
                f,
                "expected a whole number after \"burst\" at column {column}"
            ),
            RateProblem::Trailing => write!(
                f,
                "{bad:?} at column {column} is not understood; only \"burst N\" may follow"
            ),
        }
    }

    /// Writes the text again, with marks below the error.
    fn write_marker(&self, f: &mut fmt::Formatter<'_>, column: usize, width: usize) -> fmt::Result {
        if self.text.chars().any(char::is_control) {
            // A control character would shift the marks, so the text is shown escaped and without marks.
            return write!(f, "\n  {}", self.text.escape_debug());
        }
        // Written one by one: a formatter's own width has 16 bits, and panics beyond.
        write!(f, "\n  {}\n  ", self.text)?;
        (1..column).try_for_each(|_| f.write_str(" "))?;
        (0..width).try_for_each(|_| f.write_str("^"))
    }
}

impl core::error::Error for RateParseError {}

/// The longest period of a written rate: the longest that the exact form can represent.
const LONGEST_PERIOD_NANOS: u128 = 1_000_000_000_000_000 * 1_000_000_000;

pub(super) fn parse(text: &str) -> Result<Rate, RateParseError> {
    let mut scan = Scanner { text, at: 0 };
    scan.skip_space();
    let rate = if scan.is_at_end() {
        return Err(scan.error(text.len()..text.len(), RateProblem::Empty));
    } else if scan.eat_word("unlimited") {
        Rate::unlimited()
    } else if scan.eat_word("zero") {
        Rate::zero()
    } else {
        let count = scan.parse_number(RateProblem::CountMissing)?;
        scan.skip_space();
        if !(scan.eat_symbol('/') || scan.eat_word("per")) {
            return Err(scan.error_here(RateProblem::PeriodMissing));
        }
        Rate::new(count, scan.parse_period()?)
    };
    scan.skip_space();
    let rate = if scan.eat_word("burst") {
        scan.skip_space();
        rate.burst(scan.parse_number(RateProblem::BurstMissing)?)
    } else {
        rate
    };
    scan.skip_space();
    if !scan.is_at_end() {
        return Err(scan.error(scan.at..text.trim_end().len(), RateProblem::Trailing));
    }
    Ok(rate)
}

struct Scanner<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Scanner<'a> {
    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    fn is_at_end(&self) -> bool {
        self.rest().is_empty()
    }

    fn skip_space(&mut self) {
        self.at = self.text.len() - self.rest().trim_start().len();
    }

    /// Takes the characters that `fits` accepts, and returns them with their place.
    fn take_while(&mut self, fits: impl Fn(char) -> bool) -> (&'a str, Range<usize>) {
        let rest = self.rest();
        let length = rest.find(|c| !fits(c)).unwrap_or(rest.len());
        let place = self.at..self.at + length;
        self.at = place.end;
        (&rest[..length], place)
    }

    fn eat_symbol(&mut self, symbol: char) -> bool {
        let found = self.rest().starts_with(symbol);
        if found {
            self.at += symbol.len_utf8();
        }
        found
    }

    /// Takes `word` if it is the next whole word, in any case.
    fn eat_word(&mut self, word: &str) -> bool {
        let before = self.at;
        let (found, _) = self.take_while(char::is_alphabetic);
        let matches = found.eq_ignore_ascii_case(word);
        if !matches {
            self.at = before;
        }
        matches
    }

    /// A whole number that no unit follows directly.
    fn parse_number(&mut self, missing: RateProblem) -> Result<u64, RateParseError> {
        let start = self.at;
        let (_, digits) = self.take_while(|c| c.is_ascii_digit() || c == '_');
        let (more, place) = self.take_while(|c| c.is_ascii_alphanumeric());
        self.at = start;
        if digits.end > start && is_abbreviated(more) {
            return Err(self.error(start..place.end, RateProblem::Abbreviated));
        }
        self.parse_digits(missing)
    }

    /// A whole number; underscores may group its digits.
    fn parse_digits(&mut self, missing: RateProblem) -> Result<u64, RateParseError> {
        let (digits, place) = self.take_while(|c| c.is_ascii_digit() || c == '_');
        let mut each = digits.bytes().filter(u8::is_ascii_digit).peekable();
        if each.peek().is_none() {
            self.at = place.start;
            return Err(self.error_here(missing));
        }
        if self.rest().starts_with('.') {
            let (_, fraction) = self.take_while(|c| c == '.' || c.is_ascii_digit());
            return Err(self.error(place.start..fraction.end, RateProblem::Fraction));
        }
        let value = each.try_fold(0u64, |value, digit| {
            value.checked_mul(10)?.checked_add(u64::from(digit - b'0'))
        });
        value.ok_or_else(|| self.error(place, RateProblem::CountTooLarge))
    }

    /// A unit, or a whole number of a unit: `s`, `minute`, `250ms`, `2 hours`.
    fn parse_period(&mut self) -> Result<Duration, RateParseError> {
        self.skip_space();
        let start = self.at;
        let many = if self.rest().starts_with(|c: char| c.is_ascii_digit()) {
            self.parse_digits(RateProblem::UnitMissing)?
        } else {
            1
        };
        self.skip_space();
        let (unit, place) = self.take_while(|c| c.is_alphabetic());
        if unit.is_empty() {
            return Err(self.error_here(RateProblem::UnitMissing));
        }
        let Some(length) = unit_nanos(unit) else {
            let problem = if is_calendar_unit(unit) {
                RateProblem::Calendar
            } else {
                RateProblem::UnitUnknown
            };
            return Err(self.error(place, problem));
        };
        if many == 0 {
            return Err(self.error(start..place.end, RateProblem::PeriodZero));
        }
        let nanos = u128::from(many) * length;
        if nanos > LONGEST_PERIOD_NANOS {
            return Err(self.error(start..place.end, RateProblem::PeriodTooLong));
        }
        // 10^15 s is far below the maximum of a Duration, so neither part can overflow.
        let whole = u64::try_from(nanos / 1_000_000_000).unwrap_or(u64::MAX);
        let rest = u32::try_from(nanos % 1_000_000_000).unwrap_or(0);
        Ok(Duration::new(whole, rest))
    }

    /// An error about the next word, or about the end of the text.
    fn error_here(&self, problem: RateProblem) -> RateParseError {
        let rest = self.rest();
        let length = rest.find(char::is_whitespace).unwrap_or(rest.len());
        self.error(self.at..self.at + length, problem)
    }

    fn error(&self, place: Range<usize>, problem: RateProblem) -> RateParseError {
        RateParseError {
            text: self.text.to_owned(),
            place,
            problem,
        }
    }
}

/// Whether the text after a number multiplies it: `k`, `M`, `e3`.
fn is_abbreviated(more: &str) -> bool {
    let mut signs = more.chars();
    match signs.next() {
        Some('k' | 'K' | 'm' | 'M' | 'g' | 'G') => signs.next().is_none(),
        Some('e' | 'E') => signs.next().is_some_and(|sign| sign.is_ascii_digit()),
        _ => false,
    }
}

/// The number that `1k` or `1e3` abbreviates, if it is one.
fn expand_abbreviation(short: &str) -> Option<u64> {
    let end = short.find(|c: char| c.is_ascii_alphabetic())?;
    let digits: String = short[..end].chars().filter(|c| *c != '_').collect();
    let number: u64 = digits.parse().ok()?;
    let power = match short[end..].chars().next()?.to_ascii_lowercase() {
        'k' => 3,
        'm' => 6,
        'g' => 9,
        _ => short[end + 1..].parse().ok()?,
    };
    number.checked_mul(10_u64.checked_pow(power)?)
}

/// Whether a unit is a part of a calendar, whose months and years differ in length.
fn is_calendar_unit(unit: &str) -> bool {
    let units = ["month", "months", "mo", "year", "years", "y", "quarter"];
    units.iter().any(|known| unit.eq_ignore_ascii_case(known))
}

fn unit_nanos(name: &str) -> Option<u128> {
    const DAYS_OF_A_WEEK: u128 = 7;
    let lower = name.to_lowercase();
    let (short, many) = match lower.as_str() {
        "w" | "week" | "weeks" => ("d", DAYS_OF_A_WEEK),
        "day" | "days" => ("d", 1),
        "hour" | "hours" => ("h", 1),
        "minute" | "minutes" | "min" | "mins" => ("m", 1),
        "second" | "seconds" | "sec" | "secs" => ("s", 1),
        "millis" => ("ms", 1),
        "µs" | "μs" | "micros" => ("us", 1),
        "nanos" => ("ns", 1),
        short => (short, 1),
    };
    let (_, nanos) = TIME_UNITS.into_iter().find(|(unit, _)| *unit == short)?;
    Some(many * u128::from(nanos))
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn reads_every_spelling() {
        for (text, expect) in [
            ("100/s", Rate::per_second(100)),
            (" 100 / second ", Rate::per_second(100)),
            ("5/minute", Rate::per_minute(5)),
            ("1_000 per hour", Rate::per_hour(1000)),
            ("3/DAY", Rate::per_day(3)),
            ("1/week", Rate::new(1, Duration::from_secs(604_800))),
            ("5 per 2w", Rate::new(5, Duration::from_secs(1_209_600))),
            ("10 per 250ms", Rate::new(10, Duration::from_millis(250))),
            ("10/2 hours", Rate::new(10, Duration::from_secs(7200))),
            ("7/µs", Rate::new(7, Duration::from_micros(1))),
            ("100/s burst 200", Rate::per_second(100).burst(200)),
            ("100/s BURST 0", Rate::per_second(100).burst(0)),
            ("Unlimited", Rate::unlimited()),
            ("0/s", Rate::zero()),
            ("zero burst 9", Rate::zero().burst(9)),
        ] {
            assert_eq!(text.parse(), Ok(expect), "{text}");
        }
    }

    #[test]
    fn points_at_what_is_wrong() {
        for (text, message, marks) in [
            ("", "it is empty; write a rate such as 100/s burst 200", "^"),
            (
                "/s",
                "expected a count at column 1; write a rate such as 100/s burst 200",
                "^^",
            ),
            (
                "fast",
                "expected a count at column 1; write a rate such as 100/s burst 200",
                "^^^^",
            ),
            (
                "99999999999999999999/s",
                "99999999999999999999 at column 1 is above 18446744073709551615",
                "^^^^^^^^^^^^^^^^^^^^",
            ),
            (
                "0.5/s",
                "numbers are whole, but column 1 has a fraction; take another unit or period: 1.5s is 1500ms, 0.5/s is 1 per 2s",
                "^^^",
            ),
            (
                "1k/s",
                "numbers are written in full, but column 1 has 1k; write 1000",
                "^^",
            ),
            (
                "2e3/s burst 1",
                "numbers are written in full, but column 1 has 2e3; write 2000",
                "^^^",
            ),
            (
                "1/s burst 5M",
                "numbers are written in full, but column 11 has 5M; write 5000000",
                "          ^^",
            ),
            (
                "1e99/s",
                "numbers are written in full, but column 1 has 1e99; write all of its digits",
                "^^^^",
            ),
            (
                "1000/month",
                "\"month\" at column 6 isn't always equally long; use a quota for months and years, as in \
                 quota: 1000/month, or write days: 30d",
                "     ^^^^^",
            ),
            (
                "100",
                "expected \"/\" or \"per\" and a period at column 4, as in 100/s or 10 per 250ms",
                "   ^",
            ),
            (
                "100/",
                "expected a unit at column 5: ns, us, ms, s, m (minute), h, d or w",
                "    ^",
            ),
            (
                "5/0s",
                "the period at column 3 is zero; write unlimited if that is meant",
                "  ^^",
            ),
            (
                "5 per 99999999999999d",
                "the period at column 7 is above 10^15 s",
                "      ^^^^^^^^^^^^^^^",
            ),
            (
                "100/s burst",
                "expected a whole number after \"burst\" at column 12",
                "           ^",
            ),
            (
                "100/s burst lots",
                "expected a whole number after \"burst\" at column 13",
                "            ^^^^",
            ),
            (
                "100/s or so",
                "\"or so\" at column 7 is not understood; only \"burst N\" may follow",
                "      ^^^^^",
            ),
        ] {
            let error = text.parse::<Rate>().unwrap_err().to_string();
            let expect = alloc::format!("invalid rate {text:?}: {message}\n  {text}\n  {marks}");
            assert_eq!(error, expect);
        }
    }

    #[test]
    fn texts_of_any_length_are_shown() {
        for (text, expect) in [
            (alloc::format!("{}/s", "9".repeat(70_000)), "is above"),
            (
                alloc::format!("{}5/fortnight", " ".repeat(70_000)),
                "unknown unit",
            ),
        ] {
            let error = text.parse::<Rate>().unwrap_err().to_string();
            assert!(error.contains(expect) && error.ends_with('^'));
        }
    }

    #[test]
    fn control_characters_are_shown_escaped() {
        let error = "5/s\nburst".parse::<Rate>().unwrap_err().to_string();
        assert!(error.ends_with("\n  5/s\\nburst"), "{error}");
    }
}
