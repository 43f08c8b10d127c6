//! What is held of a key until it is settled: kept beside its entry, because few keys have any.

use std::borrow::Borrow;

use tollgate_core::{Booked, Timestamp};

use super::super::kept::Kept;
use super::{Ask, Shard};
use crate::holds::HoldId;

impl<K, A: Kept> Shard<K, A> {
    /// Lets what is out of the key in this slot not drain.
    #[inline]
    pub(super) fn keep_out(&mut self, slot: u32, now: Timestamp) {
        if !self.held.is_empty() {
            self.pass_time(slot, now);
        }
    }

    #[cold]
    fn pass_time(&mut self, slot: u32, now: Timestamp) {
        if let Some(holds) = self.held.get_mut(&slot)
            && let Some(entry) = self.entries.get_mut(slot)
        {
            let limit = entry.tier.as_deref().unwrap_or(&self.limit);
            holds.pass_time(&mut entry.ledger, limit, now);
            if holds.is_empty() {
                self.held.remove(&slot);
            }
        }
    }

    /// Keeps track of a booking of this cost until then; nothing if the key has no entry, because it
    /// isn't limited.
    pub(in super::super) fn keep_track<Q>(
        &mut self,
        ask: &Ask<'_, Q>,
        booked: Booked,
        (cost, until): (u64, Timestamp),
    ) -> Option<HoldId>
    where
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        let slot = self.find(ask).filter(|_| cost > 0)?;
        Some(self.held.entry(slot).or_default().open(booked, cost, until))
    }

    /// Ends a hold of which so much was spent; nothing if it is over, or the key was dropped.
    pub(in super::super) fn settle_hold<Q>(&mut self, ask: &Ask<'_, Q>, id: HoldId, spent: u64)
    where
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        let Some(slot) = self.find(ask) else {
            return;
        };
        if let Some(holds) = self.held.get_mut(&slot)
            && let Some(entry) = self.entries.get_mut(slot)
        {
            let limit = entry.tier.as_deref().unwrap_or(&self.limit);
            holds.settle(&mut entry.ledger, limit, (ask.now, id, spent));
            if holds.is_empty() {
                self.held.remove(&slot);
            }
            self.settle(slot);
        }
    }
}
