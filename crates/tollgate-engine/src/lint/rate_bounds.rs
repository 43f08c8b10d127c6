//! Decides which of two limits on the same requests always denies first. The arithmetic is in whole numbers, and in
//! doubt the answer is no.

use std::time::Duration;

use tollgate::quota::Quota;
use tollgate::{Algorithm, Rate, Timestamp, core::WindowAlignment};

use crate::policy::is_bucket;

/// A rate and its algorithm.
#[derive(Clone, Copy, Debug)]
pub(super) struct CountedRate {
    rate: Rate,
    algorithm: Algorithm,
}

impl CountedRate {
    pub(super) const fn new(rate: Rate, algorithm: Algorithm) -> Self {
        Self { rate, algorithm }
    }

    /// Whether this rate never denies a request that `other` has allowed.
    pub(super) fn never_refuses_after(&self, other: &Self) -> bool {
        let (Some(own), Some(others)) = (self.rate.period(), other.rate.period()) else {
            return false;
        };
        let slower = scaled(other.rate.count(), own) <= scaled(self.rate.count(), others);
        if self.is_bucket() {
            return slower && other.max_burst() <= u128::from(self.rate.burst_size());
        }
        let whole = own.as_nanos().is_multiple_of(others.as_nanos());
        let fills = match self.algorithm {
            // A whole number of the other's windows fills one of these, so their sums compare directly.
            Algorithm::SlidingLog | Algorithm::FixedWindow(WindowAlignment::Boundary(_)) => whole,
            // Both count in the same windows.
            _ => own == others && self.rate.burst_size() >= other.rate.burst_size(),
        };
        if self.algorithm == other.algorithm && fills {
            return slower;
        }
        let seen = match self.algorithm {
            // The counter weights the last window as if its requests were spread evenly, so requests from early in it
            // may count late. Twice the window bounds that.
            Algorithm::SlidingCounter => own.saturating_mul(2),
            _ => own,
        };
        other
            .max_within(seen)
            .is_some_and(|most| most <= u128::from(self.rate.count()))
    }

    /// An upper bound of the requests that pass within any span of this length.
    fn max_within(&self, span: Duration) -> Option<u128> {
        let period = self.rate.period()?.as_nanos();
        let count = u128::from(self.rate.count());
        if self.is_bucket() {
            let refilled = count.checked_mul(span.as_nanos())?.div_ceil(period);
            return refilled.checked_add(u128::from(self.rate.burst_size()));
        }
        let windows = span.as_nanos().div_ceil(period).checked_add(1)?;
        self.max_in_window().checked_mul(windows)
    }

    /// An upper bound of the requests that pass at one instant.
    fn max_burst(&self) -> u128 {
        if self.is_bucket() {
            u128::from(self.rate.burst_size())
        } else {
            // A burst may straddle the end of one window and the start of the next.
            2 * self.max_in_window()
        }
    }

    /// The most requests that pass in a window. A sliding counter may have a burst above its count.
    fn max_in_window(&self) -> u128 {
        u128::from(self.rate.count().max(self.rate.burst_size()))
    }

    fn is_bucket(&self) -> bool {
        is_bucket(self.algorithm)
    }
}

/// Whether a calendar quota never denies a request that a rate has allowed.
pub(super) fn quota_never_refuses(quota: &Quota, rate: &CountedRate) -> bool {
    // The longest month has 31 days, as January. An hour is added for clocks that are set back.
    let january = Timestamp::from_secs(1_705_000_000);
    let Some((start, end)) = quota.period_at(january) else {
        return false;
    };
    let nanos = end.as_nanos().saturating_sub(start.as_nanos());
    let longest = Duration::from_nanos(nanos) + Duration::from_secs(3_600);
    let most = rate.max_within(longest);
    most.is_some_and(|most| most <= u128::from(quota.count()))
}

/// A count times a period. Saturates only for numbers that no policy file has.
fn scaled(count: u64, period: Duration) -> u128 {
    u128::from(count).saturating_mul(period.as_nanos())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tollgate::Limiter;
    use tollgate::clock::Manual;

    use super::*;

    #[test]
    fn the_first_to_refuse_is_told() {
        let window = Algorithm::FixedWindow(WindowAlignment::default());
        let counted = |text: &str, algorithm| CountedRate {
            rate: text.parse().unwrap(),
            algorithm,
        };
        let bucket = |text: &str| counted(text, Algorithm::Gcra);
        for (this, other, expect) in [
            (bucket("100/s burst 100"), bucket("10/s burst 20"), true),
            (bucket("10/s burst 20"), bucket("10/s burst 20"), true),
            // It allows a larger burst than this.
            (bucket("100/s burst 10"), bucket("10/s burst 20"), false),
            (bucket("1000/h"), bucket("10/s burst 20"), false),
            (bucket("36000/h"), bucket("10/s burst 20"), true),
            (counted("36000/h", window), counted("10/s", window), true),
            (counted("35999/h", window), counted("10/s", window), false),
            (counted("36000/h", window), bucket("10/s burst 20"), false),
            (counted("36020/h", window), bucket("10/s burst 20"), true),
            // A burst may straddle two windows.
            (bucket("20/s"), counted("10/s", window), true),
            (bucket("19/s"), counted("10/s", window), false),
        ] {
            let found = this.never_refuses_after(&other);
            assert_eq!(found, expect, "{this:?} {other:?}");
        }
    }

    #[test]
    fn a_quota_above_what_a_rate_can_use_is_never_reached() {
        let rate = CountedRate {
            rate: Rate::per_second(1),
            algorithm: Algorithm::Gcra,
        };
        // A day of 25 hours has 90,000 seconds, and the burst adds 1.
        assert!(quota_never_refuses(&Quota::per_day(90_001), &rate));
        assert!(!quota_never_refuses(&Quota::per_day(90_000), &rate));
        assert!(quota_never_refuses(&Quota::per_month(2_682_001), &rate));
        assert!(!quota_never_refuses(&Quota::per_month(2_682_000), &rate));
    }

    fn counted(most: u64) -> impl Strategy<Value = CountedRate> {
        let algorithms = [
            Algorithm::TokenBucket,
            Algorithm::LeakyBucket,
            Algorithm::FixedWindow(WindowAlignment::default()),
            Algorithm::SlidingLog,
            Algorithm::SlidingCounter,
        ];
        let algorithm = prop::sample::select(algorithms.to_vec());
        let rate = (1..most, 1..6u64, 0..most);
        (algorithm, rate).prop_map(|(algorithm, (count, period, more))| {
            let rate = Rate::new(count, Duration::from_secs(period));
            let rate = match algorithm {
                Algorithm::TokenBucket | Algorithm::LeakyBucket => rate.burst(1 + more),
                Algorithm::SlidingCounter => rate.burst(count + more.min(count / 2)),
                _ => rate,
            };
            CountedRate { rate, algorithm }
        })
    }

    fn limiter(counted: CountedRate) -> Limiter<Manual> {
        let builder = Limiter::builder(counted.rate).algorithm(counted.algorithm);
        builder.clock(Manual::new()).build().expect("a limiter")
    }

    proptest! {
        #![proptest_config(ProptestConfig {
            cases: 4_000,
            failure_persistence: None,
            ..ProptestConfig::default()
        })]

        #[test]
        fn what_never_refuses_lets_all_pass_that_the_other_did(
            this in counted(60),
            other in counted(12),
            steps in prop::collection::vec((0..8u64, 1..15u32), 1..40),
        ) {
            if !this.never_refuses_after(&other) {
                return Ok(());
            }
            let (judge, first) = (limiter(this), limiter(other));
            let mut now = 0;
            for (quarters, hits) in steps {
                now += quarters * 250;
                let time = Timestamp::from_nanos(now * 1_000_000);
                for _ in 0..hits {
                    if first.check_at(time, 1).is_allowed() {
                        prop_assert!(judge.check_at(time, 1).is_allowed(), "at {now} ms");
                    }
                }
            }
        }
    }
}
