//! Sliding counter: two counts stand for a sliding window, the older one weighted by its overlap.

use core::fmt;
use core::time::Duration;

use crate::arithmetic::{Charge, LaterCharges, UndoData, sealed};
use crate::window_length::WindowLength;
use crate::window_states::{SlidingCounts, largest_sliding_burst};
use crate::{Arithmetic, LimitError, Rate, Timestamp};

/// About `count` in any trailing window, in constant memory.
///
/// The estimate is `previous · (share of the previous window still in view) + current`. A request passes if and only if
/// `floor(estimate) + cost ≤ count`. The estimate assumes that the previous hits are spread evenly, so a trailing
/// window may in truth hold up to twice the count: all hits at the end of one window, and then one more each time the
/// estimate drops by one. `retry_after` is exact.
///
/// A burst of up to 1.5 × the count is lent after an idle window, and shrinks to the count as the previous window
/// fills. So `n` consecutive windows still admit at most `n` counts and one loan.
///
/// ```
/// use tollgate_core::{Arithmetic, Rate, SlidingCounter, Timestamp};
///
/// let limit = SlidingCounter::new(Rate::per_second(100))?;
/// let mut counts = Default::default();
/// let at = Timestamp::from_millis;
/// assert!(limit.decide(&mut counts, at(900), 100).is_allowed());
/// // HalfOpenState of the previous window is still in view, so half of its hits count.
/// assert!(limit.decide(&mut counts, at(1500), 50).is_allowed());
/// assert!(!limit.decide(&mut counts, at(1500), 1).is_allowed());
/// # Ok::<(), tollgate_core::LimitError>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct SlidingCounter {
    span: WindowLength,
    burst: u64,
}

/// The rate determines all fields.
impl fmt::Debug for SlidingCounter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SlidingCounter({:?})", self.span)
    }
}

/// The time plus this many nanoseconds; `None` beyond the last representable time.
fn checked_add_nanos(time: Timestamp, nanos: u64) -> Option<Timestamp> {
    time.as_nanos()
        .checked_add(nanos)
        .map(Timestamp::from_nanos)
}

impl SlidingCounter {
    /// The counts as of `now`: at most two steps, however long nothing came. A time before the state's window counts as
    /// that window's start.
    pub fn rolled_to(&self, counts: &SlidingCounts, now: Timestamp) -> SlidingCounts {
        let start = self.span.window_start(now, Timestamp::ZERO);
        if start <= counts.start {
            return *counts;
        }
        let next = counts.start.plus_nanos(self.span.nanos);
        SlidingCounts {
            start,
            previous: if start == next { counts.current } else { 0 },
            current: 0,
        }
    }

    /// The part of the previous window that is still in view at `now`, in nanoseconds.
    fn nanos_in_view(&self, counts: &SlidingCounts, now: Timestamp) -> u64 {
        self.span
            .nanos
            .saturating_sub(now.nanos_since(counts.start))
    }

    /// `floor(estimate)` for counts already rolled to `now`.
    fn estimate(&self, counts: &SlidingCounts, now: Timestamp) -> u64 {
        let seen = u128::from(counts.previous) * u128::from(self.nanos_in_view(counts, now));
        let weighted = seen / u128::from(self.span.nanos);
        u64::try_from(weighted)
            .unwrap_or(u64::MAX)
            .saturating_add(counts.current)
    }

    /// The most that a window may hold after one that held `previous`: the burst after an idle window, the count after
    /// a full one.
    fn allowed_total(&self, previous: u64) -> u64 {
        let count = self.span.limit;
        if self.burst == count || previous >= count {
            return count;
        }
        let lent = u128::from(self.burst - count) * u128::from(count - previous);
        count + u64::try_from(lent / u128::from(count)).unwrap_or(0)
    }

    /// The first time within the window of these rolled counts, from `now` on, at which the cost
    /// passes.
    fn earliest_in_window(
        &self,
        counts: &SlidingCounts,
        now: Timestamp,
        cost: u64,
    ) -> Option<Timestamp> {
        // Time alone never lowers `current`, so a cost that doesn't fit beside it can't pass in this window.
        let held = counts.current.checked_add(cost)?;
        let room = self.allowed_total(counts.previous).checked_sub(held)?;
        if counts.previous == 0 {
            return Some(now);
        }
        // floor(previous · view / window) ≤ room  ⟺  previous · view < (room + 1) · window.
        let bound = (u128::from(room) + 1) * u128::from(self.span.nanos) - 1;
        let view = u64::try_from(bound / u128::from(counts.previous)).unwrap_or(u64::MAX);
        // The view only shrinks as time passes, so the time at `now` is the earliest.
        let view = view.min(self.nanos_in_view(counts, now));
        if view == 0 {
            return None;
        }
        checked_add_nanos(counts.start, self.span.nanos - view)
    }
}

impl sealed::Sealed for SlidingCounter {}

impl Arithmetic for SlidingCounter {
    type State = SlidingCounts;
    type Floor = Timestamp;

    fn new(rate: Rate) -> Result<Self, LimitError> {
        let span = WindowLength::new(rate)?;
        let burst = rate.burst_size();
        if rate.count_and_nanos().is_some()
            && !(span.limit..=largest_sliding_burst(span.limit)).contains(&burst)
        {
            return Err(LimitError::BurstBeyondCounter { rate });
        }
        let burst = if rate.is_zero() { 0 } else { burst };
        Ok(Self { span, burst })
    }

    fn rate(&self) -> Rate {
        self.span.rate
    }

    fn earliest(&self, counts: &SlidingCounts, now: Timestamp, cost: u64) -> Option<Timestamp> {
        if self.span.rate.is_unlimited() || cost == 0 {
            return Some(now);
        }
        if cost > self.burst {
            return None;
        }
        let here = self.rolled_to(counts, now);
        let from = now.max(here.start);
        if let Some(at) = self.earliest_in_window(&here, from, cost) {
            // A time before the state's window is decided as its start, so the request may pass now.
            return Some(if at == from { now } else { at });
        }
        let next_start = checked_add_nanos(here.start, self.span.nanos)?;
        let next = self.rolled_to(&here, next_start);
        if let Some(at) = self.earliest_in_window(&next, next_start, cost) {
            return Some(at);
        }
        // After two windows nothing is remembered, and the cost is within the burst.
        checked_add_nanos(next_start, self.span.nanos)
    }

    fn charge(
        &self,
        counts: &mut SlidingCounts,
        _now: Timestamp,
        at: Timestamp,
        cost: u64,
    ) -> Charge {
        let mark = if self.span.rate.is_unlimited() {
            UndoData::Nothing
        } else {
            let before = *counts;
            *counts = self.rolled_to(counts, at);
            counts.current = counts.current.saturating_add(cost);
            UndoData::SlidingCounts(before)
        };
        Charge {
            at,
            cost,
            undo_data: mark,
        }
    }

    fn remaining(&self, counts: &SlidingCounts, now: Timestamp) -> u64 {
        if self.span.rate.is_unlimited() {
            return u64::MAX;
        }
        if self.burst == 0 {
            return 0;
        }
        let here = self.rolled_to(counts, now);
        self.allowed_total(here.previous)
            .saturating_sub(self.estimate(&here, now))
    }

    fn idle_at(&self, counts: &SlidingCounts) -> Timestamp {
        let windows = match (counts.previous, counts.current) {
            _ if self.span.rate.is_unlimited() => 0,
            (0, 0) => 0,
            (_, 0) => 1,
            _ => 2,
        };
        counts.start.plus_nanos(self.span.nanos * windows)
    }

    /// Subtracts the hit from the window that counted it, current or previous.
    fn cancel(
        &self,
        counts: &mut SlidingCounts,
        _now: Timestamp,
        charge: &Charge,
        since: LaterCharges,
    ) {
        let UndoData::SlidingCounts(before) = charge.undo_data else {
            return;
        };
        if since == LaterCharges::Nothing && before.start != counts.start {
            // The charge opened this window, so the window before it is the current one again.
            *counts = before;
            return;
        }
        let charged_in = self.span.window_start(charge.at, Timestamp::ZERO);
        let next = charged_in.plus_nanos(self.span.nanos);
        if counts.start <= charged_in {
            counts.current = counts.current.saturating_sub(charge.cost);
        } else if counts.start == next {
            counts.previous = counts.previous.saturating_sub(charge.cost);
        }
    }

    /// Subtracts from the current window first, which counts in full, and then from the previous one.
    fn refund(&self, counts: &mut SlidingCounts, now: Timestamp, tokens: u64) {
        let mut here = self.rolled_to(counts, now);
        let left = tokens.saturating_sub(here.current);
        here.current = here.current.saturating_sub(tokens);
        here.previous = here.previous.saturating_sub(left);
        *counts = here;
    }

    /// Keeps the counts if the window's length stays, else the estimate as of now.
    fn migrate_state(&self, counts: &mut SlidingCounts, old: &Self, now: Timestamp) {
        if self.span.rate.period().is_none() || old.span.rate.period().is_none() {
            // Zero and unlimited have no windows: the counts stay for the next limit that has.
            return;
        }
        let here = old.rolled_to(counts, now);
        *counts = if self.span.nanos == old.span.nanos {
            here
        } else {
            SlidingCounts {
                start: self.span.window_start(now, Timestamp::ZERO),
                previous: 0,
                current: old.estimate(&here, now),
            }
        };
    }

    /// The migration keeps the estimate at that time, and the estimate only falls.
    fn earliest_before_migration(
        &self,
        counts: &SlidingCounts,
        old: &Self,
        now: Timestamp,
        cost: u64,
    ) -> Option<Timestamp> {
        let carried_at = |at: Timestamp| {
            let mut carried = *counts;
            self.migrate_state(&mut carried, old, at);
            self.earliest(&carried, at, cost)
        };
        let passes = |nanos: u64| {
            let at = Timestamp::from_nanos(nanos);
            carried_at(at).is_some_and(|first| first <= at)
        };
        let idle = old.idle_at(counts).plus_nanos(1).max(now);
        let latest = carried_at(now)?.min(idle);
        let (mut refused, mut passed) = (now.as_nanos(), latest.as_nanos());
        if passes(refused) || !passes(passed) {
            return Some(if passes(refused) { now } else { latest });
        }
        while passed - refused > 1 {
            let between = refused + (passed - refused) / 2;
            if passes(between) {
                passed = between;
            } else {
                refused = between;
            }
        }
        Some(Timestamp::from_nanos(passed))
    }

    /// The windows of the other clock begin elsewhere, so the estimate moves to the window that is open there.
    fn move_to_clock(&self, counts: &mut SlidingCounts, from: Timestamp, to: Timestamp) {
        let here = self.rolled_to(counts, from);
        let reached = here.start.max(from);
        let current = self.estimate(&here, reached);
        *counts = SlidingCounts {
            start: match current {
                0 => Timestamp::ZERO,
                _ => self
                    .span
                    .window_start(reached.shifted(from, to), Timestamp::ZERO),
            },
            previous: 0,
            current,
        };
    }

    fn state_lifetime(&self) -> Duration {
        self.span.duration_of(2)
    }

    fn empty(&self, now: Timestamp) -> SlidingCounts {
        SlidingCounts {
            start: self.span.window_start(now, Timestamp::ZERO),
            previous: 0,
            current: if self.span.rate.is_unlimited() {
                0
            } else {
                self.burst
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    /// The true bound: 100 at the end of one window, then one more for each hundredth of the window as the estimate
    /// drops, while all of the first 100 are still in view.
    #[test]
    fn a_trailing_window_can_hold_twice_the_count() {
        let limit = SlidingCounter::new(Rate::per_second(100)).unwrap();
        let mut counts = SlidingCounts::default();
        let last_nano = Timestamp::from_nanos(999_999_999);
        assert!(limit.decide(&mut counts, last_nano, 100).is_allowed());
        let mut in_one_window = 100;
        for hundredth in 1..100 {
            // One nanosecond past each hundredth, floor(estimate) has dropped by one.
            let now = Timestamp::from_millis(1_000 + 10 * hundredth).plus_nanos(1);
            assert!(now.nanos_since(last_nano) < 1_000_000_000);
            if hundredth == 1 {
                let at = Timestamp::from_secs(1).plus_nanos(1);
                assert!(limit.decide(&mut counts, at, 1).is_allowed());
                in_one_window += 1;
            }
            assert!(limit.decide(&mut counts, now, 1).is_allowed());
            in_one_window += 1;
            if hundredth == 98 {
                assert_eq!(in_one_window, 199);
            }
        }
        assert_eq!(in_one_window, 200);
        assert_eq!(
            limit.remaining(&counts, Timestamp::from_nanos(1_999_999_998)),
            0
        );
    }

    #[test]
    fn rolling_after_any_rest_forgets_in_one_step() {
        let limit = SlidingCounter::new(Rate::per_second(10)).unwrap();
        let mut counts = SlidingCounts::default();
        let _ = limit.decide(&mut counts, Timestamp::ZERO, 10);
        let much_later = Timestamp::from_secs(9_000_000_000);
        assert_eq!(limit.remaining(&counts, much_later), 10);
    }

    #[test]
    fn the_last_representable_time_grants_nothing_extra() {
        let limit = SlidingCounter::new(Rate::per_second(1)).unwrap();
        let mut counts = SlidingCounts::default();
        assert!(limit.decide(&mut counts, Timestamp::MAX, 1).is_allowed());
        assert!(!limit.decide(&mut counts, Timestamp::MAX, 1).is_allowed());
    }

    #[test]
    fn a_burst_is_lent_once_and_the_count_holds_in_the_long_run() {
        let limit = SlidingCounter::new(Rate::per_second(100).burst(150)).unwrap();
        let mut counts = SlidingCounts::default();
        let at = Timestamp::from_millis;
        assert!(limit.decide(&mut counts, at(500), 150).is_allowed());
        let mut passed = 150;
        for millis in 500..10_000 {
            passed += u64::from(limit.decide(&mut counts, at(millis), 1).is_allowed());
        }
        assert!((900..=1050).contains(&passed), "{passed}");
    }

    #[test]
    fn the_error_says_why_not_more() {
        let error = SlidingCounter::new(Rate::per_second(100).burst(151)).unwrap_err();
        assert!(error.to_string().contains("up to 1.5 x of it, 150"));
        assert!(SlidingCounter::new(Rate::per_second(100).burst(99)).is_err());
    }
}
