//! The one product that needs more than 128 bits: rescaling a debt at a live rate change.

/// `ceil(a · b / divisor)`, saturating at `u128::MAX`; `divisor` is not zero.
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
fn wide_mul(a: u128, b: u128) -> (u128, u128) {
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
