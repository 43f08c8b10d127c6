//! `Rate`: a count per period, with a burst. `rate/parse.rs` parses it.

use core::fmt;
use core::str::FromStr;
use core::time::Duration;

use crate::wide_math::wide_mul;

mod parse;

pub use parse::RateParseError;

/// A count per period with a burst: how much passes in the long run, and how much at one instant.
///
/// The burst is the count unless [`burst`](Self::burst) sets another, so `per_second(100)` admits up to 100 requests
/// at one instant after an idle second. Unlimited and zero are ordinary values.
///
/// ```
/// use core::time::Duration;
/// use tollgate_core::Rate;
///
/// let rate = Rate::per_second(100).burst(200);
/// assert_eq!(rate.to_string(), "100/s burst 200");
/// assert_eq!("100/s burst 200".parse(), Ok(rate));
/// assert_eq!("10 per 250ms".parse(), Ok(Rate::new(10, Duration::from_millis(250))));
/// assert_eq!("5/minute".parse(), Ok(Rate::per_minute(5)));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Rate {
    pace: RateSpeed,
    burst: u64,
}

/// The speed of a rate, without the burst, which `set_burst` changes alone.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum RateSpeed {
    Unlimited,
    Zero,
    Finite { count: u64, period: Duration },
}

impl Rate {
    /// `count` in each `period`, possibly all of them at one instant.
    ///
    /// A count of 0 is [`zero`](Self::zero). No limiter takes a period of zero, which is also the result of rounding a
    /// time below a nanosecond: [`LimitError::NoPeriod`](crate::LimitError::NoPeriod). Use
    /// [`unlimited`](Self::unlimited) for no limit.
    ///
    /// ```
    /// use core::time::Duration;
    /// use tollgate_core::{Arithmetic, Gcra, Rate};
    ///
    /// let error = Gcra::new(Rate::new(100, Duration::ZERO)).unwrap_err();
    /// assert_eq!(
    ///     error.to_string(),
    ///     "rate \"100 per 0s\" has a period of zero: give it a period, or use \"unlimited\" if no limit is meant"
    /// );
    /// ```
    pub const fn new(count: u64, period: Duration) -> Self {
        let pace = match count {
            0 => RateSpeed::Zero,
            _ => RateSpeed::Finite { count, period },
        };
        Self { pace, burst: count }
    }

    /// `count` a second.
    ///
    /// ```
    /// assert_eq!(tollgate_core::Rate::per_second(100).to_string(), "100/s");
    /// ```
    pub const fn per_second(count: u64) -> Self {
        Self::new(count, Duration::from_secs(1))
    }

    /// `count` a minute.
    pub const fn per_minute(count: u64) -> Self {
        Self::new(count, Duration::from_secs(60))
    }

    /// `count` an hour.
    pub const fn per_hour(count: u64) -> Self {
        Self::new(count, Duration::from_secs(3_600))
    }

    /// `count` in 24 hours.
    pub const fn per_day(count: u64) -> Self {
        Self::new(count, Duration::from_secs(86_400))
    }

    /// One per `interval`, without a burst: for pacing.
    ///
    /// ```
    /// use core::time::Duration;
    /// use tollgate_core::Rate;
    ///
    /// let pace = Rate::every(Duration::from_millis(100)).burst(3);
    /// assert_eq!(pace.to_string(), "1 per 100ms burst 3");
    /// ```
    pub const fn every(interval: Duration) -> Self {
        Self::new(1, interval)
    }

    /// No limit: admits any cost and charges nothing.
    pub const fn unlimited() -> Self {
        Self {
            pace: RateSpeed::Unlimited,
            burst: u64::MAX,
        }
    }

    /// Nothing passes. A token bucket with `zero().burst(n)` spends its `n` stored tokens once.
    pub const fn zero() -> Self {
        Self {
            pace: RateSpeed::Zero,
            burst: 0,
        }
    }

    /// The same rate with another burst: how much may pass at one instant.
    #[must_use]
    pub const fn burst(self, burst: u64) -> Self {
        Self {
            pace: self.pace,
            burst,
        }
    }

    /// The count per period: 0 for zero, the maximum for unlimited.
    pub const fn count(&self) -> u64 {
        match self.pace {
            RateSpeed::Unlimited => u64::MAX,
            RateSpeed::Zero => 0,
            RateSpeed::Finite { count, .. } => count,
        }
    }

    /// The length of the period: `None` for zero and unlimited.
    pub const fn period(&self) -> Option<Duration> {
        match self.pace {
            RateSpeed::Unlimited | RateSpeed::Zero => None,
            RateSpeed::Finite { period, .. } => Some(period),
        }
    }

    /// How much may pass at one instant.
    pub const fn burst_size(&self) -> u64 {
        self.burst
    }

    /// Whether this rate grants more than another in the long run, whatever the bursts.
    ///
    /// ```
    /// use tollgate_core::Rate;
    ///
    /// assert!(Rate::per_second(2).is_faster_than(Rate::per_minute(100)));
    /// assert!(!Rate::per_second(2).burst(9).is_faster_than(Rate::per_minute(120)));
    /// assert!(Rate::unlimited().is_faster_than(Rate::per_second(1)));
    /// ```
    pub fn is_faster_than(self, other: Self) -> bool {
        match (self.count_and_nanos(), other.count_and_nanos()) {
            (Some((count, period)), Some((others, their_period))) => {
                wide_mul(u128::from(count), their_period) > wide_mul(u128::from(others), period)
            }
            (None, None) => self.is_unlimited() && other.is_zero(),
            (None, Some(_)) => self.is_unlimited(),
            (Some(_), None) => other.is_zero(),
        }
    }

    /// Whether the rate is unlimited.
    pub const fn is_unlimited(&self) -> bool {
        matches!(self.pace, RateSpeed::Unlimited)
    }

    /// Whether the rate refills nothing.
    pub const fn is_zero(&self) -> bool {
        matches!(self.pace, RateSpeed::Zero)
    }

    /// Tokens a second, for display and plots: infinite when unlimited.
    #[expect(clippy::cast_precision_loss, reason = "only for people to read")]
    pub fn as_per_second(&self) -> f64 {
        match self.pace {
            RateSpeed::Unlimited => f64::INFINITY,
            RateSpeed::Zero => 0.0,
            RateSpeed::Finite { count, period } => count as f64 / period.as_secs_f64(),
        }
    }

    /// Count and period in nanoseconds, for a rate that is neither zero nor unlimited.
    pub(crate) const fn count_and_nanos(&self) -> Option<(u64, u128)> {
        match self.pace {
            RateSpeed::Unlimited | RateSpeed::Zero => None,
            RateSpeed::Finite { count, period } => Some((count, period.as_nanos())),
        }
    }
}

impl FromStr for Rate {
    type Err = RateParseError;

    fn from_str(text: &str) -> Result<Self, RateParseError> {
        parse::parse(text)
    }
}

/// The shortest text that parses back to the same rate.
impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let natural_burst = match self.pace {
            RateSpeed::Unlimited => {
                f.write_str("unlimited")?;
                u64::MAX
            }
            RateSpeed::Zero => {
                f.write_str("zero")?;
                0
            }
            RateSpeed::Finite { count, period } => {
                write!(f, "{count}")?;
                write_period(f, period.as_nanos())?;
                count
            }
        };
        if self.burst != natural_burst {
            write!(f, " burst {}", self.burst)?;
        }
        Ok(())
    }
}

/// Formats as text, because the number that stands for "no limit" would mislead.
impl fmt::Debug for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Rate({self})")
    }
}

/// The units of time from long to short, as rates and periods are printed and parsed, with their nanoseconds.
///
/// ```
/// let hour = tollgate_core::TIME_UNITS.into_iter().find(|(name, _)| *name == "h");
/// assert_eq!(hour, Some(("h", 3_600_000_000_000)));
/// ```
pub const TIME_UNITS: [(&str, u64); 7] = [
    ("d", 86_400_000_000_000),
    ("h", 3_600_000_000_000),
    ("m", 60_000_000_000),
    ("s", 1_000_000_000),
    ("ms", 1_000_000),
    ("us", 1_000),
    ("ns", 1),
];

fn write_period(f: &mut fmt::Formatter<'_>, nanos: u128) -> fmt::Result {
    if nanos == 0 {
        return f.write_str(" per 0s");
    }
    for (unit, length) in TIME_UNITS {
        let length = u128::from(length);
        if nanos == length {
            return write!(f, "/{unit}");
        }
        if nanos.is_multiple_of(length) {
            return write!(f, " per {}{unit}", nanos / length);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Arithmetic, FixedWindow, Gcra, LeakyBucket, LimitError, SlidingCounter, SlidingLog,
        TokenBucket, WindowAlignment,
    };
    use alloc::string::ToString;

    #[test]
    fn display_round_trips() {
        for text in [
            "100/s",
            "5/m",
            "1/h",
            "1000/d",
            "1/ms",
            "10 per 250ms",
            "1 per 100ms burst 3",
            "100/s burst 200",
            "1 per 1500ms",
            "7 per 2d",
            "30/ns",
            "unlimited",
            "zero",
            "zero burst 5",
        ] {
            let rate: Rate = text.parse().unwrap();
            assert_eq!(rate.to_string(), text);
        }
    }

    #[test]
    fn no_limit_is_a_word_wherever_it_is_shown() {
        use alloc::format;
        let rate = Rate::unlimited();
        let gcra = Gcra::new(rate).unwrap();
        let shown = [
            format!("{rate:?}"),
            format!("{gcra:?} {:?}", gcra.params()),
            format!("{:?}", TokenBucket::new(rate).unwrap()),
            format!("{:?}", LeakyBucket::new(rate).unwrap()),
            format!(
                "{:?}",
                FixedWindow::new(rate)
                    .unwrap()
                    .with_alignment(WindowAlignment::FirstHit)
            ),
            format!("{:?}", SlidingLog::new(rate).unwrap()),
            format!("{:?}", SlidingCounter::new(rate).unwrap()),
        ];
        for text in shown {
            assert!(text.contains("unlimited"), "{text}");
            assert!(!text.contains("18446744073709551615"), "{text}");
        }
        assert_eq!(
            format!("{:?}", Rate::per_second(5).burst(9)),
            "Rate(5/s burst 9)"
        );
    }

    #[test]
    fn a_count_of_zero_is_the_zero_rate_whatever_the_period() {
        assert_eq!(Rate::per_second(0), Rate::zero());
        assert_eq!(Rate::new(0, Duration::ZERO), Rate::zero());
    }

    #[test]
    fn no_algorithm_takes_a_period_of_zero_for_no_limit() {
        let rounded = Duration::from_micros(1) / 5_000;
        for rate in [
            Rate::every(Duration::ZERO),
            Rate::every(rounded).burst(3),
            Rate::new(100, Duration::ZERO),
        ] {
            assert!(!rate.is_unlimited());
            let error = LimitError::NoPeriod { rate };
            assert_eq!(Gcra::new(rate).err(), Some(error));
            assert_eq!(TokenBucket::new(rate).err(), Some(error));
            assert_eq!(LeakyBucket::new(rate).err(), Some(error));
            assert_eq!(FixedWindow::new(rate).err(), Some(error));
            assert_eq!(SlidingLog::new(rate).err(), Some(error));
            assert_eq!(SlidingCounter::new(rate).err(), Some(error));
        }
    }
}
