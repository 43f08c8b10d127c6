//! The exact form: integer units in which a tick drains and a token costs a whole number.
//!
//! One nanosecond drains `drain` units and one token costs `price` units: `count` and `period` divided by their gcd.
//! Both are whole numbers, so time passes without rounding, and nothing drifts. A leaky bucket is this debt; a token
//! bucket is the same debt, subtracted from the burst.

use crate::{LimitError, Rate, Timestamp};

/// A debt, and the time at which it was computed. The default owes nothing. The method `units_per_token` of a limit
/// tells how many units a token has.
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

/// A token is at least this many units. Only a live rate change rounds, and with this many units it loses less than a
/// billionth of a token.
const LEAST_PRICE: u128 = 1 << 32;

/// Reservations add debt beyond the capacity. The sum of both stays far below 2^128.
pub(crate) const LARGEST_CAPACITY: u128 = 1 << 126;

const SLOWEST_NANOS_PER_TOKEN: u128 = 1_000_000_000_000_000 * 1_000_000_000;
const FASTEST_TOKENS_PER_NANO: u128 = 30;

/// Rejects rates outside 10⁻¹⁵ to 3·10¹⁰ per second.
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

/// Returns the units that one nanosecond drains, the units of one token, and the capacity in units.
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
