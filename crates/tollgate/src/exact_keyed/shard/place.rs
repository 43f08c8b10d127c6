//! Which heap an entry is in, and where: by when it is idle, or by when its block is over.

use tollgate_core::Timestamp;

use super::super::entry::{Entry, HeapPlace};
use super::super::kept::Kept;
use super::Shard;
use crate::table::heap::Heap;
use crate::table::slab::Slab;

impl<K, A: Kept> Shard<K, A> {
    /// Until when an entry is blocked: the origin if it isn't.
    pub(super) fn until(&self, entry: &Entry<K, A>) -> Timestamp {
        if entry.place.is_guarded() {
            self.guarded.due(entry.place.number())
        } else {
            Timestamp::ZERO
        }
    }

    /// Puts an entry that may be idle earlier than it was where it belongs.
    pub(super) fn settle(&mut self, slot: u32) {
        let Some(entry) = self.entries.get(slot) else {
            return;
        };
        if entry.place.is_guarded() {
            return;
        }
        let limit = entry.tier.as_deref().unwrap_or(&self.limit);
        let (idle, place) = (limit.idle_at(entry.ledger.state()), entry.place.number());
        let idle = self.idle_with_holds(slot, idle);
        if self.open.due(place) != idle {
            let entries = &mut self.entries;
            self.open
                .set(place, idle, |slot, place| note(entries, slot, place));
        }
    }

    /// Blocks an entry until then, or longer if it was.
    pub(super) fn guard(&mut self, slot: u32, until: Timestamp) {
        let Some(place) = self.entries.get(slot).map(|entry| entry.place) else {
            return;
        };
        if !place.is_guarded() {
            self.leave_heap(slot);
            self.enter_guarded(slot, until);
        } else if self.guarded.due(place.number()) < until {
            let (heap, entries) = (&mut self.guarded, &mut self.entries);
            heap.set(place.number(), until, |slot, place| {
                note(entries, slot, place);
            });
        }
    }

    /// Puts an entry whose block is over among the others.
    pub(super) fn unguard(&mut self, slot: u32) {
        self.leave_heap(slot);
        if let Some(entry) = self.entries.get(slot) {
            let limit = entry.tier.as_deref().unwrap_or(&self.limit);
            let idle = limit.idle_at(entry.ledger.state());
            let idle = self.idle_with_holds(slot, idle);
            self.enter_open(slot, idle);
        }
    }

    pub(super) fn enter_open(&mut self, slot: u32, idle: Timestamp) {
        enter(
            &mut self.open,
            &mut self.entries,
            slot,
            idle,
            HeapPlace::open,
        );
    }

    pub(super) fn enter_guarded(&mut self, slot: u32, until: Timestamp) {
        let (heap, entries) = (&mut self.guarded, &mut self.entries);
        enter(heap, entries, slot, until, HeapPlace::guarded);
    }

    pub(super) fn leave_heap(&mut self, slot: u32) {
        let Some(place) = self.entries.get(slot).map(|entry| entry.place) else {
            return;
        };
        let heap = if place.is_guarded() {
            &mut self.guarded
        } else {
            &mut self.open
        };
        let entries = &mut self.entries;
        heap.remove(place.number(), |slot, place| note(entries, slot, place));
    }
}

fn enter<K, A: Kept>(
    heap: &mut Heap,
    entries: &mut Slab<Entry<K, A>>,
    slot: u32,
    due: Timestamp,
    kind: fn(HeapPlace) -> HeapPlace,
) {
    if let Some(entry) = entries.get_mut(slot) {
        entry.place = kind(entry.place);
        heap.push(due, slot, |slot, place| note(entries, slot, place));
    }
}

/// Notes where a heap has put an entry.
fn note<K, A: Kept>(entries: &mut Slab<Entry<K, A>>, slot: u32, place: u32) {
    if let Some(entry) = entries.get_mut(slot) {
        entry.place = entry.place.at(place);
    }
}
