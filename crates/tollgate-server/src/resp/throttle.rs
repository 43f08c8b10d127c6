//! `CL.THROTTLE key max_burst count period [quantity]`, as redis-cell answers it.
//!
//! Its limit is a rate of one token every `period / count`, cut to whole nanoseconds as redis-cell does, and a burst of
//! `max_burst + 1`. What is left it tells in whole microseconds, and times in whole seconds: a part of a second of at
//! least a millisecond counts as one.

use std::fmt;
use std::time::Duration;

use tollgate::{Decision, LimitError, Rate};

/// The longest period: what redis-cell's arithmetic and ours both have room for.
const LONGEST: u64 = 2 * 365 * 86_400;

/// What is asked, but for the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Ask {
    max_burst: u64,
    count: u64,
    period: u64,
}

/// What can't be asked.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Wrong {
    /// Another number of words than the command takes.
    Words,
    /// A word that is no whole number, or a negative one.
    Number(&'static str),
    /// A number that is more than there is room for.
    TooMuch(&'static str),
    /// No tokens in no time.
    Zero(&'static str),
    /// A limit that can't be kept.
    Limit(LimitError),
}

/// A command, read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Throttle<'w> {
    pub(crate) key: &'w [u8],
    pub(crate) ask: Ask,
    pub(crate) quantity: u64,
}

impl<'w> Throttle<'w> {
    /// Reads the words behind the name of the command.
    pub(crate) fn read(mut words: impl ExactSizeIterator<Item = &'w [u8]>) -> Result<Self, Wrong> {
        if !matches!(words.len(), 4 | 5) {
            return Err(Wrong::Words);
        }
        // The key is any bytes.
        let key = words.next().ok_or(Wrong::Words)?;
        let mut next = |name| number(words.next().ok_or(Wrong::Words)?, name);
        let ask = Ask {
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

impl Ask {
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

    /// The time in which one token comes back.
    fn emission(&self) -> Result<Duration, Wrong> {
        if self.count == 0 {
            return Err(Wrong::Zero("count"));
        }
        if self.period == 0 {
            return Err(Wrong::Zero("period"));
        }
        if self.period > LONGEST {
            return Err(Wrong::TooMuch("period"));
        }
        let nanos = self.period * 1_000_000_000 / self.count;
        if nanos == 0 {
            return Err(Wrong::TooMuch("count"));
        }
        Ok(Duration::from_nanos(nanos))
    }

    /// The limit.
    pub(crate) fn rate(&self) -> Result<Rate, Wrong> {
        let burst = self
            .max_burst
            .checked_add(1)
            .ok_or(Wrong::TooMuch("max_burst"))?;
        Ok(Rate::new(1, self.emission()?).burst(burst))
    }

    /// The five numbers of the answer: whether it is limited, the limit, what is left, and seconds until it may be
    /// repeated and until all is there.
    pub(crate) fn answer(&self, decision: &Decision) -> [i64; 5] {
        let limit = self.max_burst.saturating_add(1);
        let micros = |time: Duration| time.as_micros();
        let emission = self.emission().unwrap_or(Duration::from_nanos(1));
        let all = emission.as_nanos() * u128::from(limit);
        let rest = all.saturating_sub(decision.reset_after.as_nanos()) / 1_000;
        let left = rest / micros(emission).max(1);
        let retry_after = match (decision.is_allowed(), decision.retry_after) {
            (false, wait) if wait < Duration::MAX => seconds(wait),
            _ => -1,
        };
        [
            i64::from(!decision.is_allowed()),
            i64::try_from(limit).unwrap_or(i64::MAX),
            i64::try_from(left).unwrap_or(i64::MAX),
            retry_after,
            seconds(decision.reset_after),
        ]
    }
}

/// Whole seconds, and one more for a rest of at least a millisecond.
fn seconds(time: Duration) -> i64 {
    let rest = u64::from(time.subsec_millis() > 0);
    i64::try_from(time.as_secs().saturating_add(rest)).unwrap_or(i64::MAX)
}

fn number(word: &[u8], name: &'static str) -> Result<u64, Wrong> {
    let text = std::str::from_utf8(word).map_err(|_| Wrong::Number(name))?;
    let value = text.parse::<i64>().map_err(|_| Wrong::Number(name))?;
    u64::try_from(value).map_err(|_| Wrong::Number(name))
}

impl From<LimitError> for Wrong {
    fn from(error: LimitError) -> Self {
        Self::Limit(error)
    }
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Words => f.write_str(
                "CL.THROTTLE takes a key, max_burst, count, period and, if not 1, a quantity",
            ),
            Self::Number(name) => {
                write!(f, "{name} is a whole number from 0 to 9223372036854775807")
            }
            Self::TooMuch(name) => write!(f, "{name} is more than there is room for"),
            Self::Zero(name) => write!(f, "{name} is at least 1"),
            Self::Limit(error) => error.fmt(f),
        }
    }
}
