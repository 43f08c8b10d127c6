//! One part of an exact-key table: keys and their states, under one lock that the table holds.
//!
//! A call searches, asks one state, and does a few steps of expiry and of following a changed rate.
//! Only a new key at the cap may look at more keys, each of which was charged since it was last
//! looked at.

use std::borrow::Borrow;
use std::collections::{BTreeMap, VecDeque};
use std::num::NonZeroU32;
use std::sync::Arc;

use tollgate_core::{Decision, Ledger, Outcome, Timestamp};

use super::key_entry::{HeapPosition, KeyEntry};
use super::state_request::{StateAnswer, StateRequest};
use super::table_algorithm::{KeyTiers, TableAlgorithm};
use crate::clock_steps::LatestTime;
use crate::holds::OpenHolds;
use crate::key_table::Stats;
use crate::key_table::due_heap::DueHeap;
use crate::key_table::slab::Slab;
use crate::key_table::slot_index::{SlotIndex, tag};

mod administration;
mod expiry;
mod holds;
mod migration;

use migration::{LimitChange, limit_change};

/// The birth of a charge without an entry: its key passed uncounted.
pub(super) const NO_ENTRY: u64 = 0;

/// Keys with their states.
#[derive(Debug)]
pub(super) struct Shard<K, A: TableAlgorithm> {
    /// The limiter's own rate, by which keys without a tier are counted.
    limit: A,
    /// In force instead of `limit`: a rate of zero or unlimited that counts nothing.
    non_counting_limit: Option<A>,
    index: SlotIndex,
    entries: Slab<KeyEntry<K, A>>,
    /// The keys that aren't blocked, by when they are idle, or earlier.
    idle_heap: DueHeap,
    /// The blocked ones by when that is over, apart, so that eviction never meets them.
    blocked_heap: DueHeap,
    /// How many keys it may hold, and how many blocked ones beyond.
    room: usize,
    room_for_blocked: usize,
    /// A key that was dropped was idle by this time, so no key starts anew before it.
    high_water: Timestamp,
    latest_time: LatestTime,
    /// The rates that some keys have not been carried over to yet, each with the time from which it is in
    /// force, oldest first. The keys furthest behind are still under the first.
    pending_changes: VecDeque<(Timestamp, A)>,
    /// How often the rate was changed so far.
    rate_version: u32,
    /// All slots below this one follow the latest change.
    migrated_slots: u32,
    last_birth: u32,
    /// What is held of the keys in some slots: an estimate, until it is settled.
    holds_by_slot: BTreeMap<u32, OpenHolds>,
    /// What it has done; the decisions are counted elsewhere.
    stats: Stats,
}

/// Which key is asked for, and when.
#[derive(Debug)]
pub(super) struct Lookup<'a, Q: ?Sized> {
    pub(super) key: &'a Q,
    pub(super) hash: u64,
    pub(super) now: Timestamp,
    /// What the clock shows. That is later than `now` for a waiter that is charged as of its turn.
    pub(super) clock_time: Timestamp,
    /// Whether the bucket is asked that keys without a slot share, as any of them.
    pub(super) is_shared: bool,
}

impl<'a, Q: ?Sized> Lookup<'a, Q> {
    /// A key that is asked for at the time that the clock shows.
    #[inline]
    pub(super) const fn new(key: &'a Q, hash: u64, now: Timestamp) -> Self {
        let clock = now;
        Self {
            key,
            hash,
            now,
            clock_time: clock,
            is_shared: false,
        }
    }
}

/// What keys of this type are looked up by: themselves, or what they borrow as.
pub trait KeyQuery<K> {
    fn is_key(&self, key: &K) -> bool;

    fn to_key(&self) -> K;
}

impl<K: Borrow<Q>, Q: Eq + ToOwned<Owned = K> + ?Sized> KeyQuery<K> for Q {
    #[inline]
    fn is_key(&self, key: &K) -> bool {
        key.borrow() == self
    }

    fn to_key(&self) -> K {
        self.to_owned()
    }
}

/// Which limit a key is asked under.
#[derive(Debug)]
pub(super) enum LimitSource<'a, K, A> {
    /// The limiter's rate, or what its function says of the key.
    ByKey(&'a KeyTiers<K>),
    /// A tier that came with the call.
    FromCall(&'a Arc<A>),
    /// The one that the key is under now, or its own if it is new.
    Current(&'a KeyTiers<K>),
}

/// The result of an act.
#[derive(Debug)]
pub(super) enum ShardAnswer<T> {
    /// The key has an entry, of this birth, or needs none.
    Applied(T, u64),
    /// The key is new and there is no slot for it: what a fresh state said at this time.
    Full(T, Timestamp),
}

impl<T> ShardAnswer<T> {
    /// The answer, and the birth of the key's entry; a key without a slot has none.
    pub(super) fn into_parts(self) -> (T, u64) {
        match self {
            Self::Applied(answer, birth) => (answer, birth),
            Self::Full(answer, _) => (answer, NO_ENTRY),
        }
    }
}

/// Which slots a new key may take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct RoomRequest {
    /// That of an active key: the one that is idle next.
    pub(super) evict: bool,
    /// Those that are kept for blocked keys.
    pub(super) block: bool,
}

/// Why a key of a snapshot wasn't stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RestoreError {
    /// It is there already.
    Duplicate,
    /// There is no slot for it.
    Full,
}

/// For how many keys a shard keeps one slot that only a blocked key takes.
const KEYS_OF_ONE_BLOCK: usize = 64;

/// A key to be stored.
#[derive(Debug)]
pub(super) struct NewEntry<K, A: TableAlgorithm> {
    pub(super) key: K,
    pub(super) hash: u64,
    pub(super) ledger: Ledger<A>,
    pub(super) tier: Option<Arc<A>>,
    pub(super) is_given: bool,
    pub(super) blocked_until: Timestamp,
}

impl<K, A: TableAlgorithm> Shard<K, A> {
    /// The most room that a shard may have: the number of a slot has 30 bits in an entry.
    pub(super) const MOST_ROOM: usize = 1 << 29;

    /// Room for this many active keys, at most [`MOST_ROOM`](Self::MOST_ROOM).
    pub(super) fn new(limit: A, room: usize) -> Self {
        let slots = Self::slots_for(room);
        Self {
            limit,
            non_counting_limit: (!limit.is_counting()).then_some(limit),
            index: SlotIndex::new(slots),
            entries: Slab::new(slots),
            idle_heap: DueHeap::new(slots),
            blocked_heap: DueHeap::new(slots),
            room,
            room_for_blocked: slots - room,
            high_water: Timestamp::ZERO,
            latest_time: LatestTime::new(&limit),
            pending_changes: VecDeque::new(),
            rate_version: 0,
            migrated_slots: 0,
            last_birth: 0,
            holds_by_slot: BTreeMap::new(),
            stats: Stats::default(),
        }
    }

    /// The slots of a shard with this much room, with those that are kept for blocked keys.
    pub(super) fn slots_for(room: usize) -> usize {
        room + room / KEYS_OF_ONE_BLOCK + 16
    }

    /// The most bytes that a shard with this much room allocates, but for what keys and states own.
    pub(super) fn memory_for(room: usize) -> usize {
        let slots = Self::slots_for(room);
        Slab::<KeyEntry<K, A>>::bytes(slots)
            + SlotIndex::bytes(slots)
            + 2 * DueHeap::bytes(slots)
            + migration::MAX_PENDING_CHANGES * size_of::<(Timestamp, A)>()
    }

    /// Puts a question to the key's state, which is stored if it is new and was charged.
    #[inline]
    pub(super) fn apply<T: StateAnswer>(
        &mut self,
        ask: &Lookup<'_, impl KeyQuery<K> + ?Sized>,
        under: &LimitSource<'_, K, A>,
        act: &StateRequest<impl Fn(&mut Ledger<A>, &A, Timestamp, u64) -> T>,
        need: RoomRequest,
    ) -> ShardAnswer<T> {
        self.migrate_some();
        if !act.is_peek() {
            self.latest_time.advance_to(ask.now);
        }
        let Some(slot) = self.find_without_holds(ask) else {
            return self.apply_to_new_key(ask, under, act, need);
        };
        if act.is_peek() && self.holds_by_slot.contains_key(&slot) {
            return self.peek_ahead(slot, |shard| {
                shard.keep_outstanding(slot, ask.now);
                shard.apply_to_entry(slot, ask, under, act, need)
            });
        }
        self.keep_outstanding(slot, ask.now);
        self.apply_to_entry(slot, ask, under, act, need)
    }

    #[inline]
    fn apply_to_entry<T: StateAnswer>(
        &mut self,
        slot: u32,
        ask: &Lookup<'_, impl KeyQuery<K> + ?Sized>,
        under: &LimitSource<'_, K, A>,
        act: &StateRequest<impl Fn(&mut Ledger<A>, &A, Timestamp, u64) -> T>,
        need: RoomRequest,
    ) -> ShardAnswer<T> {
        if let Some((blocked, birth)) = self.denial_if_blocked(slot, ask.now, under, act.is_peek())
        {
            let told = T::from_denial(blocked)
                .map_denial(|blocked| self.decision_after_block(slot, ask.now, act.cost, blocked));
            return ShardAnswer::Applied(told, birth);
        }
        let out = self.outstanding(slot);
        let Some(entry) = self.entries.get_mut(slot) else {
            return self.apply_to_new_key(ask, under, act, need);
        };
        match (limit_change(entry, &self.limit, under, ask.now), under) {
            (Some(change), _) => self.apply_at_other_limit(slot, change, act, ask.now, out),
            (None, LimitSource::ByKey(_))
                if self.non_counting_limit.is_some() && entry.tier.is_none() =>
            {
                self.apply_at_other_limit(slot, LimitChange::OWN, act, ask.now, out)
            }
            // A charge only makes the key idle later, so its place in the heap may stay.
            (None, _) => {
                let limit = entry.tier.as_deref().unwrap_or(&self.limit);
                let answer = (act.apply)(&mut entry.ledger, limit, ask.now, out);
                ShardAnswer::Applied(answer, u64::from(entry.birth.get()))
            }
        }
    }

    /// What keys without a tier are judged by.
    pub(super) fn limit_in_force(&self) -> &A {
        self.non_counting_limit.as_ref().unwrap_or(&self.limit)
    }

    /// Asks a fresh state, and stores it if it was charged.
    #[cold]
    fn apply_to_new_key<T: StateAnswer>(
        &mut self,
        ask: &Lookup<'_, impl KeyQuery<K> + ?Sized>,
        under: &LimitSource<'_, K, A>,
        act: &StateRequest<impl Fn(&mut Ledger<A>, &A, Timestamp, u64) -> T>,
        need: RoomRequest,
    ) -> ShardAnswer<T> {
        let now = ask.now.max(self.high_water);
        let (mut key, mut tier) = (None, None);
        match under {
            LimitSource::FromCall(given) => tier = Some(Arc::clone(given)),
            LimitSource::ByKey(rate_of) | LimitSource::Current(rate_of) if !rate_of.is_none() => {
                let owned = ask.key.to_key();
                tier = rate_of.tier(&owned);
                key = Some(owned);
            }
            LimitSource::ByKey(_) | LimitSource::Current(_) => {}
        }
        let limit = tier.as_deref().unwrap_or(self.limit_in_force());
        let mut ledger = Ledger::default();
        let answer = (act.apply)(&mut ledger, limit, now, 0);
        if limit.rate().is_unlimited() || *ledger.state() == A::State::default() {
            return ShardAnswer::Applied(answer, NO_ENTRY);
        }
        if !self.make_room(ask.now, need) {
            return ShardAnswer::Full(answer, now);
        }
        let birth = self.insert(NewEntry {
            // A call into the caller's code, before anything is half done.
            key: key.unwrap_or_else(|| ask.key.to_key()),
            hash: ask.hash,
            ledger,
            tier,
            is_given: matches!(under, LimitSource::FromCall(_)),
            blocked_until: Timestamp::ZERO,
        });
        ShardAnswer::Applied(answer, birth)
    }

    /// The key's slot, with its state carried over to the limit in force.
    // Always inlined: on the way of every check, whoever else calls it.
    #[inline(always)]
    pub(super) fn find(&mut self, ask: &Lookup<'_, impl KeyQuery<K> + ?Sized>) -> Option<u32> {
        let slot = self.find_without_holds(ask)?;
        self.keep_outstanding(slot, ask.now);
        Some(slot)
    }

    /// The same, with what is out as it was kept so far.
    #[inline]
    fn find_without_holds(&mut self, ask: &Lookup<'_, impl KeyQuery<K> + ?Sized>) -> Option<u32> {
        self.follow_clock(ask.clock_time);
        let entries = &self.entries;
        let is = |slot| {
            ask.is_shared
                || entries
                    .get(slot)
                    .is_some_and(|entry| ask.key.is_key(&entry.key))
        };
        let slot = self.index.find(tag(ask.hash), is)?;
        self.migrate_entry(slot);
        Some(slot)
    }

    /// Stores a key for which room was made; its birth.
    fn insert(&mut self, new: NewEntry<K, A>) -> u64 {
        let birth = next_birth(&mut self.last_birth);
        if let Some(tier) = &new.tier {
            self.latest_time.extend_reach(tier.as_ref());
        }
        let slot = self.entries.insert(KeyEntry {
            key: new.key,
            ledger: new.ledger,
            tier: new.tier,
            tag: tag(new.hash),
            birth,
            rate_version: self.rate_version,
            place: HeapPosition::new(new.is_given),
        });
        self.index.insert(tag(new.hash), slot);
        if new.blocked_until > Timestamp::ZERO {
            self.enter_heap(slot, new.blocked_until, true);
        } else {
            self.enter_idle_heap(slot);
        }
        u64::from(birth.get())
    }

    fn remove(&mut self, slot: u32) {
        self.leave_heap(slot);
        self.holds_by_slot.remove(&slot);
        if let Some(entry) = self.entries.remove(slot) {
            self.index.remove(entry.tag, slot);
        }
    }

    /// What a cost is told that has to wait for what the key owes beyond its block, too.
    fn decision_after_block(
        &self,
        slot: u32,
        now: Timestamp,
        cost: u64,
        mut blocked: Decision,
    ) -> Decision {
        if let Some(entry) = self.entries.get(slot) {
            let (limit, ends) = (entry.tier.as_deref(), self.blocked_until(entry));
            let then = entry.ledger.peek(limit.unwrap_or(&self.limit), ends, cost);
            if then.outcome == Outcome::Denied {
                blocked.set_wait((ends - now).saturating_add(then.wait_or_max()));
            }
        }
        blocked
    }

    /// What a blocked key is told, and its birth; nothing if it isn't blocked at `now`. A look, which may be at
    /// a later time, doesn't end a block that is over by then.
    #[inline(always)]
    fn denial_if_blocked(
        &mut self,
        slot: u32,
        now: Timestamp,
        under: &LimitSource<'_, K, A>,
        looks: bool,
    ) -> Option<(Decision, u64)> {
        let entry = self.entries.get(slot)?;
        if !entry.place.is_blocked() {
            return None;
        }
        let until = self.blocked_until(entry);
        if now >= until {
            if !looks {
                self.unblock(slot);
            }
            return None;
        }
        let own = entry.tier.as_deref().unwrap_or(&self.limit);
        let (idle, wait) = (own.idle_at(entry.ledger.state()), until - now);
        let limit = match limit_change(entry, &self.limit, under, now) {
            Some(LimitChange { tier, .. }) => {
                tier.as_deref().unwrap_or(self.limit_in_force()).limit()
            }
            None => own.limit(),
        };
        let reset_after = idle.max(until) - now;
        let decision = Decision::new(Outcome::Denied, limit, 0, wait, reset_after);
        Some((decision, u64::from(entry.birth.get())))
    }
}

/// A number that no entry of the shard had for long.
fn next_birth(births: &mut u32) -> NonZeroU32 {
    *births = births.wrapping_add(1).max(1);
    NonZeroU32::new(*births).unwrap_or(NonZeroU32::MIN)
}
