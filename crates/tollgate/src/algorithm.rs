//! How a limit counts: the six algorithms, by name.

use tollgate_core::{
    Align, Arithmetic as _, FixedWindow, Gcra, LeakyBucket, LimitError, Rate, SlidingCounter,
    SlidingLog, TokenBucket,
};

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
    FixedWindow(Align),
    /// Every admitted hit is remembered: never more than the count in any window.
    SlidingLog,
    /// Two counts stand for a sliding window.
    SlidingCounter,
}

impl Algorithm {
    /// Whether it can represent a rate.
    ///
    /// # Errors
    /// Why not, and what it can.
    ///
    /// ```
    /// use tollgate::{Algorithm, Rate};
    ///
    /// let slow = Rate::per_day(1).burst(1_000);
    /// assert!(Algorithm::Gcra.takes(slow).is_err());
    /// assert!(Algorithm::TokenBucket.takes(slow).is_ok());
    /// ```
    pub fn takes(self, rate: Rate) -> Result<(), LimitError> {
        match self {
            Self::Gcra => Gcra::new(rate).map(drop),
            Self::TokenBucket => TokenBucket::new(rate).map(drop),
            Self::LeakyBucket => LeakyBucket::new(rate).map(drop),
            Self::FixedWindow(_) => FixedWindow::new(rate).map(drop),
            Self::SlidingLog => SlidingLog::new(rate).map(drop),
            Self::SlidingCounter => SlidingCounter::new(rate).map(drop),
        }
    }
}
