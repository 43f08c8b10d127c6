//! A count and the length of its window, shared by the three window algorithms.

use core::fmt;
use core::time::Duration;

use crate::time::duration_nanos;
use crate::{LimitError, Rate, Timestamp};

/// A count and a window length, shared by the three window algorithms.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct WindowLength {
    pub(crate) rate: Rate,
    pub(crate) limit: u64,
    pub(crate) nanos: u64,
}

/// The rate determines all fields.
impl fmt::Debug for WindowLength {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.rate.fmt(f)
    }
}

/// The longest window, so that two of them still fit a timestamp.
const LONGEST_NANOS: u64 = u64::MAX / 2;

impl WindowLength {
    /// The length and count of a rate whose burst must be its count.
    pub(crate) fn with_burst_of_count(
        rate: Rate,
        algorithm: &'static str,
    ) -> Result<Self, LimitError> {
        let span = Self::new(rate)?;
        let count = rate.count();
        if rate.count_and_nanos().is_some() && rate.burst_size() != count {
            return Err(LimitError::BurstIsNotCount { rate, algorithm });
        }
        Ok(span)
    }

    /// The length and count of a rate with any burst. A rate of zero has a count of zero in a window of any length.
    pub(crate) fn new(rate: Rate) -> Result<Self, LimitError> {
        let period = rate.period().unwrap_or(Duration::from_secs(1));
        let nanos = duration_nanos(period);
        if nanos == 0 {
            return Err(LimitError::NoPeriod { rate });
        }
        if nanos > LONGEST_NANOS {
            return Err(LimitError::WindowOutOfRange { rate });
        }
        Ok(Self {
            rate,
            limit: rate.count(),
            nanos,
        })
    }

    /// The duration of this many windows; zero if the rate has no windows.
    pub(crate) fn duration_of(&self, windows: u64) -> Duration {
        match self.rate.period() {
            None => Duration::ZERO,
            // Two of the longest windows fit, so this can't overflow for the callers' one or two.
            Some(_) => Duration::from_nanos(self.nanos * windows),
        }
    }

    /// The start of the window that holds `now`, for windows placed around `boundary`.
    pub(crate) fn window_start(&self, now: Timestamp, boundary: Timestamp) -> Timestamp {
        let phase = boundary.as_nanos() % self.nanos;
        let since = now.as_nanos().saturating_sub(phase) % self.nanos;
        if now.as_nanos() < phase {
            // The origin cuts off the start of this window.
            return Timestamp::ZERO;
        }
        Timestamp::from_nanos(now.as_nanos() - since)
    }
}
