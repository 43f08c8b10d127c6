//! Operations on the keys of a shard besides checks: blocks, refunds, resets, and the reads and writes of a snapshot.

use tollgate_core::{Booking, Ledger, Timestamp};

use super::super::key_entry::KeyEntry;
use super::super::table_algorithm::TableAlgorithm;
use super::{KeyQuery, Lookup, NewEntry, RestoreError, RoomRequest, Shard};
use crate::cell::CancelScope;
use crate::key_table::Stats;

impl<K, A: TableAlgorithm> Shard<K, A> {
    /// Whether the key is blocked.
    pub(in super::super) fn is_blocked(&self, slot: u32, now: Timestamp) -> bool {
        let entry = self.entries.get(slot);
        entry.is_some_and(|entry| entry.place.is_blocked() && now < self.blocked_until(entry))
    }

    /// Blocks the key; false if it is new and there is no slot for it.
    pub(in super::super) fn block(
        &mut self,
        ask: &Lookup<'_, impl KeyQuery<K> + ?Sized>,
        until: Timestamp,
        need: RoomRequest,
    ) -> bool {
        if until <= ask.now {
            return true;
        }
        self.latest_time.advance_to(ask.now);
        if let Some(slot) = self.find(ask) {
            self.block_until(slot, until);
            return true;
        }
        if !self.make_room(ask.now, need) {
            return false;
        }
        self.insert(NewEntry {
            key: ask.key.to_key(),
            hash: ask.hash,
            ledger: Ledger::default(),
            tier: None,
            // The first call that passes decides which limit it is under.
            is_given: true,
            blocked_until: until,
        });
        true
    }

    /// Refunds tokens to the key, if it has spent any.
    pub(in super::super) fn refund(&mut self, slot: u32, now: Timestamp, tokens: u64) {
        self.update_ledger(slot, |ledger, limit, _| ledger.refund(limit, now, tokens));
    }

    /// Cancels a booking, if it was made in the present entry of the key.
    pub(in super::super) fn cancel(
        &mut self,
        slot: u32,
        now: Timestamp,
        booked: &Booking,
        birth: u64,
        undo: CancelScope,
    ) -> bool {
        let mut is_undone = false;
        self.update_ledger(slot, |ledger, limit, own| {
            is_undone = own == birth && undo.cancel_booking(ledger, limit, now, booked);
        });
        is_undone
    }

    /// Forgets the key.
    pub(in super::super) fn reset(&mut self, slot: u32) {
        self.stats.reset += 1;
        self.remove(slot);
    }

    /// Stores a key of a snapshot.
    pub(in super::super) fn restore(
        &mut self,
        new: NewEntry<K, A>,
        now: Timestamp,
    ) -> Result<(), RestoreError>
    where
        K: Eq + Clone,
    {
        let need = RoomRequest {
            evict: false,
            block: new.blocked_until > now,
        };
        if self.find(&Lookup::new(&new.key, new.hash, now)).is_some() {
            return Err(RestoreError::Duplicate);
        }
        if !self.make_room(now, need) {
            return Err(RestoreError::Full);
        }
        self.insert(new);
        Ok(())
    }

    /// Visits every key that is active at `now`: its entry, its limit, the time at which it is idle, and the end of its
    /// block.
    pub(in super::super) fn for_each(
        &mut self,
        now: Timestamp,
        mut each: impl FnMut(&KeyEntry<K, A>, &A, Timestamp, Timestamp),
    ) {
        self.follow_clock(now);
        for slot in 0..self.entries.slots() {
            self.migrate_entry(slot);
            self.keep_outstanding(slot, now);
            let Some(entry) = self.entries.get(slot) else {
                continue;
            };
            let limit = entry.tier.as_deref().unwrap_or(&self.limit);
            let (idle, until) = (
                limit.idle_at(entry.ledger.state()),
                self.blocked_until(entry),
            );
            if idle.max(until) > now {
                each(entry, limit, idle, until);
            }
        }
    }

    pub(in super::super) fn stats(&self) -> Stats {
        Stats {
            slots: u64::from(self.entries.slots()),
            ..self.stats
        }
    }

    /// Changes the state of an existing key, and updates its position in the heap.
    fn update_ledger(&mut self, slot: u32, change: impl FnOnce(&mut Ledger<A>, &A, u64)) {
        if let Some(entry) = self.entries.get_mut(slot) {
            let limit = entry.tier.as_deref().unwrap_or(&self.limit);
            change(&mut entry.ledger, limit, u64::from(entry.birth.get()));
            self.update_heap_position(slot);
        }
    }
}
