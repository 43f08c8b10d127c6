//! What is held of a key until it is settled: kept beside its entry, because few keys have any.

use tollgate_core::{Booked, Ledger, Timestamp, Unbooked};

use super::super::state_request::Act;
use super::super::table_algorithm::Kept;
use super::{KeyQuery, LimitSource, Lookup, NOBODY, Need, Shard, ShardAnswer};
use crate::holds::{HoldId, OpenHolds};

impl<K, A: Kept> Shard<K, A> {
    /// Keeps what is out of the key in this slot from draining.
    #[inline]
    pub(super) fn keep_out(&mut self, slot: u32, now: Timestamp) {
        if !self.held.is_empty() {
            self.pass_time(slot, now);
        }
    }

    /// How many tokens of the key in this slot were taken and may still be spent.
    #[inline]
    pub(super) fn out(&self, slot: u32) -> u64 {
        if self.held.is_empty() {
            return 0;
        }
        self.held.get(&slot).map_or(0, OpenHolds::out)
    }

    /// Looks at a key of which something is out, and restores it afterwards: the look may be at a later time.
    #[cold]
    pub(super) fn peek_ahead<T>(&mut self, slot: u32, look: impl FnOnce(&mut Self) -> T) -> T {
        let held = self.held.get(&slot).cloned();
        let ledger = self.entries.get(slot).map(|entry| entry.ledger.clone());
        let seen = look(self);
        if let (Some(held), Some(ledger)) = (held, ledger)
            && let Some(entry) = self.entries.get_mut(slot)
        {
            entry.ledger = ledger;
            self.held.insert(slot, held);
        }
        seen
    }

    #[cold]
    fn pass_time(&mut self, slot: u32, now: Timestamp) {
        self.change_holds(slot, |holds, ledger, limit| {
            holds.pass_time(ledger, limit, now)
        });
    }

    /// Changes what is out of the key in this slot, if anything is, with its state and limit.
    pub(super) fn change_holds(
        &mut self,
        slot: u32,
        change: impl FnOnce(&mut OpenHolds, &mut Ledger<A>, &A),
    ) {
        if let Some(holds) = self.held.get_mut(&slot)
            && let Some(entry) = self.entries.get_mut(slot)
        {
            let limit = entry.tier.as_deref().unwrap_or(&self.limit);
            change(holds, &mut entry.ledger, limit);
            if holds.is_empty() {
                self.held.remove(&slot);
            }
        }
    }

    /// Takes an estimate, and keeps track of it until then: not if it was refused, or if the key has no entry,
    /// because it isn't limited.
    pub(in super::super) fn hold(
        &mut self,
        ask: &Lookup<'_, impl KeyQuery<K> + ?Sized>,
        under: &LimitSource<'_, K, A>,
        act: &Act<impl Fn(&mut Ledger<A>, &A, Timestamp, u64) -> Result<Booked, Unbooked>>,
        need: Need,
        until: Timestamp,
    ) -> (ShardAnswer<Result<Booked, Unbooked>>, Option<HoldId>) {
        let answer = self.act(ask, under, act, need);
        // Under the same lock, so that nothing drains between. What isn't counted isn't out.
        let id = match &answer {
            ShardAnswer::Given(Ok(booked), birth) if *birth != NOBODY && act.cost > 0 => {
                self.find(ask).map(|slot| {
                    let holds = self.held.entry(slot).or_default();
                    let id = holds.open(*booked, act.cost, until);
                    self.settle(slot);
                    id
                })
            }
            _ => None,
        };
        (answer, id)
    }

    /// Prolongs a hold; nothing if it is over, or the key was dropped.
    pub(in super::super) fn prolong_hold(&mut self, slot: u32, id: &mut HoldId, until: Timestamp) {
        let holds = self.held.get_mut(&slot);
        if let Some(new) = holds.and_then(|holds| holds.prolong(*id, until)) {
            *id = new;
        }
        self.settle(slot);
    }

    /// Ends a hold of which so much was spent; nothing if it is over, or the key was dropped.
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
        self.settle(slot);
    }
}
