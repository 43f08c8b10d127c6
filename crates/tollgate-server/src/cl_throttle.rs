//! `CL.THROTTLE key max_burst count period [quantity]`, compatible with redis-cell.
//!
//! The limit is an emission interval of `period / count`, cut to whole nanoseconds as in redis-cell, and a tolerance of
//! `max_burst + 1` intervals. A key has one theoretical arrival time, whatever limit a command brings. Remaining tokens
//! are computed in whole microseconds. Durations are in whole seconds: a part of a second of at least a millisecond
//! counts as one.

use std::time::Duration;

use derive_more::Display;
use tollgate::{DenyReason, Rate};

/// The longest period for which neither redis-cell's arithmetic nor ours overflows.
const LONGEST: u64 = 2 * 365 * 86_400;

/// Nanoseconds of a second.
const NANOS: u64 = 1_000_000_000;

/// The limit of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ThrottleParameters {
    max_burst: u64,
    count: u64,
    period: u64,
}

/// A malformed command.
#[derive(Debug, Display, PartialEq, Eq)]
pub(crate) enum ThrottleError {
    /// A wrong number of words.
    #[display("CL.THROTTLE takes a key, max_burst, count, period and, if not 1, a quantity")]
    Words,
    /// A word that is no whole number, or a negative one.
    #[display("{_0} is a whole number from 0 to 9223372036854775807")]
    Number(&'static str),
    /// A number that would overflow.
    #[display("{_0} is more than there is room for")]
    TooMuch(&'static str),
    /// A count or period of zero.
    #[display("{_0} is at least 1")]
    Zero(&'static str),
}

/// A parsed command.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ThrottleCommand<'w> {
    pub(crate) key: &'w [u8],
    pub(crate) ask: ThrottleParameters,
    pub(crate) quantity: u64,
}

impl<'w> ThrottleCommand<'w> {
    /// Parses the words behind the command's name.
    pub(crate) fn read(
        mut words: impl ExactSizeIterator<Item = &'w [u8]>,
    ) -> Result<Self, ThrottleError> {
        if !matches!(words.len(), 4 | 5) {
            return Err(ThrottleError::Words);
        }
        // The key may be any bytes.
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
    /// The share of one of several replicas that count separately: a part of the burst, and a part of the tokens or a
    /// longer period.
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

    /// The limit by which keys are charged.
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

/// The outcome of a charge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ThrottleOutcome {
    pub(crate) is_allowed: bool,
    /// How far the key's arrival time is ahead of now.
    pub(crate) debt: Duration,
    /// The wait of a denied request, if the debt doesn't determine it: fallback enforces only a share of the limit.
    pub(crate) wait: Option<Duration>,
}

/// A limit by arrival times, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ThrottleLimit {
    /// How many tokens may pass at one moment.
    pub(crate) limit: u64,
    /// The time of one token.
    pub(crate) emission: u64,
    /// How far the arrival time may be ahead of now: the time of all tokens.
    pub(crate) tolerance: u64,
}

impl ThrottleLimit {
    /// A limit of this many tokens a minute, all of which may pass at one moment.
    #[cfg(test)]
    pub(crate) fn per_minute(count: u64) -> Self {
        let ask = ThrottleParameters {
            max_burst: count - 1,
            count,
            period: 60,
        };
        ask.limit().expect("a limit")
    }

    /// The time of this many tokens. It saturates, which is more than any tolerance.
    pub(crate) fn time(&self, quantity: u64) -> u64 {
        self.emission.saturating_mul(quantity)
    }

    /// The limit as a rate.
    pub(crate) fn rate(&self) -> Rate {
        Rate::new(1, Duration::from_nanos(self.emission)).burst(self.limit)
    }

    /// Why a request was denied; `None` if it was allowed.
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

    /// The five numbers of the reply: whether it is limited, the limit, the remaining tokens, and the seconds until a
    /// retry and until all tokens are back.
    pub(crate) fn answer(&self, charged: &ThrottleOutcome, quantity: u64) -> [i64; 5] {
        let (owed, time) = (charged.debt.as_nanos(), self.time(quantity));
        let most = u128::from(self.tolerance);
        // A peek takes nothing. It is limited if the key owes more than this limit's tolerance, by an earlier and
        // larger limit.
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

/// Whole seconds, rounded up from a rest of at least a millisecond.
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
