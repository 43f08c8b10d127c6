//! The batch that is being collected: its items, and where each key is if items of one key are merged.

use std::hash::{BuildHasher, Hash};

use foldhash::fast::RandomState;
use hashbrown::HashTable;
use tollgate::Timestamp;

pub(super) struct Open<K, V> {
    items: Vec<(K, V)>,
    /// Where each key is, if items are merged.
    places: HashTable<usize>,
    hasher: RandomState,
    pub(super) weight: u64,
    pub(super) first: Timestamp,
    pub(super) last: Timestamp,
}

impl<K: Hash + Eq, V> Open<K, V> {
    pub(super) fn new() -> Self {
        Self {
            items: Vec::new(),
            places: HashTable::new(),
            hasher: RandomState::default(),
            weight: 0,
            first: Timestamp::ZERO,
            last: Timestamp::ZERO,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.items.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// The item of a key.
    pub(super) fn find(&mut self, key: &K) -> Option<&mut (K, V)> {
        let hash = self.hasher.hash_one(key);
        let items = &self.items;
        let place = *self.places.find(hash, |place| items[*place].0 == *key)?;
        self.items.get_mut(place)
    }

    pub(super) fn push(&mut self, key: K, value: V, now: Timestamp) {
        if self.items.is_empty() {
            self.first = now;
        }
        self.items.push((key, value));
    }

    /// As [`push`](Self::push), and the key can be found.
    pub(super) fn push_found(&mut self, key: K, value: V, now: Timestamp) {
        let hash = self.hasher.hash_one(&key);
        let place = self.items.len();
        self.push(key, value, now);
        let (items, hasher) = (&self.items, &self.hasher);
        self.places
            .insert_unique(hash, place, |place| hasher.hash_one(&items[*place].0));
    }

    /// Takes out all items. The next batch gets as much room as this one had.
    pub(super) fn take(&mut self) -> Vec<(K, V)> {
        self.places.clear();
        self.weight = 0;
        let room = self.items.len().min(1024);
        std::mem::replace(&mut self.items, Vec::with_capacity(room))
    }
}
