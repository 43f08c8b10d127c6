//! Parses "10000/month on 31 in Europe/Zurich" and "10000 in any 30d".

use std::time::Duration;

use tollgate_core::{TIME_UNITS, Timestamp};

use super::{Quota, QuotaError, Weekday};

pub(super) fn parse(text: &str) -> Result<Quota, QuotaError> {
    let mut scan = Scanner { text, at: 0 };
    if scan.word("unlimited") {
        scan.end("nothing after \"unlimited\"")?;
        return Ok(Quota::unlimited());
    }
    let count = scan.number("a count, as in 10000/month")?;
    if scan.word("in") {
        let any = |scan: &mut Scanner<'_>| scan.word("any").then_some(());
        scan.read("\"any\" and a length, as in 10000 in any 30d", any)?;
        let quota = Quota::rolling(count, scan.length()?)?;
        scan.end("nothing after the length")?;
        return Ok(quota);
    }
    let per = |scan: &mut Scanner<'_>| (scan.slash() || scan.word("per")).then_some(());
    scan.read("\"/\" and a period, or \"in any\" and a length", per)?;
    let mut quota = scan.period(count)?;
    loop {
        let start = scan.start();
        quota = if scan.word("from") {
            let first = scan.weekday()?;
            quota.starting(first)
        } else if scan.word("on") {
            let day = scan.number("a day of the month")?;
            quota.on_day(u8::try_from(day).unwrap_or(u8::MAX))
        } else if scan.word("since") {
            let start = scan.time()?;
            quota.since(start)
        } else if scan.word("in") {
            let zone = scan.take(|c| !c.is_whitespace());
            quota.in_zone(zone)
        } else {
            scan.end("the end, or \"from\", \"on\", \"since\" or \"in\" with what they say")?;
            return Ok(quota);
        }
        .map_err(|error| match error {
            QuotaError::NotApplicable { .. } => {
                let what = "nothing that such a period can't have (from: weeks; on, since: months)";
                scan.error(start, what)
            }
            other => other,
        })?;
    }
}

struct Scanner<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Scanner<'a> {
    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    /// The start of the next word, after spaces.
    fn start(&mut self) -> usize {
        self.at = self.text.len() - self.rest().trim_start().len();
        self.at
    }

    /// Takes characters as long as the predicate holds.
    fn take(&mut self, is: impl Fn(char) -> bool) -> &'a str {
        self.start();
        let end = self.rest().find(|c| !is(c));
        let taken = &self.rest()[..end.unwrap_or(self.rest().len())];
        self.at += taken.len();
        taken
    }

    fn letters(&mut self) -> &'a str {
        self.take(|c| c.is_ascii_alphabetic())
    }

    fn word(&mut self, word: &str) -> bool {
        let start = self.start();
        let found = self.letters() == word;
        if !found {
            self.at = start;
        }
        found
    }

    fn slash(&mut self) -> bool {
        self.start();
        let found = self.rest().starts_with('/');
        self.at += usize::from(found);
        found
    }

    /// Reads the next item; if it is missing, the error names what was expected.
    fn read<T>(
        &mut self,
        expected: &'static str,
        read: impl FnOnce(&mut Self) -> Option<T>,
    ) -> Result<T, QuotaError> {
        let start = self.start();
        read(self).ok_or_else(|| self.error(start, expected))
    }

    fn number(&mut self, expected: &'static str) -> Result<u64, QuotaError> {
        let start = self.start();
        let digits = self.take(|c| c.is_ascii_digit());
        digits.parse().map_err(|_| match digits {
            "" => self.error(start, expected),
            _ => self.error(start, "a number of at most 18446744073709551615"),
        })
    }

    fn period(&mut self, count: u64) -> Result<Quota, QuotaError> {
        self.read("hour, day, week or month", |scan| match scan.letters() {
            "hour" | "h" => Some(Quota::per_hour(count)),
            "day" | "d" => Some(Quota::per_day(count)),
            "week" | "w" => Some(Quota::per_week(count)),
            "month" => Some(Quota::per_month(count)),
            _ => None,
        })
    }

    fn length(&mut self) -> Result<Duration, QuotaError> {
        const EXPECTED: &str = "a length above zero, as in 30d, 12h, 90m or 45s";
        let start = self.start();
        let number = self.number(EXPECTED)?;
        let unit = self.letters();
        let length = TIME_UNITS.iter().find(|(name, _)| *name == unit);
        let nanos = length.and_then(|(_, nanos)| nanos.checked_mul(number));
        let nanos = nanos.filter(|nanos| *nanos > 0);
        let length = nanos.map(Duration::from_nanos);
        length.ok_or_else(|| self.error(start, EXPECTED))
    }

    fn weekday(&mut self) -> Result<Weekday, QuotaError> {
        self.read("a day from monday to sunday", |scan| {
            let name = scan.letters();
            let found = Weekday::ALL.iter().find(|(_, day)| *day == name);
            found.map(|(day, _)| *day)
        })
    }

    fn time(&mut self) -> Result<Timestamp, QuotaError> {
        self.read("a time since 1970, as in 2024-01-31T09:30:00Z", |scan| {
            let time = scan.take(|c| !c.is_whitespace());
            let time: jiff::Timestamp = time.parse().ok()?;
            let nanos = u64::try_from(time.as_nanosecond()).ok()?;
            Some(Timestamp::from_nanos(nanos))
        })
    }

    fn end(&mut self, expected: &'static str) -> Result<(), QuotaError> {
        self.read(expected, |scan| scan.rest().is_empty().then_some(()))
    }

    fn error(&self, at: usize, expected: &'static str) -> QuotaError {
        QuotaError::Parse {
            text: self.text.to_owned(),
            column: self.text[..at].chars().count() + 1,
            expected,
        }
    }
}
