//! Traffic patterns: the times of arrivals, in proportion to the rate.

use std::fmt;
use std::time::Duration;

use clap::ValueEnum;
use tollgate_core::{Rate, Timestamp};

use super::format::format_nanos;

/// A traffic pattern. At 100/s its unit is one second with 100 arrivals.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, ValueEnum, derive_more::Display)]
#[display("{}", self.name())]
pub enum Pattern {
    /// At the rate, then a burst, then twice the rate, with silence between.
    #[default]
    Mixed,
    /// Evenly at 1.2 times the rate for five periods.
    Steady,
    /// Silence, then four bursts of twice the count, each at one instant.
    Burst,
    /// Random arrivals, on average at the rate, for about five periods.
    Poisson,
    /// The count just before a window boundary and the count just after it.
    Boundary,
}

/// A pattern played at a rate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Traffic {
    /// The times of the requests, ascending.
    pub arrivals: Vec<Timestamp>,
    /// The arrivals in words.
    pub description: String,
}

/// The error of a pattern that can't be played at a rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, derive_more::Display)]
#[non_exhaustive]
pub enum PatternError {
    /// The rate is so fast that the run would take too long and too much memory.
    #[display(
        "rate \"{rate}\": the {pattern} pattern needs {needed} arrivals and a run takes at most {MOST_ARRIVALS}; choose a slower rate"
    )]
    TooManyArrivals {
        /// The requested pattern.
        pattern: Pattern,
        /// The requested rate.
        rate: Rate,
        /// The number of arrivals that it would take.
        needed: u64,
    },
    /// The rate is so slow that the run would exceed the range of the algorithms.
    #[display(
        "rate \"{rate}\": a pattern lasts five periods, and a run takes periods of at most 365d"
    )]
    PeriodTooLong {
        /// The requested rate.
        rate: Rate,
    },
}

/// The most arrivals in a run: about a second of work and a few hundred megabytes.
pub const MOST_ARRIVALS: u64 = 5_000_000;

/// The longest period. Five of them stay within the nine years that every algorithm can represent.
const MAX_PERIOD: Duration = Duration::from_secs(365 * 86_400);

const SECOND: u64 = 1_000_000_000;

impl Pattern {
    /// The name of the pattern on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Mixed => "mixed",
            Self::Steady => "steady",
            Self::Burst => "burst",
            Self::Poisson => "poisson",
            Self::Boundary => "boundary",
        }
    }

    /// The arrivals of this pattern at a rate. Only poisson uses the seed.
    ///
    /// ```
    /// use tollgate_cli::simulate::pattern::Pattern;
    /// use tollgate_core::{Rate, Timestamp};
    ///
    /// let traffic = Pattern::Boundary.traffic(Rate::per_second(2), 1)?;
    /// assert_eq!(traffic.arrivals, [950, 975, 1000, 1025].map(Timestamp::from_millis));
    /// assert_eq!(traffic.description, "2 every 25ms from 0.95s, 2 every 25ms from 1s");
    /// # Ok::<(), tollgate_cli::simulate::PatternError>(())
    /// ```
    ///
    /// # Errors
    /// The rate is too fast or too slow to play the whole pattern.
    pub fn traffic(self, rate: Rate, seed: u64) -> Result<Traffic, PatternError> {
        let beat = TrafficUnit::from_rate(rate)?;
        let groups = self.groups(&beat);
        let counts = groups.iter().map(|group| group.count);
        let needed = counts.fold(0, u64::saturating_add);
        if needed > MOST_ARRIVALS {
            let pattern = self;
            return Err(PatternError::TooManyArrivals {
                pattern,
                rate,
                needed,
            });
        }
        Ok(match self {
            Self::Poisson => beat.poisson(needed, seed),
            _ => Traffic {
                arrivals: groups.iter().flat_map(ArrivalRun::arrivals).collect(),
                description: self.describe(&groups),
            },
        })
    }

    fn describe(self, groups: &[ArrivalRun]) -> String {
        let groups: Vec<_> = groups.iter().map(ArrivalRun::to_string).collect();
        let remark = match self {
            Self::Steady => " (1.2 x the rate)",
            _ => "",
        };
        groups.join(", ") + remark
    }

    /// The pattern as runs of evenly spaced arrivals. Poisson is the run of its average.
    fn groups(self, beat: &TrafficUnit) -> Vec<ArrivalRun> {
        let (span, times) = (beat.span, |times| beat.count.saturating_mul(times));
        let group = |start, count, over| ArrivalRun {
            start,
            count,
            span_nanos: over,
        };
        let (once, twice) = (times(1), times(2));
        match self {
            Self::Mixed => vec![
                group(0, once, span),
                group(2 * span, once, span / 10),
                group(3 * span, twice, span),
            ],
            Self::Steady => vec![group(0, times(6), 5 * span)],
            Self::Burst => {
                let starts = [span, 2 * span, 5 * span / 2, 4 * span];
                starts.map(|start| group(start, twice, 0)).to_vec()
            }
            Self::Poisson => vec![group(0, times(5), 5 * span)],
            // A window has the rate's own period, however many periods the unit has.
            Self::Boundary => {
                let (near, count) = (beat.period / 20, beat.per_period);
                vec![group(span - near, count, near), group(span, count, near)]
            }
        }
    }
}

impl std::error::Error for PatternError {}

/// The unit of patterns: a number of arrivals within a span, at the rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct TrafficUnit {
    count: u64,
    /// Nanoseconds: a whole number of periods, and at least a second.
    span: u64,
    /// The rate's own count and period, of which the unit is a multiple.
    per_period: u64,
    period: u64,
}

impl TrafficUnit {
    /// The unit is the rate's period, or as many periods as fill a second: "1 per 10ms" gets the traffic of 100/s. A
    /// rate without a period gets that traffic too.
    fn from_rate(rate: Rate) -> Result<Self, PatternError> {
        let (per_period, period) = match rate.period() {
            Some(period) if period > MAX_PERIOD => {
                return Err(PatternError::PeriodTooLong { rate });
            }
            Some(period) => (rate.count(), period.as_nanos()),
            None => (100, u128::from(SECOND)),
        };
        let period = u64::try_from(period).map_err(|_| PatternError::PeriodTooLong { rate })?;
        let periods = SECOND.div_ceil(period);
        Ok(Self {
            count: per_period.saturating_mul(periods),
            span: period * periods,
            per_period,
            period,
        })
    }

    /// Arrivals with exponential gaps of the rate's mean.
    fn poisson(&self, arrivals: u64, seed: u64) -> Traffic {
        let mut random = SplitMix64::new(seed);
        let mean = Duration::from_nanos(self.span).as_secs_f64() / self.count as f64;
        let mut at = 0.0;
        let next = |_| {
            at += random.exponential() * mean;
            Timestamp::ZERO + Duration::from_secs_f64(at)
        };
        Traffic {
            arrivals: (0..arrivals).map(next).collect(),
            description: format!(
                "{arrivals} at random, on average every {} (seed {seed})",
                format_nanos(u128::from(self.span) / u128::from(self.count))
            ),
        }
    }
}

/// Evenly spaced arrivals: arrival `k` is `k · over / count` after the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ArrivalRun {
    start: u64,
    count: u64,
    span_nanos: u64,
}

impl ArrivalRun {
    fn arrivals(&self) -> impl Iterator<Item = Timestamp> {
        let Self {
            start,
            count,
            span_nanos: over,
        } = *self;
        (0..count).map(move |k| {
            let after = u128::from(k) * u128::from(over) / u128::from(count);
            // The value is below `over`, so it fits a `u64`. The fallback never happens.
            Timestamp::from_nanos(start).plus_nanos(u64::try_from(after).unwrap_or(over))
        })
    }
}

impl fmt::Display for ArrivalRun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let start = format_nanos(u128::from(self.start));
        if self.span_nanos == 0 {
            return write!(f, "{} at once at {start}", self.count);
        }
        let gap = format_nanos(u128::from(self.span_nanos) / u128::from(self.count));
        write!(f, "{} every {gap} from {start}", self.count)
    }
}

/// The SplitMix64 generator: one word of state, and every seed is good.
#[derive(Clone, Debug)]
pub(super) struct SplitMix64(u64);

impl SplitMix64 {
    pub(super) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next 64 random bits.
    pub(super) const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// An exponential variate of mean 1: the gap between two independent arrivals.
    pub(super) fn exponential(&mut self) -> f64 {
        // In (0, 1], so that the logarithm is finite.
        let uniform = ((self.next() >> 11) + 1) as f64 / (1_u64 << 53) as f64;
        -uniform.ln()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn play(pattern: Pattern, rate: &str) -> Traffic {
        pattern.traffic(rate.parse().unwrap(), 1).unwrap()
    }

    fn check(pattern: Pattern, rate: &str, offered: usize, description: &str) {
        let traffic = play(pattern, rate);
        assert_eq!(traffic.arrivals.len(), offered, "{pattern} {rate}");
        assert_eq!(traffic.description, description, "{pattern} {rate}");
        assert!(traffic.arrivals.is_sorted());
    }

    #[test]
    fn the_default_pattern_is_the_documented_one() {
        let expected = (0..100)
            .map(|k| k * 10)
            .chain((0..100).map(|k| 2000 + k))
            .chain((0..200).map(|k| 3000 + k * 5))
            .map(Timestamp::from_millis);
        assert!(
            play(Pattern::Mixed, "100/s")
                .arrivals
                .into_iter()
                .eq(expected)
        );
    }

    #[test]
    fn patterns_follow_the_rate() {
        use Pattern::{Boundary, Burst, Mixed, Poisson, Steady};
        let mixed = "100 every 10ms from 0s, 100 every 1ms from 2s, 200 every 5ms from 3s";
        for rate in ["100/s", "100/s burst 5", "1 per 10ms", "zero", "unlimited"] {
            check(Mixed, rate, 400, mixed);
        }
        check(Steady, "10/m", 60, "60 every 5s from 0s (1.2 x the rate)");
        check(
            Burst,
            "5/s",
            40,
            "10 at once at 1s, 10 at once at 2s, 10 at once at 2.5s, 10 at once at 4s",
        );
        check(
            Boundary,
            "10 per 100ms",
            20,
            "10 every 500us from 0.995s, 10 every 500us from 1s",
        );
        check(
            Poisson,
            "20/s",
            100,
            "100 at random, on average every 50ms (seed 1)",
        );
    }

    #[test]
    fn poisson_follows_the_rate_and_the_seed() {
        let rate = Rate::per_second(10_000);
        let one = Pattern::Poisson.traffic(rate, 1).unwrap();
        assert_eq!(one, Pattern::Poisson.traffic(rate, 1).unwrap());
        let two = Pattern::Poisson.traffic(rate, 2).unwrap();
        assert_ne!(one.arrivals, two.arrivals);
        let last = one.arrivals.last().unwrap().as_secs_f64();
        assert!((last - 5.0).abs() < 0.1, "{last}");
    }

    #[test]
    fn rates_beyond_a_run_are_refused_with_the_numbers() {
        let refused = |pattern: Pattern, rate: &str| {
            let refusal = pattern.traffic(rate.parse().unwrap(), 1).unwrap_err();
            refusal.to_string()
        };
        assert_eq!(
            refused(Pattern::Mixed, "2000/ms"),
            "rate \"2000/ms\": the mixed pattern needs 8000000 arrivals and a run takes at most \
             5000000; choose a slower rate"
        );
        assert!(refused(Pattern::Steady, "18446744073709551615/ns").contains("needs"));
        assert_eq!(
            refused(Pattern::Mixed, "1 per 366d"),
            "rate \"1 per 366d\": a pattern lasts five periods, and a run takes periods of at \
             most 365d"
        );
        assert_eq!(play(Pattern::Steady, "1 per 365d").arrivals.len(), 6);
    }

    #[test]
    fn the_sequence_is_that_of_splitmix64() {
        // The published first outputs for seed 1234567.
        let mut random = SplitMix64::new(1_234_567);
        assert_eq!(random.next(), 6_457_827_717_110_365_317);
        assert_eq!(random.next(), 3_203_168_211_198_807_973);
    }

    #[test]
    fn exponential_gaps_have_mean_and_variance_1() {
        let mut random = SplitMix64::new(1);
        let gaps: Vec<f64> = (0..100_000).map(|_| random.exponential()).collect();
        let mean = gaps.iter().sum::<f64>() / 1e5;
        let variance = gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / 1e5;
        assert!(gaps.iter().all(|gap| *gap >= 0.0));
        assert!((mean - 1.0).abs() < 0.02, "{mean}");
        assert!((variance - 1.0).abs() < 0.05, "{variance}");
    }
}
