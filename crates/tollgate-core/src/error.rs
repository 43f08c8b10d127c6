//! Why a limit could not be built: what was asked, and what can be had.

use core::fmt;

use crate::Rate;

/// A limit that can't be built: mostly a [`Rate`] that an algorithm can't represent exactly enough to
/// keep its laws.
///
/// The text names the rate, the bound it crossed and what to use instead.
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
        /// The rate that was asked for.
        rate: Rate,
    },
    /// Outside 10⁻¹⁵ to 3·10¹⁰ per second, what the exact form takes.
    OutOfRange {
        /// The rate that was asked for.
        rate: Rate,
    },
    /// Burst × interval is above two years, more than one 64-bit word can carry.
    TooLongForOneWord {
        /// The rate that was asked for.
        rate: Rate,
        /// The largest burst that one word carries at this interval.
        largest_burst: u64,
    },
    /// Burst × period overflows the exact form's state.
    BurstTooLarge {
        /// The rate that was asked for.
        rate: Rate,
        /// The largest burst that the exact form carries at this rate.
        largest_burst: u64,
    },
    /// A window algorithm was given a burst that isn't its count.
    BurstIsNotCount {
        /// The rate that was asked for.
        rate: Rate,
        /// What the algorithm is called.
        algorithm: &'static str,
    },
    /// A sliding counter was given a burst below its count or above 1.5 × its count.
    BurstBeyondCounter {
        /// The rate that was asked for.
        rate: Rate,
    },
    /// A window of zero length or longer than 292 years.
    WindowOutOfRange {
        /// The rate that was asked for.
        rate: Rate,
    },
    /// A tier was made for another algorithm than that of the limiter it was given to.
    TierAlgorithmMismatch {
        /// The rate of the tier.
        rate: Rate,
        /// What the tier was made for.
        tier: &'static str,
        /// What the limiter counts by.
        limiter: &'static str,
    },
    /// A limiter was told to treat new keys at its cap in a way that it can't.
    UnsupportedWhenFull {
        /// What it was told.
        policy: &'static str,
        /// Which sort of limiter.
        limiter: &'static str,
        /// What it can do instead.
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
                "{limiter} can't treat new keys at its cap as AtCap::{policy} says; use {instead}"
            ),
        }
    }
}

/// For a rate of which GCRA's word can't hold the burst; or not even one interval, if no burst is small enough.
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
