//! A limit as whole numbers below 2^53, by which the scripts decide.

use std::time::Duration;

use tollgate::core::{self, Arithmetic as _};
use tollgate::quota::Quota;
use tollgate::{Algorithm, Decision, Rate, Timestamp, core::WindowAlignment};
use tollgate_engine::backend::{CarryOver, Limit, LimitKind};

use super::{StoreKind, to_micros_ceil};
use crate::error::StoreLimitError;
use crate::local_limits::UnreportedUsage;

/// Doubles are exact below this.
const MAX_EXACT_INTEGER: u128 = 1 << 53;
/// Two windows and the time since 1970 stay exact.
const MAX_WINDOW_MICROS: u128 = 1 << 51;
/// Windows that begin at the first hit: −1 for the scripts.
pub(super) const FIRST_HIT_PHASE: u64 = u64::MAX;

/// A limit as the scripts read it.
#[derive(Clone, Debug)]
pub(crate) enum LimitForm {
    /// The store isn't needed: the limit allows everything, or nothing.
    Known(core::SlidingLog),
    Stored(LimitParams),
    /// The boundaries come with each query.
    Calendar(Box<Quota>),
}

/// The state under a key, and the parameters for a decision.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct LimitParams {
    pub(crate) kind: StoreKind,
    pub(crate) values: [u64; 5],
    /// The most that can pass at one instant.
    pub(crate) max_burst: u64,
}

impl LimitForm {
    /// A limit with the way its keys are carried over when it changes; `life` as for [`new`](Self::new).
    pub(crate) fn from_limit(limit: &Limit, life: Duration) -> Result<Self, StoreLimitError> {
        match (limit.carry_over(), limit.kind()) {
            (CarryOver::Time, LimitKind::Rate { rate, .. }) => {
                LimitParams::arrival(*rate).map(Self::Stored)
            }
            (_, kind) => Self::new(kind, life),
        }
    }

    /// `life` is how long a permit is held without a renewal.
    pub(crate) fn new(limit: &LimitKind, life: Duration) -> Result<Self, StoreLimitError> {
        match limit {
            LimitKind::Rate { rate, algorithm } => Self::from_rate(*rate, *algorithm),
            LimitKind::Quota(quota) => Self::from_quota(quota),
            LimitKind::Concurrency(limit) => {
                Ok(Self::Stored(LimitParams::slots(u64::from(*limit), life)))
            }
            other => Err(StoreLimitError::not_a_level("a limit in a store", other)),
        }
    }

    fn from_rate(rate: Rate, algorithm: Algorithm) -> Result<Self, StoreLimitError> {
        // GCRA is stored in the exact form, which has room for more than one word does.
        match algorithm {
            Algorithm::Gcra => Algorithm::LeakyBucket.check_rate(rate)?,
            _ => algorithm.check_rate(rate)?,
        }
        let stores_once = rate.is_zero() && algorithm == Algorithm::TokenBucket;
        let Some(period) = rate.period().filter(|_| !rate.is_zero()) else {
            return if stores_once {
                LimitParams::level(rate, 0, 1).map(Self::Stored)
            } else {
                Ok(Self::Known(core::SlidingLog::new(rate)?))
            };
        };
        let nanos = period.as_nanos();
        let count = u128::from(rate.count());
        let numbers = match algorithm {
            Algorithm::FixedWindow(align) => LimitParams::window(rate, nanos, align)?,
            Algorithm::SlidingCounter => LimitParams::counter(rate, nanos)?,
            Algorithm::SlidingLog => LimitParams::windowed_params(StoreKind::Log, rate, nanos)?,
            _ => {
                // A microsecond drains `count · 1000 / nanos` tokens: in whole units, over their gcd.
                let (drain, price) = (count * 1000, nanos);
                let shared = gcd(drain, price);
                LimitParams::level(rate, drain / shared, price / shared)?
            }
        };
        Ok(Self::Stored(numbers))
    }

    fn from_quota(quota: &Quota) -> Result<Self, StoreLimitError> {
        if quota.is_unlimited() {
            return Ok(Self::Known(core::SlidingLog::new(Rate::unlimited())?));
        }
        let limit = check_exact(u128::from(quota.count()), || {
            too_large(quota, "its count", "use a smaller one")
        })?;
        match quota.rolling_period() {
            None => Ok(Self::Calendar(Box::new(quota.clone()))),
            Some(period) => {
                let five = [limit, to_micros_ceil(period).max(1), 0, 0, 0];
                Ok(Self::Stored(LimitParams::new(
                    StoreKind::Rolling,
                    five,
                    limit,
                )))
            }
        }
    }

    /// The parameters as of a time on the store's clock, which calendars need.
    pub(crate) fn params_at(&self, now: u64) -> Option<LimitParams> {
        match self {
            Self::Known(_) => None,
            Self::Stored(numbers) => Some(*numbers),
            Self::Calendar(quota) => Some(LimitParams::calendar(quota, now)),
        }
    }

    /// The parameters of a level: GCRA or a bucket.
    pub(crate) fn level(&self) -> Option<LimitParams> {
        match self {
            Self::Stored(numbers) if numbers.kind == StoreKind::Level => Some(*numbers),
            _ => None,
        }
    }

    /// The decision of a limit that needs no state.
    pub(crate) fn known_decision(&self, cost: u64) -> Option<Decision> {
        match self {
            Self::Known(limit) => {
                Some(limit.decide(&mut Default::default(), Timestamp::ZERO, cost))
            }
            _ => None,
        }
    }
}

impl LimitParams {
    const fn new(kind: StoreKind, five: [u64; 5], limit: u64) -> Self {
        Self {
            kind,
            values: five,
            max_burst: limit,
        }
    }

    /// A concurrency limit: this many permits, each held for this long without a renewal.
    pub(crate) fn slots(most: u64, life: Duration) -> Self {
        Self::new(
            StoreKind::Concurrency,
            [most, to_micros_ceil(life), 0, 0, 0],
            most,
        )
    }

    fn level(rate: Rate, drain: u128, price: u128) -> Result<Self, StoreLimitError> {
        let capacity = price.saturating_mul(u128::from(rate.burst_size()));
        let instead = "use a smaller burst, or a count that shares a factor with the period";
        let error = || too_large(&rate, "its burst times its reduced period", instead);
        let exact = |number| check_exact(number, error);
        let five = [exact(price)?, exact(drain)?, exact(capacity)?, 0, 0];
        Ok(Self::new(StoreKind::Level, five, rate.burst_size()))
    }

    /// The parameters of a limit by arrival times: the tolerance and the time of one token, each as whole
    /// microseconds and the nanoseconds beyond them.
    fn arrival(rate: Rate) -> Result<Self, StoreLimitError> {
        let period = rate.period().filter(|_| !rate.is_zero());
        let Some(period) = period else {
            return Err(StoreLimitError::UnsupportedAlgorithm {
                what: "an arrival time",
                limit: rate.to_string(),
            });
        };
        let emission = period.as_nanos().div_ceil(u128::from(rate.count()));
        let tolerance = emission.saturating_mul(u128::from(rate.burst_size()));
        let instead = "use a smaller burst or a shorter period";
        let error = || too_large(&rate, "its burst times its interval", instead);
        let exact = |number| check_exact(number, error);
        let [most, most_rest] = [exact(tolerance / 1_000)?, exact(tolerance % 1_000)?];
        let [each, each_rest] = [exact(emission / 1_000)?, exact(emission % 1_000)?];
        let five = [most, most_rest, each, each_rest, 0];
        Ok(Self::new(StoreKind::Arrival, five, rate.burst_size()))
    }

    /// The tolerance and the time of one token of a limit by arrival times, in nanoseconds.
    pub(super) fn arrival_nanos(&self) -> (u128, u128) {
        let [most, most_rest, each, each_rest, _] = self.values.map(u128::from);
        (most * 1_000 + most_rest, each * 1_000 + each_rest)
    }

    /// A key's debt: in the units of a level, or in microseconds until its arrival time.
    pub(crate) fn owed_units(&self, owed: &UnreportedUsage) -> u64 {
        if self.kind == StoreKind::Arrival {
            let (most, each) = self.arrival_nanos();
            let each = u64::try_from(each.div_ceil(1_000)).unwrap_or(u64::MAX);
            let time = owed.tokens(each).min(most.div_ceil(1_000));
            return u64::try_from(time).unwrap_or(u64::MAX);
        }
        let [price, _, capacity, ..] = self.values;
        let units = u64::try_from(owed.tokens(price)).unwrap_or(capacity);
        units.min(capacity)
    }

    fn windowed_params(kind: StoreKind, rate: Rate, nanos: u128) -> Result<Self, StoreLimitError> {
        if !nanos.is_multiple_of(1000) {
            return Err(StoreLimitError::TooFine { rate });
        }
        let micros = nanos / 1000;
        let limit = check_exact(u128::from(rate.count()) * 4, || {
            too_large(&rate, "four times its count", "use a smaller count")
        })? / 4;
        if micros > MAX_WINDOW_MICROS {
            let what = "its window and the time since 1970, in microseconds,";
            return Err(too_large(&rate, what, "use a window below 71 years"));
        }
        let micros = u64::try_from(micros).unwrap_or(u64::MAX);
        Ok(Self::new(kind, [limit, micros, 0, 0, 0], rate.burst_size()))
    }

    fn window(rate: Rate, nanos: u128, align: WindowAlignment) -> Result<Self, StoreLimitError> {
        let mut numbers = Self::windowed_params(StoreKind::Window, rate, nanos)?;
        numbers.values[2] = match align {
            WindowAlignment::FirstHit => FIRST_HIT_PHASE,
            WindowAlignment::Boundary(boundary) => {
                let phase = u128::from(boundary.as_nanos()) % nanos;
                if !phase.is_multiple_of(1000) {
                    return Err(StoreLimitError::TooFine { rate });
                }
                u64::try_from(phase / 1000).unwrap_or(u64::MAX)
            }
        };
        Ok(numbers)
    }

    fn counter(rate: Rate, nanos: u128) -> Result<Self, StoreLimitError> {
        let Self {
            values: five,
            max_burst: limit,
            ..
        } = Self::windowed_params(StoreKind::Counter, rate, nanos)?;
        let [count, micros, ..] = five;
        let instead = "use a shorter window, or GCRA";
        let error = || too_large(&rate, "its burst times its window in microseconds", instead);
        check_exact((u128::from(limit) + 1) * u128::from(micros), error)?;
        let lent = u128::from(limit.saturating_sub(count)) * u128::from(count);
        let what = "what its burst lends times its count";
        check_exact(lent, || too_large(&rate, what, "leave the burst out"))?;
        Ok(Self::new(
            StoreKind::Counter,
            [count, limit, micros, 0, 0],
            limit,
        ))
    }

    /// The boundaries of the period that contains a time, and of the ones before and after it.
    fn calendar(quota: &Quota, now: u64) -> Self {
        let at = |micros: u64| Timestamp::from_nanos(micros.saturating_mul(1000));
        let span = |micros: u64| {
            let (start, end) = quota.period_at(at(micros)).unwrap_or_default();
            // Boundaries are whole seconds; a time before 1970 becomes 0.
            (start.as_nanos() / 1000, end.as_nanos() / 1000)
        };
        let (start, end) = span(now);
        let (before, _) = span(start.saturating_sub(1));
        let ((_, after), count) = (span(end), quota.count());
        Self::new(
            StoreKind::Calendar,
            [count, before, start, end, after],
            count,
        )
    }
}

fn check_exact(
    number: u128,
    error: impl FnOnce() -> StoreLimitError,
) -> Result<u64, StoreLimitError> {
    match u64::try_from(number) {
        Ok(exact) if number < MAX_EXACT_INTEGER => Ok(exact),
        _ => Err(error()),
    }
}

pub(super) fn too_large(
    limit: &impl std::fmt::Display,
    what: &'static str,
    instead: &'static str,
) -> StoreLimitError {
    StoreLimitError::TooLarge {
        limit: limit.to_string(),
        what,
        instead,
    }
}

fn gcd(mut a: u128, mut b: u128) -> u128 {
    while b > 0 {
        (a, b) = (b, a % b);
    }
    a
}

#[cfg(test)]
mod tests {
    use tollgate::Outcome;

    use super::*;

    fn form(rate: Rate, algorithm: Algorithm) -> Result<LimitForm, StoreLimitError> {
        LimitForm::new(&LimitKind::Rate { rate, algorithm }, Duration::ZERO)
    }

    #[test]
    fn what_reaches_two_to_the_53_is_refused_and_what_does_not_is_kept() {
        let second = |burst| Rate::per_second(1).burst(burst);
        // A token is a million units, which drain at one unit a microsecond.
        let largest = ((1 << 53) - 1) / 1_000_000;
        assert!(form(second(largest), Algorithm::Gcra).is_ok());
        let error = form(second(largest + 1), Algorithm::Gcra).unwrap_err();
        assert_eq!(
            error.to_string(),
            "\"1/s burst 9007199255\" can't be kept exactly in a store whose numbers are whole below \
             2^53: its burst times its reduced period reaches it; use a smaller burst, or a count that \
             shares a factor with the period"
        );
        // Common factors of the count and the period cancel.
        let many = Rate::per_day(10_000_000);
        assert!(form(many, Algorithm::TokenBucket).is_ok());
        assert!(form(Rate::per_day(9_999_991), Algorithm::TokenBucket).is_err());
        let window = Rate::per_day(104_000);
        assert!(form(window, Algorithm::SlidingCounter).is_ok());
        assert!(form(Rate::per_day(105_000), Algorithm::SlidingCounter).is_err());
        assert!(form(Rate::per_day(105_000), Algorithm::SlidingLog).is_ok());
    }

    #[test]
    fn a_window_is_a_whole_number_of_microseconds() {
        let fine = Rate::new(5, Duration::from_nanos(1_500));
        assert!(form(fine, Algorithm::Gcra).is_ok());
        let error = form(fine, Algorithm::SlidingLog).unwrap_err();
        assert_eq!(error, StoreLimitError::TooFine { rate: fine });
        let align = Algorithm::FixedWindow(WindowAlignment::Boundary(Timestamp::from_nanos(7)));
        assert!(form(Rate::per_second(5), align).is_err());
    }

    #[test]
    fn no_limit_and_nothing_need_no_store() {
        let known = |rate, cost| form(rate, Algorithm::Gcra).unwrap().known_decision(cost);
        assert_eq!(known(Rate::unlimited(), 5), Some(Decision::UNLIMITED));
        let nothing = known(Rate::zero(), 1).unwrap();
        assert_eq!((nothing.outcome, nothing.limit), (Outcome::Never, 0));
        // A token bucket that never refills spends its tokens once.
        let stored = form(Rate::zero().burst(3), Algorithm::TokenBucket).unwrap();
        assert!(stored.known_decision(1).is_none());
    }
}
