//! `CL.THROTTLE key max_burst count period [quantity]`, as redis-cell answers it.
//!
//! Its limit is an emission interval of `period / count`, cut to whole nanoseconds as redis-cell does, and a tolerance of
//! `max_burst + 1` such intervals. A key has one theoretical arrival time, whatever limit it is asked by. What is left is
//! told by whole microseconds, and times in whole seconds: a part of a second of at least a millisecond counts as one.

use std::time::Duration;

use derive_more::Display;
use tollgate::{DenyReason, Rate};

/// The longest period: what redis-cell's arithmetic and ours both have room for.
const LONGEST: u64 = 2 * 365 * 86_400;

/// Nanoseconds of a second.
const NANOS: u64 = 1_000_000_000;

/// What is asked, but for the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ThrottleParameters {
    max_burst: u64,
    count: u64,
    period: u64,
}

/// What can't be asked.
#[derive(Debug, Display, PartialEq, Eq)]
pub(crate) enum ThrottleError {
    /// Another number of words than the command takes.
    #[display("CL.THROTTLE takes a key, max_burst, count, period and, if not 1, a quantity")]
    Words,
    /// A word that is no whole number, or a negative one.
    #[display("{_0} is a whole number from 0 to 9223372036854775807")]
    Number(&'static str),
    /// A number that is more than there is room for.
    #[display("{_0} is more than there is room for")]
    TooMuch(&'static str),
    /// No tokens in no time.
    #[display("{_0} is at least 1")]
    Zero(&'static str),
}

/// A command, read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ThrottleCommand<'w> {
    pub(crate) key: &'w [u8],
    pub(crate) ask: ThrottleParameters,
    pub(crate) quantity: u64,
}

impl<'w> ThrottleCommand<'w> {
    /// Reads the words behind the name of the command.
    pub(crate) fn read(
        mut words: impl ExactSizeIterator<Item = &'w [u8]>,
    ) -> Result<Self, ThrottleError> {
        if !matches!(words.len(), 4 | 5) {
            return Err(ThrottleError::Words);
        }
        // The key is any bytes.
        let key = words.next().ok_or(ThrottleError::Words)?;
        let mut next = |name| number(words.next().ok_or(ThrottleError::Words)?, name);
        let ask = ThrottleParameters {
            max_burst: next("max_burst")?,
            count: next("count")?,
            period: next("period")?,
        };
        let quantity = match words.next() {
            Some(word) => number(word, "quantity")?,
            None => 1,
        };
        Ok(Self { key, ask, quantity })
    }
}

impl ThrottleParameters {
    /// What each of so many answers by that count apart: a part of the burst, and of the tokens or one in a longer time.
    pub(crate) fn divided(self, by: u32) -> Self {
        let by = u64::from(by.max(1));
        let max_burst = (self.max_burst.saturating_add(1) / by).saturating_sub(1);
        let longer = self.period.saturating_mul(by);
        let (count, period) = match self.count {
            count if count % by == 0 => (count / by, self.period),
            count if longer <= LONGEST => (count, longer),
            count => ((count / by).max(1), self.period),
        };
        Self {
            max_burst,
            count,
            period,
        }
    }

    /// The limit as keys are charged by it.
    pub(crate) fn limit(&self) -> Result<ThrottleLimit, ThrottleError> {
        if self.count == 0 {
            return Err(ThrottleError::Zero("count"));
        }
        if self.period == 0 {
            return Err(ThrottleError::Zero("period"));
        }
        if self.period > LONGEST {
            return Err(ThrottleError::TooMuch("period"));
        }
        let emission = self.period * NANOS / self.count;
        if emission == 0 {
            return Err(ThrottleError::TooMuch("count"));
        }
        let limit = self.max_burst.checked_add(1);
        let tolerance = limit.and_then(|limit| emission.checked_mul(limit));
        match (limit, tolerance) {
            (Some(limit), Some(tolerance)) if tolerance <= LONGEST * NANOS => Ok(ThrottleLimit {
                limit,
                emission,
                tolerance,
            }),
            _ => Err(ThrottleError::TooMuch("max_burst")),
        }
    }
}

/// What became of a charge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ThrottleOutcome {
    pub(crate) is_allowed: bool,
    /// How far ahead of now the key's arrival time is.
    pub(crate) debt: Duration,
    /// How long a denied request has to wait, if that doesn't follow from what is owed: a part of the limit has decided.
    pub(crate) wait: Option<Duration>,
}

/// A limit by arrival times, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ThrottleLimit {
    /// How many may pass at the same moment.
    pub(crate) limit: u64,
    /// The time that one of them takes.
    pub(crate) emission: u64,
    /// How far ahead of now the arrival time may be: that of all of them.
    pub(crate) tolerance: u64,
}

impl ThrottleLimit {
    /// So many a minute, all of which may pass at the same moment.
    #[cfg(test)]
    pub(crate) fn per_minute(count: u64) -> Self {
        let ask = ThrottleParameters {
            max_burst: count - 1,
            count,
            period: 60,
        };
        ask.limit().expect("a limit")
    }

    /// The time that so many take; more than there is room for is more than any tolerance.
    pub(crate) fn time(&self, quantity: u64) -> u64 {
        self.emission.saturating_mul(quantity)
    }

    /// The limit in tokens.
    pub(crate) fn rate(&self) -> Rate {
        Rate::new(1, Duration::from_nanos(self.emission)).burst(self.limit)
    }

    /// Why a request was denied; none if it passed.
    pub(crate) fn deny_reason(
        &self,
        charged: &ThrottleOutcome,
        quantity: u64,
    ) -> Option<DenyReason> {
        if charged.is_allowed {
            None
        } else if self.time(quantity) > self.tolerance {
            Some(DenyReason::TooLarge)
        } else {
            Some(DenyReason::Rate)
        }
    }

    /// The five numbers of the answer: whether it is limited, the limit, what is left, and seconds until it may be
    /// repeated and until all is there.
    pub(crate) fn answer(&self, charged: &ThrottleOutcome, quantity: u64) -> [i64; 5] {
        let (owed, time) = (charged.debt.as_nanos(), self.time(quantity));
        let most = u128::from(self.tolerance);
        // A look costs nothing, and is limited where a smaller limit than that of before is owed more than it has.
        let is_limited = !charged.is_allowed || (quantity == 0 && owed > most);
        let left = most.saturating_sub(owed) / 1_000 / u128::from(self.emission / 1_000).max(1);
        let wait = match charged.wait {
            _ if !is_limited || time > self.tolerance => None,
            Some(wait) if wait < Duration::MAX => Some(wait),
            Some(_) => None,
            None => {
                let nanos = (owed + u128::from(time)).saturating_sub(most);
                Some(Duration::from_nanos(
                    u64::try_from(nanos).unwrap_or(u64::MAX),
                ))
            }
        };
        [
            i64::from(is_limited),
            i64::try_from(self.limit).unwrap_or(i64::MAX),
            i64::try_from(left).unwrap_or(i64::MAX),
            wait.map_or(-1, seconds),
            seconds(charged.debt),
        ]
    }
}

/// Whole seconds, and one more for a rest of at least a millisecond.
fn seconds(time: Duration) -> i64 {
    let rest = u64::from(time.subsec_millis() > 0);
    i64::try_from(time.as_secs().saturating_add(rest)).unwrap_or(i64::MAX)
}

fn number(word: &[u8], name: &'static str) -> Result<u64, ThrottleError> {
    let text = std::str::from_utf8(word).map_err(|_| ThrottleError::Number(name))?;
    let value = text
        .parse::<i64>()
        .map_err(|_| ThrottleError::Number(name))?;
    u64::try_from(value).map_err(|_| ThrottleError::Number(name))
}
