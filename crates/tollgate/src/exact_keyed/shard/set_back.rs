//! Following a clock that was set back: all keys of a shard at once, which is seldom.

use tollgate_core::Timestamp;

use super::super::kept::Kept;
use super::Shard;

impl<K, A: Kept> Shard<K, A> {
    /// If the clock was set back to this time, moves all keys back with it, so that none is refused until the
    /// clock has caught up.
    #[inline]
    pub(super) fn keep_pace(&mut self, now: Timestamp) {
        if let Some(from) = self.latest.set_back(now) {
            self.set_back(from, now);
        }
    }

    /// Keys that were charged while the clock was ahead keep what they had left, and the time by which dropped
    /// keys were idle no longer matters.
    #[cold]
    fn set_back(&mut self, from: Timestamp, to: Timestamp) {
        // Changes count from times of the clock as it was.
        self.follow_all();
        for slot in 0..self.entries.slots() {
            self.set_back_slot(slot, from, to);
        }
        self.high_water = self.high_water.min(to);
    }

    /// Counts from another anchor: every key keeps what it has left.
    pub(in super::super) fn move_to(&mut self, from: Timestamp, to: Timestamp) {
        self.keep_pace(from);
        self.follow_all();
        for slot in 0..self.entries.slots() {
            let Some(entry) = self.entries.get_mut(slot) else {
                continue;
            };
            let limit = entry.tier.as_deref().unwrap_or(&self.limit);
            if let Some(holds) = self.held.get_mut(&slot) {
                holds.shift(&mut entry.ledger, limit, from, to);
                if holds.is_empty() {
                    self.held.remove(&slot);
                }
            }
            entry.ledger.shift(limit, from, to);
            if entry.place.is_guarded() {
                self.move_guard(slot, from, to)
            } else {
                self.settle(slot)
            }
        }
        self.high_water = self.high_water.shifted(from, to);
        self.latest.shift(from, to);
    }

    /// Moves a block, so that it lasts as long as it had left.
    fn move_guard(&mut self, slot: u32, from: Timestamp, to: Timestamp) {
        let Some(entry) = self.entries.get(slot) else {
            return;
        };
        let until = self.guarded.due(entry.place.number());
        if until > from {
            self.leave_heap(slot);
            self.enter_guarded(slot, until.shifted(from, to));
        } else {
            self.unguard(slot);
        }
    }

    fn set_back_slot(&mut self, slot: u32, from: Timestamp, to: Timestamp) {
        let Some(entry) = self.entries.get_mut(slot) else {
            return;
        };
        let limit = entry.tier.as_deref().unwrap_or(&self.limit);
        if let Some(holds) = self.held.get_mut(&slot) {
            holds.shift(&mut entry.ledger, limit, from, to);
            if holds.is_empty() {
                self.held.remove(&slot);
            }
        }
        entry.ledger.set_back(limit, from, to);
        if !entry.place.is_guarded() {
            self.settle(slot);
            return;
        }
        let until = self.guarded.due(entry.place.number());
        if until - to <= self.latest.reach() {
            // The block may be from before the clock ran ahead.
            return;
        }
        self.move_guard(slot, from, to);
    }
}
