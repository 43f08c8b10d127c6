//! What one slot of a shard holds.

use tollgate_core::{Algorithm, Book, Decision, Outcome, Timestamp};

use super::slab::Slab;

/// A key and its state.
#[derive(Debug)]
pub(super) struct Entry<K, A: Algorithm> {
    pub(super) key: K,
    pub(super) hash: u64,
    pub(super) book: Book<A>,
    /// Nothing passes before this time, whatever the rate.
    pub(super) blocked_until: Timestamp,
    /// Tells this entry from an earlier one of the same key.
    pub(super) birth: u64,
    /// The change of the rate that its book follows.
    pub(super) version: u64,
    /// Its place in the heap that it is in.
    pub(super) place: u32,
    pub(super) guarded: bool,
}

impl<K, A: Algorithm> Slab<Entry<K, A>> {
    /// Notes where a heap has put an entry.
    pub(super) fn note(&mut self, slot: u32, place: u32) {
        if let Some(entry) = self.get_mut(slot) {
            entry.place = place;
        }
    }
}

impl<K, A: Algorithm> Entry<K, A> {
    /// From when on it is as a key never seen.
    pub(super) fn due(&self) -> Timestamp {
        let idle = self.book.limit().idle_at(self.book.state());
        idle.max(self.blocked_until)
    }

    /// What a blocked key is told.
    pub(super) fn blocked(&self, now: Timestamp) -> Decision {
        let (limit, wait) = (self.book.limit().limit(), self.blocked_until - now);
        Decision::new(Outcome::Denied, limit, 0, wait, self.due() - now)
    }
}
