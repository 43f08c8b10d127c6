//! The holds of keys until they are settled: stored beside the entries, because few keys have any.

use tollgate_core::{Booking, BookingError, Ledger, Timestamp};

use super::super::state_request::StateRequest;
use super::super::table_algorithm::TableAlgorithm;
use super::{KeyQuery, LimitSource, Lookup, NO_ENTRY, RoomRequest, Shard, ShardAnswer};
use crate::holds::{HoldId, OpenHolds};

impl<K, A: TableAlgorithm> Shard<K, A> {
    /// Keeps the outstanding tokens of the key in this slot from draining.
    #[inline]
    pub(super) fn keep_outstanding(&mut self, slot: u32, now: Timestamp) {
        if !self.holds_by_slot.is_empty() {
            self.expire_holds(slot, now);
        }
    }

    /// The outstanding tokens of the key in this slot: taken, and perhaps unspent.
    #[inline]
    pub(super) fn outstanding(&self, slot: u32) -> u64 {
        if self.holds_by_slot.is_empty() {
            return 0;
        }
        self.holds_by_slot
            .get(&slot)
            .map_or(0, OpenHolds::held_tokens)
    }

    /// Runs a peek on a key with outstanding tokens, and restores the key afterwards, because the peek may be at a
    /// later time.
    #[cold]
    pub(super) fn peek_ahead<T>(&mut self, slot: u32, look: impl FnOnce(&mut Self) -> T) -> T {
        let held = self.holds_by_slot.get(&slot).cloned();
        let ledger = self.entries.get(slot).map(|entry| entry.ledger.clone());
        let seen = look(self);
        if let (Some(held), Some(ledger)) = (held, ledger)
            && let Some(entry) = self.entries.get_mut(slot)
        {
            entry.ledger = ledger;
            self.holds_by_slot.insert(slot, held);
        }
        seen
    }

    #[cold]
    fn expire_holds(&mut self, slot: u32, now: Timestamp) {
        self.change_holds(slot, |holds, ledger, limit| {
            holds.expire_until(ledger, limit, now)
        });
    }

    /// Changes the holds of the key in this slot, if it has any, with its state and limit.
    pub(super) fn change_holds(
        &mut self,
        slot: u32,
        change: impl FnOnce(&mut OpenHolds, &mut Ledger<A>, &A),
    ) {
        if let Some(holds) = self.holds_by_slot.get_mut(&slot)
            && let Some(entry) = self.entries.get_mut(slot)
        {
            let limit = entry.tier.as_deref().unwrap_or(&self.limit);
            change(holds, &mut entry.ledger, limit);
            if holds.is_empty() {
                self.holds_by_slot.remove(&slot);
            }
        }
    }

    /// Takes an estimate, and records it until then. A denied estimate isn't recorded, and neither is one of a key
    /// without an entry, because such a key isn't limited.
    pub(in super::super) fn hold(
        &mut self,
        ask: &Lookup<'_, impl KeyQuery<K> + ?Sized>,
        under: &LimitSource<'_, K, A>,
        act: &StateRequest<
            impl Fn(&mut Ledger<A>, &A, Timestamp, u64) -> Result<Booking, BookingError>,
        >,
        need: RoomRequest,
        until: Timestamp,
    ) -> (ShardAnswer<Result<Booking, BookingError>>, Option<HoldId>) {
        let answer = self.apply(ask, under, act, need);
        // Under the same lock, so that nothing drains in between. Uncounted tokens can't be outstanding.
        let id = match &answer {
            ShardAnswer::Applied(Ok(booked), birth) if *birth != NO_ENTRY && act.cost > 0 => {
                self.find(ask).map(|slot| {
                    let holds = self.holds_by_slot.entry(slot).or_default();
                    let id = holds.open(*booked, act.cost, until);
                    self.update_heap_position(slot);
                    id
                })
            }
            _ => None,
        };
        (answer, id)
    }

    /// Extends a hold; does nothing if it has expired, or the key was dropped.
    pub(in super::super) fn prolong_hold(&mut self, slot: u32, id: &mut HoldId, until: Timestamp) {
        let holds = self.holds_by_slot.get_mut(&slot);
        if let Some(new) = holds.and_then(|holds| holds.extend(*id, until)) {
            *id = new;
        }
        self.update_heap_position(slot);
    }

    /// Ends a hold of which `spent` tokens were spent; does nothing if it has expired, or the key was dropped.
    pub(in super::super) fn settle_hold(
        &mut self,
        slot: u32,
        now: Timestamp,
        id: HoldId,
        spent: u64,
    ) {
        self.change_holds(slot, |holds, ledger, limit| {
            holds.settle(ledger, limit, now, id, spent);
        });
        self.update_heap_position(slot);
    }
}
