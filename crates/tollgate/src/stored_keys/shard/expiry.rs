//! The heaps of a shard: keys by the time at which they are idle, and blocked keys by the end of their blocks. Each new
//! key drops a few idle keys; at the cap it evicts the key that will be idle next, if the policy allows it.

use tollgate_core::Timestamp;

use super::super::key_entry::{HeapPosition, KeyEntry};
use super::super::table_algorithm::TableAlgorithm;
use super::{RoomRequest, Shard};
use crate::holds::OpenHolds;
use crate::key_table::due_heap::DueHeap;

/// How many idle keys a new key drops at most: more than one, so that a table can shrink again.
const DROPS_PER_NEW_KEY: usize = 4;
/// How many keys a new key examines below the cap, to drop or requeue them.
const EXAMINED_PER_NEW_KEY: usize = 8;

/// The result of examining the key that is due next.
enum ExpiryStep {
    Dropped,
    Requeued,
}

impl<K, A: TableAlgorithm> Shard<K, A> {
    /// Drops a few idle keys. Returns whether a slot is free, or could be freed.
    pub(super) fn make_room(&mut self, now: Timestamp, need: RoomRequest) -> bool {
        let mut drops = 0;
        for _ in 0..EXAMINED_PER_NEW_KEY {
            match self.examine_next(now) {
                Some(ExpiryStep::Dropped) if drops + 1 < DROPS_PER_NEW_KEY => drops += 1,
                Some(ExpiryStep::Requeued) => {}
                Some(ExpiryStep::Dropped) | None => break,
            }
        }
        // At the cap no new key is denied, and none is evicted, while another key is idle.
        while self.is_full(need) {
            if self.examine_next(now).is_none() {
                return need.evict && self.evict(need);
            }
        }
        true
    }

    fn is_full(&self, need: RoomRequest) -> bool {
        self.entries.used() >= self.room_for(need)
    }

    fn room_for(&self, need: RoomRequest) -> usize {
        let blocks = if need.block { self.room_for_blocked } else { 0 };
        self.room + blocks
    }

    /// Examines the key that is due next, if one is due before `now`.
    fn examine_next(&mut self, now: Timestamp) -> Option<ExpiryStep> {
        let due = |(due, slot): (Timestamp, u32)| (due < now).then_some(slot);
        let open = self.idle_heap.first().and_then(due);
        let slot = open.or_else(|| self.blocked_heap.first().and_then(due))?;
        self.stats.examined += 1;
        self.migrate_entry(slot);
        // A key with outstanding tokens is not idle.
        self.keep_outstanding(slot, now);
        let entry = self.entries.get(slot)?;
        let limit = entry.tier.as_deref().unwrap_or(&self.limit);
        let idle = limit.idle_at(entry.ledger.state());
        if idle < now {
            self.high_water = self.high_water.max(idle).max(self.blocked_until(entry));
            self.stats.expired += 1;
            self.remove(slot);
            return Some(ExpiryStep::Dropped);
        }
        // It was charged since, or its debt lasts longer than its block.
        if entry.place.is_blocked() {
            self.unblock(slot);
        } else {
            self.update_heap_position(slot);
        }
        Some(ExpiryStep::Requeued)
    }

    /// Drops the key that will be idle next, although it is active.
    fn evict(&mut self, need: RoomRequest) -> bool {
        // If blocked keys occupy even the room for other keys, dropping one key isn't enough.
        if self.entries.used() > self.room_for(need) {
            return false;
        }
        while let Some((due, slot)) = self.idle_heap.first() {
            self.stats.examined += 1;
            self.migrate_entry(slot);
            self.update_heap_position(slot);
            if self.idle_heap.first() == Some((due, slot)) {
                self.stats.evicted += 1;
                self.remove(slot);
                return true;
            }
        }
        false
    }
}

impl<K, A: TableAlgorithm> Shard<K, A> {
    /// The end of an entry's block; the origin if it isn't blocked.
    pub(super) fn blocked_until(&self, entry: &KeyEntry<K, A>) -> Timestamp {
        if entry.place.is_blocked() {
            self.blocked_heap.due(entry.place.number())
        } else {
            Timestamp::ZERO
        }
    }

    /// The time at which the key in this slot is idle: not before its last hold expires.
    fn idle_at(&self, slot: u32) -> Option<Timestamp> {
        let entry = self.entries.get(slot)?;
        let limit = entry.tier.as_deref().unwrap_or(&self.limit);
        let idle = limit.idle_at(entry.ledger.state());
        let held = self.holds_by_slot.get(&slot).map(OpenHolds::last_expiry);
        Some(held.map_or(idle, |last| last.max(idle)))
    }

    /// Updates the heap position of an entry that may be idle earlier than before.
    pub(super) fn update_heap_position(&mut self, slot: u32) {
        if let Some(place) = self.heap_position(slot)
            && !place.is_blocked()
            && let Some(idle) = self.idle_at(slot)
            && self.idle_heap.due(place.number()) != idle
        {
            let (heap, moved) = self.heap(false);
            heap.set(place.number(), idle, moved);
        }
    }

    /// Blocks an entry until then; an existing longer block stays.
    pub(super) fn block_until(&mut self, slot: u32, until: Timestamp) {
        let Some(place) = self.heap_position(slot) else {
            return;
        };
        if !place.is_blocked() {
            self.leave_heap(slot);
            self.enter_heap(slot, until, true);
        } else if self.blocked_heap.due(place.number()) < until {
            let (heap, moved) = self.heap(true);
            heap.set(place.number(), until, moved);
        }
    }

    /// Moves an entry with an expired block to the heap of the other entries.
    pub(super) fn unblock(&mut self, slot: u32) {
        self.leave_heap(slot);
        self.enter_idle_heap(slot);
    }

    pub(super) fn enter_idle_heap(&mut self, slot: u32) {
        if let Some(idle) = self.idle_at(slot) {
            self.enter_heap(slot, idle, false);
        }
    }

    pub(super) fn enter_heap(&mut self, slot: u32, due: Timestamp, is_guarded: bool) {
        if let Some(entry) = self.entries.get_mut(slot) {
            entry.place = entry.place.with_blocked(is_guarded);
            let (heap, moved) = self.heap(is_guarded);
            heap.push(due, slot, moved);
        }
    }

    pub(super) fn leave_heap(&mut self, slot: u32) {
        if let Some(place) = self.heap_position(slot) {
            let (heap, moved) = self.heap(place.is_blocked());
            heap.remove(place.number(), moved);
        }
    }

    fn heap_position(&self, slot: u32) -> Option<HeapPosition> {
        self.entries.get(slot).map(|entry| entry.place)
    }

    /// The heap of the blocked entries or of the others, and a callback that stores their new positions.
    fn heap(&mut self, is_guarded: bool) -> (&mut DueHeap, impl FnMut(u32, u32)) {
        let heap = if is_guarded {
            &mut self.blocked_heap
        } else {
            &mut self.idle_heap
        };
        let entries = &mut self.entries;
        let moved = move |slot, place| {
            if let Some(entry) = entries.get_mut(slot) {
                entry.place = entry.place.at(place);
            }
        };
        (heap, moved)
    }
}
