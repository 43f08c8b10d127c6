//! What is held of a key until it is settled: kept beside its entry, because few keys have any.

use tollgate_core::{Booked, Ledger, Timestamp, Unbooked};

use super::super::act::Reserve;
use super::super::kept::Kept;
use super::{Answer, KeyQuery, Lookup, NOBODY, Need, Shard, Under};
use crate::holds::{HoldId, Holds};

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
        self.held.get(&slot).map_or(0, Holds::out)
    }

    /// Looks at a key of which something is out, and restores it afterwards: the look may be at a later time.
    #[cold]
    pub(super) fn look_ahead<T>(&mut self, slot: u32, look: impl FnOnce(&mut Self) -> T) -> T {
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
        change: impl FnOnce(&mut Holds, &mut Ledger<A>, &A),
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
        under: &Under<'_, K, A>,
        act: &Reserve,
        need: Need,
        until: Timestamp,
    ) -> (Answer<Result<Booked, Unbooked>>, Option<HoldId>) {
        let answer = self.act(ask, under, act, need);
        // Under the same lock, so that nothing drains between. What isn't counted isn't out.
        let id = match &answer {
            Answer::Given(Ok(booked), birth) if *birth != NOBODY && act.cost > 0 => {
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
    pub(in super::super) fn prolong_hold(
        &mut self,
        ask: &Lookup<'_, impl KeyQuery<K> + ?Sized>,
        id: &mut HoldId,
        until: Timestamp,
    ) {
        let Some(slot) = self.find(ask) else {
            return;
        };
        self.keep_out(slot, ask.now);
        let holds = self.held.get_mut(&slot);
        if let Some(new) = holds.and_then(|holds| holds.prolong(*id, until)) {
            *id = new;
        }
        self.settle(slot);
    }

    /// Ends a hold of which so much was spent; nothing if it is over, or the key was dropped.
    pub(in super::super) fn settle_hold(
        &mut self,
        ask: &Lookup<'_, impl KeyQuery<K> + ?Sized>,
        id: HoldId,
        spent: u64,
    ) {
        let Some(slot) = self.find(ask) else {
            return;
        };
        self.change_holds(slot, |holds, ledger, limit| {
            holds.settle(ledger, limit, ask.now, id, spent);
        });
        self.settle(slot);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tollgate_core::{Arithmetic, Rate, TokenBucket};

    use super::super::super::act::Check;
    use super::super::super::kept::RateOf;
    use super::*;

    const NEED: Need = Need {
        evict: false,
        block: false,
    };

    fn ask(key: &str, now: Timestamp) -> Lookup<'_, str> {
        let hash = key
            .bytes()
            .fold(7, |hash, byte| hash * 31 + u64::from(byte));
        Lookup::new(key, hash, now)
    }

    fn hold(shard: &mut Shard<String, TokenBucket>, key: &str, now: Timestamp) -> HoldId {
        let act = Reserve {
            cost: 1,
            patience: Duration::ZERO,
        };
        let ask = ask(key, now);
        let until = now + Duration::from_secs(1);
        let (_, id) = shard.hold(&ask, &Under::Own(&RateOf(None)), &act, NEED, until);
        id.expect("a full bucket")
    }

    #[test]
    fn nothing_is_kept_of_holds_that_ended() {
        let limit = TokenBucket::new(Rate::per_second(10)).unwrap();
        let mut shard = Shard::new(limit, 8);
        let at = Timestamp::from_secs;
        // Settled.
        let id = hold(&mut shard, "a", at(1));
        assert_eq!(shard.held.len(), 1);
        shard.settle_hold(&ask("a", at(1)), id, 1);
        assert!(shard.held.is_empty());
        // Reset, and settled then.
        let id = hold(&mut shard, "a", at(1));
        shard.reset(&ask("a", at(1)));
        assert!(shard.held.is_empty());
        shard.settle_hold(&ask("a", at(1)), id, 0);
        assert!(shard.held.is_empty());
        // Over, and its key asked for.
        hold(&mut shard, "a", at(1));
        let own = Under::Own(&RateOf(None));
        shard.act(&ask("a", at(3)), &own, &Check(1), NEED);
        assert!(shard.held.is_empty());
        // Over, and nobody asked for the key again: it goes with its entry.
        for key in ["b", "c", "d", "e"] {
            hold(&mut shard, key, at(4));
        }
        assert_eq!(shard.held.len(), 4);
        for (number, key) in ["f", "g", "h", "i", "j", "k"].into_iter().enumerate() {
            shard.act(&ask(key, at(10 + number as u64)), &own, &Check(1), NEED);
        }
        assert!(shard.held.is_empty());
    }
}
