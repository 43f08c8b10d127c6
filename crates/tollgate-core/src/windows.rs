//! The states of windows: one count, or two that stand for a sliding one.

use crate::Timestamp;

/// The state of a [`FixedWindow`](crate::FixedWindow): how many passed since the window began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Window {
    pub(crate) start: Timestamp,
    pub(crate) count: u64,
}

impl Window {
    /// The window that began at `start` and has counted `count`.
    ///
    /// ```
    /// use tollgate_core::{Arithmetic, FixedWindow, Rate, Timestamp, Window};
    ///
    /// let limit = FixedWindow::new(Rate::per_minute(5))?;
    /// let window = Window::from_parts(Timestamp::from_secs(60), 3);
    /// assert_eq!(limit.remaining(&window, Timestamp::from_secs(90)), 2);
    /// assert_eq!(window.parts(), (Timestamp::from_secs(60), 3));
    /// # Ok::<(), tollgate_core::LimitError>(())
    /// ```
    pub const fn from_parts(start: Timestamp, count: u64) -> Self {
        Self { start, count }
    }

    /// The start and the count: what [`from_parts`](Self::from_parts) takes.
    pub const fn parts(&self) -> (Timestamp, u64) {
        (self.start, self.count)
    }
}

/// The state of a [`SlidingCounter`](crate::SlidingCounter): the count of the window that began at `start`, and of the
/// one before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub(crate) start: Timestamp,
    pub(crate) previous: u64,
    pub(crate) current: u64,
}

impl Counts {
    /// The counts of the window that began at `start` and of the one before it.
    ///
    /// ```
    /// use tollgate_core::{Arithmetic, Counts, Rate, SlidingCounter, Timestamp};
    ///
    /// let limit = SlidingCounter::new(Rate::per_second(100))?;
    /// let counts = Counts::from_parts(Timestamp::from_secs(7), 80, 10);
    /// // Half of the previous 80 are in view, and the current 10.
    /// assert_eq!(limit.remaining(&counts, Timestamp::from_millis(7_500)), 50);
    /// # Ok::<(), tollgate_core::LimitError>(())
    /// ```
    pub const fn from_parts(start: Timestamp, previous: u64, current: u64) -> Self {
        Self {
            start,
            previous,
            current,
        }
    }

    /// When the current window began.
    pub const fn start(&self) -> Timestamp {
        self.start
    }

    /// What passed in the window before the current one.
    pub const fn previous(&self) -> u64 {
        self.previous
    }

    /// What passed in the current window.
    pub const fn current(&self) -> u64 {
        self.current
    }
}

/// The largest burst that a sliding counter of this count takes: 1.5 ×.
pub(crate) const fn largest_burst(count: u64) -> u64 {
    count.saturating_add(count / 2)
}
