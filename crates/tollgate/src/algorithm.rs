//! The six algorithms of a limit, by name.

use tollgate_core::WindowAlignment;

/// The algorithm of a limiter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Algorithm {
    /// One atomic word, lock-free: the default.
    #[default]
    Gcra,
    /// Exact, with partial refunds; takes rates from 10⁻¹⁵/s to 3·10¹⁰/s.
    TokenBucket,
    /// The exact meter: its level leaks at the rate.
    LeakyBucket,
    /// A count that restarts at each boundary, or one window after the first hit.
    FixedWindow(WindowAlignment),
    /// The log of every admitted hit: never more than the count in any window.
    SlidingLog,
    /// Two counts that approximate a sliding window.
    SlidingCounter,
}
