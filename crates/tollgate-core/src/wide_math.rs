//! Products and quotients of units: fast where they fit 64 bits, which is nearly always. Two need more than 128 bits:
//! rescaling a debt at a rate change, and comparing two rates.

/// `a · b`; `None` when that overflows.
#[inline]
pub(crate) fn mul(a: u128, b: u64) -> Option<u128> {
    match u64::try_from(a) {
        Ok(a) => Some(u128::from(a) * u128::from(b)),
        Err(_) => a.checked_mul(u128::from(b)),
    }
}

/// `a / b`, rounded down; `b` is not zero.
#[inline]
pub(crate) fn div(a: u128, b: u128) -> u128 {
    match (u64::try_from(a), u64::try_from(b)) {
        (Ok(a), Ok(b)) => u128::from(a / b),
        _ => a / b,
    }
}

/// `a / b`, rounded up; `b` is not zero.
#[inline]
pub(crate) fn div_ceil(a: u128, b: u128) -> u128 {
    match (u64::try_from(a), u64::try_from(b)) {
        (Ok(a), Ok(b)) => u128::from(a.div_ceil(b)),
        _ => a.div_ceil(b),
    }
}

/// `ceiling(a · b / divisor)`, saturating at `u128::MAX`; `divisor` is not zero.
pub(crate) fn mul_div_ceil(a: u128, b: u128, divisor: u128) -> u128 {
    debug_assert!(divisor > 0);
    if let Some(product) = a.checked_mul(b) {
        return product.div_ceil(divisor);
    }
    let (high, low) = wide_mul(a, b);
    let Some((quotient, remainder)) = wide_div(high, low, divisor) else {
        return u128::MAX;
    };
    quotient.saturating_add(u128::from(remainder > 0))
}

/// The 256-bit product as (high, low), schoolbook over 64-bit halves.
pub(crate) fn wide_mul(a: u128, b: u128) -> (u128, u128) {
    const HALF: u128 = u64::MAX as u128;
    let (a_high, a_low) = (a >> 64, a & HALF);
    let (b_high, b_low) = (b >> 64, b & HALF);
    let low = a_low * b_low;
    let mid_one = a_high * b_low + (low >> 64);
    let mid_two = a_low * b_high + (mid_one & HALF);
    let high = a_high * b_high + (mid_one >> 64) + (mid_two >> 64);
    (high, (mid_two << 64) | (low & HALF))
}

/// Divides a 256-bit number by shift and subtract; `None` when the quotient needs more than 128 bits.
fn wide_div(high: u128, low: u128, divisor: u128) -> Option<(u128, u128)> {
    if high >= divisor {
        return None;
    }
    let (mut remainder, mut quotient) = (high, 0u128);
    for bit in (0..128).rev() {
        let carry = remainder >> 127;
        remainder = (remainder << 1) | ((low >> bit) & 1);
        quotient <<= 1;
        if carry == 1 || remainder >= divisor {
            remainder = remainder.wrapping_sub(divisor);
            quotient |= 1;
        }
    }
    Some((quotient, remainder))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agrees_with_plain_arithmetic_where_that_fits() {
        for (a, b, d) in [(7, 3, 2), (0, 9, 4), (1 << 63, 1 << 63, 3), (5, 5, 25)] {
            assert_eq!(mul_div_ceil(a, b, d), (a * b).div_ceil(d));
        }
    }

    #[test]
    fn quick_ways_agree_with_the_long_one() {
        let values = [1, 2, 3, 7, (1 << 63) + 5, (1 << 64) - 1, 1 << 64, 1 << 90];
        for a in values {
            for b in values {
                assert_eq!(div(a, b), a / b);
                assert_eq!(div_ceil(a, b), a.div_ceil(b));
                if let Ok(narrow) = u64::try_from(b) {
                    assert_eq!(mul(a, narrow), a.checked_mul(b));
                }
            }
        }
    }

    #[test]
    fn carries_through_256_bits() {
        let big = u128::MAX - 4;
        assert_eq!(mul_div_ceil(big, 1 << 100, 1 << 100), big);
        assert_eq!(mul_div_ceil(big, big, big), big);
        assert_eq!(mul_div_ceil(big, 3, 2), u128::MAX);
        assert_eq!(
            mul_div_ceil(1 << 100, (1 << 100) + 1, 1 << 99),
            (1 << 101) + 2
        );
        assert_eq!(
            mul_div_ceil((1 << 100) + 1, 1 << 100, (1 << 100) + 3),
            (1 << 100) - 1
        );
    }
}
