//! The states of windows: one count, or the two counts of a sliding counter.

use crate::Timestamp;

/// The state of a [`FixedWindow`](crate::FixedWindow): the count since the window began.
///
/// ```
/// use tollgate_core::{Arithmetic, FixedWindow, Rate, Timestamp, WindowCount};
///
/// let limit = FixedWindow::new(Rate::per_minute(5))?;
/// let window = WindowCount { start: Timestamp::from_secs(60), count: 3 };
/// assert_eq!(limit.remaining(&window, Timestamp::from_secs(90)), 2);
/// # Ok::<(), tollgate_core::LimitError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WindowCount {
    /// The start of the window.
    pub start: Timestamp,
    /// The hits since then.
    pub count: u64,
}

/// The state of a [`SlidingCounter`](crate::SlidingCounter): the count of the window that began at `start`, and the
/// count of the window before it.
///
/// ```
/// use tollgate_core::{Arithmetic, SlidingCounts, Rate, SlidingCounter, Timestamp};
///
/// let limit = SlidingCounter::new(Rate::per_second(100))?;
/// let counts = SlidingCounts { start: Timestamp::from_secs(7), previous: 80, current: 10 };
/// // HalfOpenState of the previous 80 are in view, and the current 10.
/// assert_eq!(limit.remaining(&counts, Timestamp::from_millis(7_500)), 50);
/// # Ok::<(), tollgate_core::LimitError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SlidingCounts {
    /// The start of the current window.
    pub start: Timestamp,
    /// The hits in the window before the current one.
    pub previous: u64,
    /// The hits in the current window.
    pub current: u64,
}

/// The largest burst that a sliding counter of this count takes: 1.5 ×.
pub(crate) const fn largest_sliding_burst(count: u64) -> u64 {
    count.saturating_add(count / 2)
}
