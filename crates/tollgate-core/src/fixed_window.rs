//! Fixed window: a count that starts again at each boundary, or one window after the first hit.

use core::time::Duration;

use crate::arithmetic::{Charge, LaterCharges, UndoData, sealed};
use crate::window_length::WindowLength;
use crate::window_states::WindowCount;
use crate::{Arithmetic, LimitError, Rate, Timestamp};

/// At most `count` in each window of one period.
///
/// A window is half-open: a hit exactly one period after its start belongs to the next. Twice the
/// count may pass around a boundary; choose a sliding algorithm where that matters.
///
/// ```
/// use core::time::Duration;
/// use tollgate_core::{Arithmetic, FixedWindow, Rate, Timestamp};
///
/// let limit = FixedWindow::new(Rate::per_minute(2))?;
/// let mut window = Default::default();
/// let at = Timestamp::from_secs;
/// assert!(limit.decide(&mut window, at(59), 2).is_allowed());
/// assert_eq!(limit.decide(&mut window, at(59), 1).wait_or_max(), Duration::from_secs(1));
/// assert!(limit.decide(&mut window, at(60), 2).is_allowed());
/// # Ok::<(), tollgate_core::LimitError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FixedWindow {
    span: WindowLength,
    align: WindowAlignment,
}

/// Where the windows of a [`FixedWindow`] begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WindowAlignment {
    /// At this time and whole windows before and after it.
    Boundary(Timestamp),
    /// At the first hit that comes while no window is open.
    FirstHit,
}

impl Default for WindowAlignment {
    fn default() -> Self {
        Self::Boundary(Timestamp::ZERO)
    }
}

impl FixedWindow {
    /// The same limit with another window alignment.
    #[must_use]
    pub const fn with_alignment(self, align: WindowAlignment) -> Self {
        Self {
            span: self.span,
            align,
        }
    }

    /// When this window ends; `None` if that lies beyond the last representable time.
    fn window_end(&self, window: &WindowCount) -> Option<Timestamp> {
        let start = window.start.as_nanos();
        let first_boundary = match self.align {
            WindowAlignment::Boundary(boundary) => boundary.as_nanos() % self.span.nanos,
            WindowAlignment::FirstHit => 0,
        };
        if start < first_boundary {
            // The origin cut off the start of this window, so it ends at the first boundary after the origin.
            return Some(Timestamp::from_nanos(first_boundary));
        }
        start
            .checked_add(self.span.nanos)
            .map(Timestamp::from_nanos)
    }

    /// The alignment of its windows.
    pub const fn alignment(&self) -> WindowAlignment {
        self.align
    }

    /// The window open at `now`. A time before the state's window counts in that window.
    fn open_window_at(&self, window: &WindowCount, now: Timestamp) -> WindowCount {
        let never_used = window.count == 0;
        if !never_used && self.window_end(window).is_none_or(|end| now < end) {
            return *window;
        }
        if self.align != WindowAlignment::FirstHit && now < window.start {
            return *window;
        }
        WindowCount {
            start: self.new_window_start(now),
            count: 0,
        }
    }

    /// The start of a window that is opened at `now`.
    fn new_window_start(&self, now: Timestamp) -> Timestamp {
        match self.align {
            WindowAlignment::FirstHit => now,
            WindowAlignment::Boundary(boundary) => self.span.window_start(now, boundary),
        }
    }
}

impl sealed::Sealed for FixedWindow {}

impl Arithmetic for FixedWindow {
    type State = WindowCount;
    type Floor = Timestamp;

    fn new(rate: Rate) -> Result<Self, LimitError> {
        Ok(Self {
            span: WindowLength::with_burst_of_count(rate, "fixed window")?,
            align: WindowAlignment::default(),
        })
    }

    fn at_rate(&self, rate: Rate) -> Result<Self, LimitError> {
        Ok(Self::new(rate)?.with_alignment(self.align))
    }

    fn rate(&self) -> Rate {
        self.span.rate
    }

    fn earliest(&self, window: &WindowCount, now: Timestamp, cost: u64) -> Option<Timestamp> {
        if self.span.rate.is_unlimited() {
            return Some(now);
        }
        if cost > self.span.limit {
            return None;
        }
        let open = self.open_window_at(window, now);
        if cost <= self.span.limit.saturating_sub(open.count) || cost == 0 {
            return Some(now);
        }
        self.window_end(&open)
    }

    fn charge(
        &self,
        window: &mut WindowCount,
        _now: Timestamp,
        at: Timestamp,
        cost: u64,
    ) -> Charge {
        let mark = if self.span.rate.is_unlimited() {
            UndoData::Nothing
        } else {
            let before = *window;
            *window = self.open_window_at(window, at);
            window.count = window.count.saturating_add(cost);
            UndoData::WindowCount(before)
        };
        Charge {
            at,
            cost,
            undo_data: mark,
        }
    }

    fn remaining(&self, window: &WindowCount, now: Timestamp) -> u64 {
        if self.span.rate.is_unlimited() {
            return u64::MAX;
        }
        self.span
            .limit
            .saturating_sub(self.open_window_at(window, now).count)
    }

    fn idle_at(&self, window: &WindowCount) -> Timestamp {
        if self.span.rate.is_unlimited() || window.count == 0 {
            return window.start;
        }
        self.window_end(window).unwrap_or(Timestamp::MAX)
    }

    /// Subtracts the hit from the window that counted it. A later window isn't changed.
    fn cancel(
        &self,
        window: &mut WindowCount,
        _now: Timestamp,
        charge: &Charge,
        since: LaterCharges,
    ) {
        let UndoData::WindowCount(before) = charge.undo_data else {
            return;
        };
        let same_window =
            charge.at >= window.start && self.window_end(window).is_none_or(|end| charge.at < end);
        match since {
            // The charge opened this window, so the window before it is open again.
            LaterCharges::Nothing if before.start != window.start => *window = before,
            _ if same_window => window.count = window.count.saturating_sub(charge.cost),
            _ => {}
        }
    }

    /// Subtracts from the window that is open now. An expired window isn't changed.
    fn refund(&self, window: &mut WindowCount, now: Timestamp, tokens: u64) {
        if self.open_window_at(window, now) == *window {
            window.count = window.count.saturating_sub(tokens);
        }
    }

    /// Keeps the count of the window that is open now. The window keeps its start if its length stays.
    fn migrate_state(&self, window: &mut WindowCount, old: &Self, now: Timestamp) {
        if self.span.rate.period().is_none() || old.span.rate.period().is_none() {
            // Zero and unlimited have no windows: the count stays for the next limit that has.
            return;
        }
        *window = old.open_window_at(window, now);
        if (self.span.nanos, self.align) != (old.span.nanos, old.align) {
            window.start = self.new_window_start(now);
        }
    }

    /// The count moves to the window of the new limit that is open, so it stays until the old window ends.
    fn earliest_before_migration(
        &self,
        window: &WindowCount,
        old: &Self,
        now: Timestamp,
        cost: u64,
    ) -> Option<Timestamp> {
        let mut carried = *window;
        self.migrate_state(&mut carried, old, now);
        let at = self.earliest(&carried, now, cost)?;
        if at <= now {
            return Some(at);
        }
        let has_windows = old.span.rate.period().is_some() && self.span.rate.period().is_some();
        let end = old.window_end(&old.open_window_at(window, now));
        Some(end.filter(|_| has_windows).unwrap_or(at))
    }

    /// With fixed boundaries, the count moves to the window that is open at that time.
    fn move_to_clock(&self, window: &mut WindowCount, from: Timestamp, to: Timestamp) {
        if self.span.rate.period().is_none() {
            window.start = to;
            return;
        }
        *window = self.open_window_at(window, from);
        window.start = match self.align {
            _ if window.count == 0 => Timestamp::ZERO,
            WindowAlignment::FirstHit => window.start.shifted(from, to),
            WindowAlignment::Boundary(_) => {
                self.new_window_start(window.start.max(from).shifted(from, to))
            }
        };
    }

    fn state_lifetime(&self) -> Duration {
        self.span.duration_of(1)
    }

    fn empty(&self, now: Timestamp) -> WindowCount {
        WindowCount {
            count: self.span.limit,
            ..self.open_window_at(&WindowCount::default(), now)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::LimitLedger;

    #[test]
    fn windows_stand_around_any_boundary() {
        let span = WindowLength::new(Rate::per_second(1)).unwrap();
        let at = Timestamp::from_millis;
        for (now, boundary, start) in [
            (1_500, 0, 1_000),
            (1_500, 300, 1_300),
            (1_200, 300, 300),
            (1_300, 5_300, 1_300),
            (200, 300, 0),
        ] {
            assert_eq!(span.window_start(at(now), at(boundary)), at(start));
        }
    }

    #[test]
    fn a_window_cut_off_by_the_origin_ends_at_the_first_boundary() {
        let at = Timestamp::from_millis;
        let limit = FixedWindow::new(Rate::per_second(1))
            .unwrap()
            .with_alignment(WindowAlignment::Boundary(at(300)));
        let mut window = WindowCount::default();
        assert!(limit.decide(&mut window, at(200), 1).is_allowed());
        let refused = limit.decide(&mut window, at(299), 1);
        assert_eq!(refused.wait_or_max(), Duration::from_millis(1));
        assert_eq!(refused.reset_after, Duration::from_millis(1));
        // [300, 1300) is one window: one request passes in it, not one before 1000 and one after.
        assert!(limit.decide(&mut window, at(300), 1).is_allowed());
        assert!(!limit.decide(&mut window, at(1_299), 1).is_allowed());
        assert!(limit.decide(&mut window, at(1_300), 1).is_allowed());
    }

    #[test]
    fn the_last_representable_time_grants_nothing_extra() {
        for align in [WindowAlignment::default(), WindowAlignment::FirstHit] {
            let limit = FixedWindow::new(Rate::per_second(1))
                .unwrap()
                .with_alignment(align);
            let mut window = WindowCount::default();
            let end = Timestamp::MAX;
            assert!(limit.decide(&mut window, end, 1).is_allowed());
            assert!(!limit.decide(&mut window, end, 1).is_allowed());
        }
    }

    #[test]
    fn a_window_from_the_first_hit_starts_anew_after_it_ends() {
        let limit = FixedWindow::new(Rate::per_second(2))
            .unwrap()
            .with_alignment(WindowAlignment::FirstHit);
        let mut window = WindowCount::default();
        let mut hit = |millis| {
            limit
                .decide(&mut window, Timestamp::from_millis(millis), 1)
                .is_allowed()
        };
        assert!(hit(700));
        assert!(hit(1_600));
        assert!(!hit(1_699));
        assert!(hit(1_700));
        assert!(hit(1_800));
        assert!(!hit(2_000));
    }

    #[test]
    fn cancelling_oldest_first_leaves_nothing_counted() {
        let mut book = LimitLedger::new(FixedWindow::new(Rate::per_second(2)).unwrap());
        let now = Timestamp::ZERO;
        assert!(book.decide(now, 2).is_allowed());
        let booked = [1, 1].map(|cost| book.reserve(now, cost, Duration::MAX).unwrap());
        for booked in &booked {
            book.cancel(now, booked);
        }
        assert_eq!(book.decide(Timestamp::from_secs(1), 0).remaining, 2);
    }

    #[test]
    fn a_rate_of_zero_in_between_forgets_nothing() {
        let limit = FixedWindow::new(Rate::per_minute(10)).unwrap();
        let zero = FixedWindow::new(Rate::zero()).unwrap();
        let mut window = WindowCount::default();
        let _ = limit.decide(&mut window, Timestamp::ZERO, 10);
        zero.migrate_state(&mut window, &limit, Timestamp::from_secs(1));
        limit.migrate_state(&mut window, &zero, Timestamp::from_secs(4));
        assert_eq!(limit.remaining(&window, Timestamp::from_secs(4)), 0);
    }

    #[test]
    fn another_burst_is_refused_with_the_count() {
        let error = FixedWindow::new(Rate::per_second(100).burst(50)).unwrap_err();
        assert!(matches!(error, LimitError::BurstIsNotCount { .. }));
    }
}
