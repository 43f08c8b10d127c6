//! Dropping keys that are idle, a few with each new key, and at the cap the one that is idle next.

use tollgate_core::Timestamp;

use super::super::kept::Kept;
use super::{Need, Shard};

/// How many idle keys a new key drops at most: more than one, so that a table shrinks again.
const DROPS_A_NEW_KEY: usize = 4;
/// How many keys a new key looks at below the cap, to drop them or put them back.
const LOOKS_A_NEW_KEY: usize = 8;

/// What was found when the key that is due next was looked at.
enum Look {
    Dropped,
    PutBack,
}

impl<K, A: Kept> Shard<K, A> {
    /// Drops a few idle keys and sees whether a slot is free, or can be made so.
    pub(super) fn make_room(&mut self, now: Timestamp, need: Need) -> bool {
        let mut drops = 0;
        for _ in 0..LOOKS_A_NEW_KEY {
            match self.look(now) {
                Some(Look::Dropped) if drops + 1 < DROPS_A_NEW_KEY => drops += 1,
                Some(Look::PutBack) => {}
                Some(Look::Dropped) | None => break,
            }
        }
        // At the cap no key is refused, and none evicted, while another is idle.
        while self.is_full(need) {
            if self.look(now).is_none() {
                return need.evict && self.evict(need);
            }
        }
        true
    }

    fn is_full(&self, need: Need) -> bool {
        self.entries.used() >= self.room_for(need)
    }

    fn room_for(&self, need: Need) -> usize {
        let blocks = if need.block { self.room_for_blocks } else { 0 };
        self.room + blocks
    }

    /// Looks at the key that is due next, if any is before `now`.
    fn look(&mut self, now: Timestamp) -> Option<Look> {
        let due = |(due, slot): (Timestamp, u32)| (due < now).then_some(slot);
        let open = self.open.first().and_then(due);
        let slot = open.or_else(|| self.guarded.first().and_then(due))?;
        self.work.examined += 1;
        self.follow(slot);
        // A key of which something is out is not idle.
        self.keep_out(slot, now);
        let entry = self.entries.get(slot)?;
        let limit = entry.tier.as_deref().unwrap_or(&self.limit);
        let idle = limit.idle_at(entry.ledger.state());
        if idle < now {
            self.high_water = self.high_water.max(idle).max(self.until(entry));
            self.work.expired += 1;
            self.remove(slot);
            return Some(Look::Dropped);
        }
        // It was charged since, or has more to pay than its block was long.
        if entry.place.is_guarded() {
            self.unguard(slot);
        } else {
            self.settle(slot);
        }
        Some(Look::PutBack)
    }

    /// Drops the key that is idle next, though it is active.
    fn evict(&mut self, need: Need) -> bool {
        // If blocked keys take even the room for others, dropping one key isn't enough.
        if self.entries.used() > self.room_for(need) {
            return false;
        }
        while let Some((due, slot)) = self.open.first() {
            self.work.examined += 1;
            self.follow(slot);
            self.settle(slot);
            if self.open.first() == Some((due, slot)) {
                self.work.evicted += 1;
                self.remove(slot);
                return true;
            }
        }
        false
    }
}
