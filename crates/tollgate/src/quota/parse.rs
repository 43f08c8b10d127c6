//! Reads "10000/month on 31 in Europe/Zurich" and "10000 in any 30d".

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
        if !scan.word("any") {
            return Err(scan.error("\"any\" and a length, as in 10000 in any 30d"));
        }
        let quota = Quota::rolling(count, scan.length()?)?;
        scan.end("nothing after the length")?;
        return Ok(quota);
    }
    if !(scan.symbol('/') || scan.word("per")) {
        return Err(scan.error("\"/\" and a period, or \"in any\" and a length"));
    }
    let mut quota = scan.period(count)?;
    loop {
        scan.skip_space();
        let before = scan.at;
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
            let zone = scan.token();
            quota.in_zone(zone)
        } else {
            scan.end("the end, or \"from\", \"on\", \"since\" or \"in\" with what they say")?;
            return Ok(quota);
        }
        .map_err(|error| match error {
            QuotaError::NotApplicable { .. } => Scanner { text, at: before }
                .error("nothing that such a period can't have (from: weeks; on, since: months)"),
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

    fn skip_space(&mut self) {
        self.at = self.text.len() - self.rest().trim_start().len();
    }

    /// The letters, digits and marks up to the next space.
    fn token(&mut self) -> &'a str {
        self.skip_space();
        let token = self.rest().split_whitespace().next().unwrap_or("");
        self.at += token.len();
        token
    }

    fn letters(&mut self) -> &'a str {
        self.skip_space();
        let end = self.rest().find(|c: char| !c.is_ascii_alphabetic());
        let letters = &self.rest()[..end.unwrap_or(self.rest().len())];
        self.at += letters.len();
        letters
    }

    fn word(&mut self, word: &str) -> bool {
        self.skip_space();
        let before = self.at;
        let found = self.letters() == word;
        if !found {
            self.at = before;
        }
        found
    }

    fn symbol(&mut self, symbol: char) -> bool {
        self.skip_space();
        let found = self.rest().starts_with(symbol);
        if found {
            self.at += symbol.len_utf8();
        }
        found
    }

    fn number(&mut self, expected: &'static str) -> Result<u64, QuotaError> {
        self.skip_space();
        let end = self.rest().find(|c: char| !c.is_ascii_digit());
        let digits = &self.rest()[..end.unwrap_or(self.rest().len())];
        if digits.is_empty() {
            return Err(self.error(expected));
        }
        let number = digits.parse();
        let number = number.map_err(|_| self.error("a number of at most 18446744073709551615"))?;
        self.at += digits.len();
        Ok(number)
    }

    fn period(&mut self, count: u64) -> Result<Quota, QuotaError> {
        self.skip_space();
        let before = self.at;
        match self.letters() {
            "hour" | "h" => Ok(Quota::per_hour(count)),
            "day" | "d" => Ok(Quota::per_day(count)),
            "week" | "w" => Ok(Quota::per_week(count)),
            "month" => Ok(Quota::per_month(count)),
            _ => {
                self.at = before;
                Err(self.error("hour, day, week or month"))
            }
        }
    }

    fn length(&mut self) -> Result<Duration, QuotaError> {
        const EXPECTED: &str = "a length above zero, as in 30d, 12h, 90m or 45s";
        let before = self.at;
        let number = self.number(EXPECTED)?;
        let unit = self.letters();
        let length = TIME_UNITS.iter().find(|(name, _)| *name == unit);
        let nanos = length.and_then(|(_, nanos)| nanos.checked_mul(number));
        match nanos {
            Some(nanos) if nanos > 0 => Ok(Duration::from_nanos(nanos)),
            _ => {
                self.at = before;
                self.skip_space();
                Err(self.error(EXPECTED))
            }
        }
    }

    fn weekday(&mut self) -> Result<Weekday, QuotaError> {
        self.skip_space();
        let before = self.at;
        let name = self.letters();
        let found = Weekday::ALL.iter().find(|(_, day)| *day == name);
        found.map(|(day, _)| *day).ok_or_else(|| {
            self.at = before;
            self.error("a day from monday to sunday")
        })
    }

    fn time(&mut self) -> Result<Timestamp, QuotaError> {
        self.skip_space();
        let before = self.at;
        let time = self.token().parse::<jiff::Timestamp>().ok();
        let nanos = time.and_then(|time| u64::try_from(time.as_nanosecond()).ok());
        nanos.map(Timestamp::from_nanos).ok_or_else(|| {
            self.at = before;
            self.error("a time since 1970, as in 2024-01-31T09:30:00Z")
        })
    }

    fn end(&mut self, expected: &'static str) -> Result<(), QuotaError> {
        self.skip_space();
        if self.rest().is_empty() {
            Ok(())
        } else {
            Err(self.error(expected))
        }
    }

    fn error(&self, expected: &'static str) -> QuotaError {
        QuotaError::Parse {
            text: self.text.to_owned(),
            column: self.text[..self.at].chars().count() + 1,
            expected,
        }
    }
}
