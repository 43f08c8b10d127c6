//! Errors of limits that can't be built: the invalid value, and the valid range.

use core::fmt;

use crate::Rate;

/// A limit that can't be built: mostly a [`Rate`] that an algorithm can't represent exactly enough to guarantee its
/// bound.
///
/// The message names the rate, the bound that it exceeds, and an alternative.
///
/// ```
/// use tollgate_core::{Arithmetic, FixedWindow, Rate};
///
/// let error = FixedWindow::new(Rate::per_second(100).burst(200)).unwrap_err();
/// assert_eq!(
///     error.to_string(),
///     "rate \"100/s burst 200\": a fixed window admits its count, 100, and no other burst; \
///      leave the burst out, or use a token bucket or GCRA"
/// );
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LimitError {
    /// A positive count in a period of zero, or of less than a nanosecond.
    NoPeriod {
        /// The requested rate.
        rate: Rate,
    },
    /// The rate is outside 10⁻¹⁵ to 3·10¹⁰ per second, the range of the exact form.
    OutOfRange {
        /// The requested rate.
        rate: Rate,
    },
    /// Burst × interval is above two years, the most that one 64-bit word can represent.
    TooLongForOneWord {
        /// The requested rate.
        rate: Rate,
        /// The largest burst that one word can represent at this interval.
        largest_burst: u64,
    },
    /// Burst × period overflows the exact form's state.
    BurstTooLarge {
        /// The requested rate.
        rate: Rate,
        /// The largest burst that the exact form can represent at this rate.
        largest_burst: u64,
    },
    /// A window algorithm was given a burst that isn't its count.
    BurstIsNotCount {
        /// The requested rate.
        rate: Rate,
        /// The name of the algorithm.
        algorithm: &'static str,
    },
    /// A sliding counter was given a burst below its count or above 1.5 × its count.
    BurstBeyondCounter {
        /// The requested rate.
        rate: Rate,
    },
    /// A window of zero length or longer than 292 years.
    WindowOutOfRange {
        /// The requested rate.
        rate: Rate,
    },
    /// The algorithm of a tier differs from the algorithm of the limiter.
    TierAlgorithmMismatch {
        /// The rate of the tier.
        rate: Rate,
        /// The algorithm of the tier.
        tier: &'static str,
        /// The algorithm of the limiter.
        limiter: &'static str,
    },
    /// A limiter doesn't support a policy for new keys in a full table.
    UnsupportedWhenFull {
        /// The requested policy.
        policy: &'static str,
        /// The type of the limiter.
        limiter: &'static str,
        /// The policies that the limiter supports.
        instead: &'static str,
    },
}

impl fmt::Display for LimitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoPeriod { rate } => write!(
                f,
                "rate \"{rate}\" has a period of zero: give it a period, or use \"unlimited\" if no limit is meant"
            ),
            Self::OutOfRange { rate } => write!(
                f,
                "rate \"{rate}\" can't be represented: a limit takes 1 per 10^15 s up to \
                 30 per ns (3*10^10/s), or \"zero\" or \"unlimited\""
            ),
            Self::TooLongForOneWord {
                rate,
                largest_burst,
            } => write_too_long(f, rate, *largest_burst),
            Self::BurstTooLarge {
                rate,
                largest_burst,
            } => write!(
                f,
                "rate \"{rate}\": burst x period overflows the exact form's state; \
                 use a burst of at most {largest_burst}"
            ),
            Self::BurstIsNotCount { rate, algorithm } => write!(
                f,
                "rate \"{rate}\": a {algorithm} admits its count, {}, and no other burst; \
                 leave the burst out, or use a token bucket or GCRA",
                rate.count()
            ),
            Self::BurstBeyondCounter { rate } => write!(
                f,
                "rate \"{rate}\": a sliding counter takes a burst from its count, {}, up to 1.5 x \
                 of it, {}: it knows the previous window only as one number and assumes an even \
                 spread, so a larger burst would be undercounted as it slides out; \
                 use a token bucket or GCRA",
                rate.count(),
                crate::window_states::largest_sliding_burst(rate.count())
            ),
            Self::WindowOutOfRange { rate } => {
                write!(f, "rate \"{rate}\": a window lasts from 1 ns to 292 years")
            }
            Self::TierAlgorithmMismatch {
                rate,
                tier,
                limiter,
            } => write!(
                f,
                "tier \"{rate}\" was made for {tier}, and this limiter counts by {limiter}; \
                 make the tier with the limiter's algorithm"
            ),
            Self::UnsupportedWhenFull {
                policy,
                limiter,
                instead,
            } => write!(
                f,
                "{limiter} can't treat new keys at its cap as WhenFull::{policy} says; use {instead}"
            ),
        }
    }
}

/// Writes the error of a burst that GCRA's word can't represent. A `largest_burst` of 0 means that not even one
/// interval fits.
fn write_too_long(f: &mut fmt::Formatter<'_>, rate: &Rate, largest_burst: u64) -> fmt::Result {
    if largest_burst == 0 {
        return write!(
            f,
            "rate \"{rate}\": one interval is above two years, more than GCRA's one word holds; \
             use the exact form (a token bucket or leaky bucket)"
        );
    }
    write!(
        f,
        "rate \"{rate}\": burst x interval is above two years, more than GCRA's one word \
         holds; use a burst of at most {largest_burst}, or the exact form \
         (a token bucket or leaky bucket)"
    )
}

impl core::error::Error for LimitError {}
