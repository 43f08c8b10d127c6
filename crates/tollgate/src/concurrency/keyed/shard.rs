//! The keys of one shard that have something in flight or queued; other keys have no entry.

use std::borrow::Borrow;
use std::sync::Arc;

use crate::concurrency::gate::Gate;
use crate::key_table::slab::Slab;
use crate::key_table::slot_index::{SlotIndex, tag};

/// Keys that are pinned by a permit or a wait.
#[derive(Debug)]
pub(super) struct Shard<K> {
    index: SlotIndex,
    entries: Slab<GateEntry<K>>,
    capacity: usize,
}

/// A key and its gate, for as long as it is pinned.
#[derive(Debug)]
pub(super) struct GateEntry<K> {
    key: K,
    hash: u64,
    pub(super) gate: Arc<Gate>,
    /// The number of its permits and waits.
    pins: usize,
    /// Whether it follows the limit of all keys when that changes.
    pub(super) limit: LimitSource,
}

/// Where the limit of a key comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LimitSource {
    Shared,
    PerCall,
}

impl<K> Shard<K> {
    pub(super) fn new(room: usize) -> Self {
        Self {
            index: SlotIndex::new(room),
            entries: Slab::new(room),
            capacity: room,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.entries.used()
    }

    pub(super) fn is_full(&self) -> bool {
        self.len() >= self.capacity
    }

    pub(super) fn get<Q>(&self, hash: u64, key: &Q) -> Option<&GateEntry<K>>
    where
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        self.entries.get(self.find(hash, key)?)
    }

    /// Pins a key that has an entry.
    pub(super) fn pin<Q>(&mut self, hash: u64, key: &Q) -> Option<(u32, &mut GateEntry<K>)>
    where
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        let slot = self.find(hash, key)?;
        let entry = self.entries.get_mut(slot)?;
        entry.pins += 1;
        Some((slot, entry))
    }

    /// Adds an entry with one pin. The caller has checked that the key has none and that there is room.
    pub(super) fn insert(&mut self, hash: u64, key: K, gate: Arc<Gate>, limit: LimitSource) -> u32 {
        let slot = self.entries.insert(GateEntry {
            key,
            hash,
            gate,
            pins: 1,
            limit,
        });
        self.index.insert(tag(hash), slot);
        slot
    }

    /// Removes a pin. Returns the entry if that was the last one, so that it is dropped without holding
    /// a lock.
    pub(super) fn unpin(&mut self, slot: u32) -> Option<GateEntry<K>> {
        let entry = self.entries.get_mut(slot)?;
        entry.pins -= 1;
        if entry.pins > 0 {
            return None;
        }
        self.index.remove(tag(entry.hash), slot);
        self.entries.remove(slot)
    }

    pub(super) fn entries(&self) -> impl Iterator<Item = &GateEntry<K>> {
        (0..self.entries.slots()).filter_map(|slot| self.entries.get(slot))
    }

    fn find<Q>(&self, hash: u64, key: &Q) -> Option<u32>
    where
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        self.index.find(tag(hash), |slot| {
            self.entries
                .get(slot)
                .is_some_and(|entry| entry.hash == hash && entry.key.borrow() == key)
        })
    }
}
