//! Sliding log: the state has every admitted hit, so "at most n in any window" holds exactly.

use alloc::collections::VecDeque;
use core::time::Duration;

use crate::arithmetic::{Charge, LaterCharges, UndoData, sealed};
use crate::window_length::WindowLength;
use crate::{Arithmetic, LimitError, Rate, Timestamp};

/// At most `count` in any trailing window `(t − period, t]`.
///
/// The log has one entry for each instant with a hit, at most `count` of them. A hit exactly one period old no longer
/// counts. A check skips the entries that expired since the last admission, so it may cost as much as the log is long;
/// an admission removes them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlidingLog {
    span: WindowLength,
}

/// The state of a [`SlidingLog`]: the hits still in the window, oldest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HitLog {
    entries: VecDeque<HitEntry>,
    /// The sum of all weights. With a booking ahead it can reach two full windows, so it is wider than a count.
    total: u128,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct HitEntry {
    at: Timestamp,
    weight: u64,
}

impl HitLog {
    /// The log of these hits: time and weight, oldest first.
    ///
    /// A hit out of order counts at the latest time before it. A hit without weight is left out.
    ///
    /// ```
    /// use tollgate_core::{Arithmetic, HitLog, Rate, SlidingLog, Timestamp};
    ///
    /// let limit = SlidingLog::new(Rate::per_second(5))?;
    /// let at = Timestamp::from_millis;
    /// let log = HitLog::from_entries([(at(100), 1), (at(400), 3)]);
    /// assert_eq!(limit.remaining(&log, at(500)), 1);
    /// assert_eq!(HitLog::from_entries(log.entries()), log);
    /// # Ok::<(), tollgate_core::LimitError>(())
    /// ```
    pub fn from_entries(entries: impl IntoIterator<Item = (Timestamp, u64)>) -> Self {
        let mut log = Self::default();
        for (at, weight) in entries {
            log.push(at, weight);
        }
        log
    }

    /// The stored hits: time and weight, oldest first.
    pub fn entries(&self) -> impl ExactSizeIterator<Item = (Timestamp, u64)> {
        self.entries.iter().map(|entry| (entry.at, entry.weight))
    }

    /// The number of instants with a stored hit.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether no hit is stored.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    fn newest_hit(&self) -> Timestamp {
        self.entries
            .back()
            .map_or(Timestamp::ZERO, |entry| entry.at)
    }

    /// Logs a hit at `at`, or at the newest entry if that is later; returns the time.
    fn push(&mut self, at: Timestamp, weight: u64) -> Timestamp {
        let at = at.max(self.newest_hit());
        if weight == 0 {
            return at;
        }
        self.total = self.total.saturating_add(u128::from(weight));
        match self.entries.back_mut() {
            Some(newest) if newest.at == at => newest.weight = newest.weight.saturating_add(weight),
            _ => self.entries.push_back(HitEntry { at, weight }),
        }
        at
    }
}

impl SlidingLog {
    /// The number of entries, oldest first, outside the window at `now`, and their weight.
    fn expired_prefix(&self, log: &HitLog, now: Timestamp) -> (usize, u128) {
        let mut weight = 0;
        let mut count = 0;
        for entry in &log.entries {
            if now.nanos_since(entry.at) < self.span.nanos {
                break;
            }
            weight += u128::from(entry.weight);
            count += 1;
        }
        (count, weight)
    }
}

impl sealed::Sealed for SlidingLog {}

impl Arithmetic for SlidingLog {
    type State = HitLog;
    type Floor = Timestamp;

    fn new(rate: Rate) -> Result<Self, LimitError> {
        Ok(Self {
            span: WindowLength::with_burst_of_count(rate, "sliding log")?,
        })
    }

    fn rate(&self) -> Rate {
        self.span.rate
    }

    fn earliest(&self, log: &HitLog, now: Timestamp, cost: u64) -> Option<Timestamp> {
        if self.span.rate.is_unlimited() {
            return Some(now);
        }
        if cost > self.span.limit {
            return None;
        }
        // A time before the newest hit counts as that hit's time, because hits are logged in order.
        let (expired, gone) = self.expired_prefix(log, now.max(log.newest_hit()));
        // Entries expire oldest first, so the cost passes when the last one that it needs has expired.
        let mut used = log.total - gone;
        let mut at = now;
        for entry in log.entries.iter().skip(expired) {
            if used + u128::from(cost) <= u128::from(self.span.limit) || cost == 0 {
                break;
            }
            used -= u128::from(entry.weight);
            at = Timestamp::from_nanos(entry.at.as_nanos().checked_add(self.span.nanos)?);
        }
        Some(at)
    }

    fn charge(&self, log: &mut HitLog, now: Timestamp, at: Timestamp, cost: u64) -> Charge {
        if self.span.rate.is_unlimited() || cost == 0 {
            let mark = UndoData::Nothing;
            return Charge {
                at,
                cost,
                undo_data: mark,
            };
        }
        // A booking ahead must not remove hits that still count until it acts.
        let reached = if at > now {
            now
        } else {
            now.max(log.newest_hit())
        };
        let (expired, gone) = self.expired_prefix(log, reached);
        log.entries.drain(..expired);
        log.total -= gone;
        let at = log.push(at, cost);
        let mark = UndoData::LogEntry;
        Charge {
            at,
            cost,
            undo_data: mark,
        }
    }

    fn remaining(&self, log: &HitLog, now: Timestamp) -> u64 {
        if self.span.rate.is_unlimited() {
            return u64::MAX;
        }
        let (_, gone) = self.expired_prefix(log, now.max(log.newest_hit()));
        let free = u128::from(self.span.limit).saturating_sub(log.total - gone);
        u64::try_from(free).unwrap_or(u64::MAX)
    }

    fn idle_at(&self, log: &HitLog) -> Timestamp {
        if log.is_empty() || self.span.rate.is_unlimited() {
            return Timestamp::ZERO;
        }
        log.newest_hit().plus_nanos(self.span.nanos)
    }

    /// Subtracts the hit from its entry, if the entry still exists.
    fn cancel(&self, log: &mut HitLog, _now: Timestamp, charge: &Charge, _since: LaterCharges) {
        if charge.undo_data != UndoData::LogEntry {
            return;
        }
        let Ok(index) = log
            .entries
            .binary_search_by_key(&charge.at, |entry| entry.at)
        else {
            return;
        };
        let entry = &mut log.entries[index];
        let returned = entry.weight.min(charge.cost);
        entry.weight -= returned;
        log.total -= u128::from(returned);
        if entry.weight == 0 {
            log.entries.remove(index);
        }
    }

    /// Removes the newest hits, because they would count longest.
    fn refund(&self, log: &mut HitLog, _now: Timestamp, tokens: u64) {
        let mut left = tokens;
        while let Some(newest) = log.entries.back_mut().filter(|_| left > 0) {
            let struck = newest.weight.min(left);
            newest.weight -= struck;
            left -= struck;
            log.total -= u128::from(struck);
            if newest.weight == 0 {
                log.entries.pop_back();
            }
        }
    }

    /// Keeps every hit; the new window and count apply to them from now on.
    fn migrate_state(&self, _log: &mut HitLog, _old: &Self, _now: Timestamp) {}

    /// The new window applies to every hit until the old window has no hit.
    fn earliest_before_migration(
        &self,
        log: &HitLog,
        old: &Self,
        now: Timestamp,
        cost: u64,
    ) -> Option<Timestamp> {
        let at = self.earliest(log, now, cost)?;
        Some(at.min(old.idle_at(log).plus_nanos(1).max(now)))
    }

    /// A hit before the origin of the other clock counts from that origin.
    fn move_to_clock(&self, log: &mut HitLog, from: Timestamp, to: Timestamp) {
        let (expired, _) = self.expired_prefix(log, from);
        let left = log.entries().skip(expired);
        *log = HitLog::from_entries(left.map(|(at, weight)| (at.shifted(from, to), weight)));
    }

    fn state_lifetime(&self) -> Duration {
        self.span.duration_of(1)
    }

    fn empty(&self, now: Timestamp) -> HitLog {
        let mut log = HitLog::default();
        if self.span.limit > 0 && !self.span.rate.is_unlimited() {
            self.charge(&mut log, now, now, self.span.limit);
        }
        log
    }

    /// A log books at most one window ahead, which bounds it to twice its count.
    fn max_booking_delay(&self) -> Duration {
        Duration::from_nanos(self.span.nanos)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_never_holds_more_than_its_count() {
        let limit = SlidingLog::new(Rate::per_second(5)).unwrap();
        let mut log = HitLog::default();
        for micros in 0..5_000_000 / 7 {
            let _ = limit.decide(&mut log, Timestamp::from_micros(micros * 7), 1 + micros % 3);
            assert!(log.len() <= 5);
        }
    }

    #[test]
    fn the_last_representable_time_grants_nothing_extra() {
        let limit = SlidingLog::new(Rate::per_second(1)).unwrap();
        let mut log = HitLog::default();
        assert!(limit.decide(&mut log, Timestamp::MAX, 1).is_allowed());
        assert!(!limit.decide(&mut log, Timestamp::MAX, 1).is_allowed());
    }

    #[test]
    fn the_largest_count_booked_ahead_does_not_overflow() {
        let limit = SlidingLog::new(Rate::per_second(u64::MAX)).unwrap();
        let mut log = HitLog::default();
        let (zero, second) = (Timestamp::ZERO, Timestamp::from_secs(1));
        assert!(limit.decide(&mut log, zero, u64::MAX).is_allowed());
        let at = limit.earliest(&log, zero, u64::MAX);
        assert_eq!(at, Some(second));
        limit.charge(&mut log, zero, second, u64::MAX);
        assert!(!limit.decide(&mut log, second, 1).is_allowed());
        let third = Timestamp::from_secs(2);
        assert!(limit.decide(&mut log, third, 1).is_allowed());
    }

    #[test]
    fn hits_at_one_instant_count_separately() {
        let limit = SlidingLog::new(Rate::per_second(3)).unwrap();
        let mut log = HitLog::default();
        let now = Timestamp::from_secs(9);
        for expect in [true, true, true, false] {
            assert_eq!(limit.decide(&mut log, now, 1).is_allowed(), expect);
        }
        assert_eq!(log.len(), 1);
    }
}
