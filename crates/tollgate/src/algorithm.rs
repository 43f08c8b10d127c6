//! How a limit counts: the six algorithms, by name.

use tollgate_core::WindowAlignment;

/// How a limiter counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Algorithm {
    /// One atomic word, lock-free: the default.
    #[default]
    Gcra,
    /// Exact, with partial refunds; takes rates from 10⁻¹⁵/s to 3·10¹⁰/s.
    TokenBucket,
    /// The exact meter whose level leaks at the rate.
    LeakyBucket,
    /// A count that starts again at each boundary, or one window after the first hit.
    FixedWindow(WindowAlignment),
    /// Every admitted hit is remembered: never more than the count in any window.
    SlidingLog,
    /// Two counts stand for a sliding window.
    SlidingCounter,
}
