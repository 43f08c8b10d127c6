//! The exact form: integer units in which a tick drains and a token costs a whole number.
//!
//! One nanosecond drains `drain` units and one token costs `price` units, `count` and `period`
//! reduced by their gcd, so nothing is ever rounded while time passes and nothing can drift.
//! A leaky bucket is this debt as it is, and a token bucket the same one seen from the other side.

use crate::{LimitError, Rate, Timestamp};

/// How much is owed, and when that was true. The default owes nothing. A limit says what a unit is with
/// `units_per_token`.
///
/// ```
/// use tollgate_core::{Arithmetic, LeakyBucket, BucketLevel, Rate, Timestamp};
///
/// let limit = LeakyBucket::new(Rate::per_second(10))?;
/// let as_of = Timestamp::from_secs(1);
/// let kept = BucketLevel { debt: 3 * limit.units_per_token(), as_of };
/// assert_eq!(limit.level(&kept, as_of), 3.0);
/// # Ok::<(), tollgate_core::LimitError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BucketLevel {
    /// Units that have not drained yet.
    pub debt: u128,
    /// The time of that debt; never moves back.
    pub as_of: Timestamp,
}

/// A token is at least this many units, so that a live rate change, the one place that rounds,
/// loses less than a billionth of a token.
const LEAST_PRICE: u128 = 1 << 32;

/// Debt beyond the capacity comes from reservations; both together stay far below 2^128.
pub(crate) const LARGEST_CAPACITY: u128 = 1 << 126;

const SLOWEST_NANOS_PER_TOKEN: u128 = 1_000_000_000_000_000 * 1_000_000_000;
const FASTEST_TOKENS_PER_NANO: u128 = 30;

/// Refuses what lies outside 10⁻¹⁵ to 3·10¹⁰ per second.
pub(crate) fn check_rate_range(rate: Rate) -> Result<(), LimitError> {
    let Some((count, period)) = rate.count_and_nanos() else {
        return Ok(());
    };
    if period == 0 {
        return Err(LimitError::NoPeriod { rate });
    }
    let count = u128::from(count);
    let too_slow = count
        .checked_mul(SLOWEST_NANOS_PER_TOKEN)
        .is_some_and(|longest| period > longest);
    let too_fast = count > period.saturating_mul(FASTEST_TOKENS_PER_NANO);
    if too_slow || too_fast {
        return Err(LimitError::OutOfRange { rate });
    }
    Ok(())
}

/// The units that one nanosecond drains, that one token costs, and that may be owed when a request passes.
pub(crate) fn compile_units(rate: Rate) -> Result<[u128; 3], LimitError> {
    check_rate_range(rate)?;
    let (drain, price) = match rate.count_and_nanos() {
        None => (0, LEAST_PRICE),
        Some((count, period)) => {
            let shared = greatest_common_divisor(u128::from(count), period);
            let (drain, price) = (u128::from(count) / shared, period / shared);
            let scale = LEAST_PRICE.div_ceil(price).next_power_of_two();
            (drain * scale, price * scale)
        }
    };
    let capacity = price
        .checked_mul(u128::from(rate.burst_size()))
        .filter(|capacity| *capacity <= LARGEST_CAPACITY)
        .ok_or_else(|| LimitError::BurstTooLarge {
            rate,
            largest_burst: u64::try_from(LARGEST_CAPACITY / price).unwrap_or(u64::MAX),
        })?;
    Ok([drain, price, capacity])
}

fn greatest_common_divisor(mut a: u128, mut b: u128) -> u128 {
    while b > 0 {
        (a, b) = (b, a % b);
    }
    a
}
