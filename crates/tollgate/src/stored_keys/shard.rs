//! One part of a stored-key table: keys and their states, under one lock that the table holds.
//!
//! A call finds the key, runs a request on one state, and does a few steps of expiry and of migration to a changed
//! rate. Only a new key in a full table may examine more keys; each of those was charged since it was last examined.

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

/// The birth of a charge without an entry: its key passed without being counted.
pub(super) const NO_ENTRY: u64 = 0;

/// Keys with their states.
#[derive(Debug)]
pub(super) struct Shard<K, A: TableAlgorithm> {
    /// The limiter's own rate, under which keys without a tier count.
    limit: A,
    /// A rate of zero or unlimited that counts nothing, in force instead of `limit`.
    non_counting_limit: Option<A>,
    index: SlotIndex,
    entries: Slab<KeyEntry<K, A>>,
    /// The keys that aren't blocked, by the time at which they are idle, or an earlier time.
    idle_heap: DueHeap,
    /// The blocked keys by the end of their blocks. They are separate, so that eviction never finds them.
    blocked_heap: DueHeap,
    /// How many keys it may hold; `room_for_blocked` is for more keys that are blocked.
    room: usize,
    room_for_blocked: usize,
    /// Every dropped key was idle by this time, so no key starts afresh before it.
    high_water: Timestamp,
    latest_time: LatestTime,
    /// The rates that some keys have not moved to yet, each with the time from which it is in force, oldest first. The
    /// keys furthest behind are still under the first rate.
    pending_changes: VecDeque<(Timestamp, A)>,
    /// The number of changes of the rate so far.
    rate_version: u32,
    /// All slots below this one follow the latest change.
    migrated_slots: u32,
    last_birth: u32,
    /// The holds of the keys in some slots: estimates, until they are settled.
    holds_by_slot: BTreeMap<u32, OpenHolds>,
    /// Statistics of the shard; decisions are counted elsewhere.
    stats: Stats,
}

/// The key of a request, and its time.
#[derive(Debug)]
pub(super) struct Lookup<'a, Q: ?Sized> {
    pub(super) key: &'a Q,
    pub(super) hash: u64,
    pub(super) now: Timestamp,
    /// The time on the clock. It is later than `now` for a waiter that is charged as of the time at which it became
    /// due.
    pub(super) clock_time: Timestamp,
    /// Whether the lookup is for the bucket that keys without a slot share, instead of one key.
    pub(super) is_shared: bool,
}

impl<'a, Q: ?Sized> Lookup<'a, Q> {
    /// A lookup at the time that the clock shows.
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

/// A borrowed form by which keys of this type are looked up.
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

/// The limit for a request of a key.
#[derive(Debug)]
pub(super) enum LimitSource<'a, K, A> {
    /// The limiter's rate, or the tier that its function selects.
    ByKey(&'a KeyTiers<K>),
    /// A tier that came with the call.
    FromCall(&'a Arc<A>),
    /// The present limit of the key, or its own limit if it is new.
    Current(&'a KeyTiers<K>),
}

/// The result of a request to a shard.
#[derive(Debug)]
pub(super) enum ShardAnswer<T> {
    /// The key has an entry, of this birth, or needs none.
    Applied(T, u64),
    /// The key is new and there is no slot for it: the result of a fresh state at this time.
    Full(T, Timestamp),
}

impl<T> ShardAnswer<T> {
    /// The result, and the birth of the key's entry. A key without a slot has none.
    pub(super) fn into_parts(self) -> (T, u64) {
        match self {
            Self::Applied(answer, birth) => (answer, birth),
            Self::Full(answer, _) => (answer, NO_ENTRY),
        }
    }
}

/// The slots that a new key may take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct RoomRequest {
    /// The slot of an active key: the key that will be idle next.
    pub(super) evict: bool,
    /// The slots that are reserved for blocked keys.
    pub(super) block: bool,
}

/// Why a key of a snapshot wasn't stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RestoreError {
    /// The key is there already.
    Duplicate,
    /// There is no slot for it.
    Full,
}

/// A shard reserves one slot for a blocked key per this many keys.
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
    /// The most keys that a shard may have room for: an entry stores the number of a slot in 30 bits.
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

    /// The slots of a shard with this much room, including those reserved for blocked keys.
    pub(super) fn slots_for(room: usize) -> usize {
        room + room / KEYS_OF_ONE_BLOCK + 16
    }

    /// The most bytes that a shard with this much room allocates, without the memory that keys and states own.
    pub(super) fn memory_for(room: usize) -> usize {
        let slots = Self::slots_for(room);
        Slab::<KeyEntry<K, A>>::bytes(slots)
            + SlotIndex::bytes(slots)
            + 2 * DueHeap::bytes(slots)
            + migration::MAX_PENDING_CHANGES * size_of::<(Timestamp, A)>()
    }

    /// Runs a request on the key's state. A new key is stored if it was charged.
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
            // A charge only makes the key idle later, so its heap position may stay: a heap time may be too early.
            (None, _) => {
                let limit = entry.tier.as_deref().unwrap_or(&self.limit);
                let answer = (act.apply)(&mut entry.ledger, limit, ask.now, out);
                ShardAnswer::Applied(answer, u64::from(entry.birth.get()))
            }
        }
    }

    /// The limit of keys without a tier.
    pub(super) fn limit_in_force(&self) -> &A {
        self.non_counting_limit.as_ref().unwrap_or(&self.limit)
    }

    /// Runs a request on a fresh state, and stores the state if it was charged.
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
            // This calls the caller's code, so it comes before any change that a panic could leave half done.
            key: key.unwrap_or_else(|| ask.key.to_key()),
            hash: ask.hash,
            ledger,
            tier,
            is_given: matches!(under, LimitSource::FromCall(_)),
            blocked_until: Timestamp::ZERO,
        });
        ShardAnswer::Applied(answer, birth)
    }

    /// The key's slot, with its state moved to the limit in force.
    // Always inlined: every check runs it, whatever other callers there are.
    #[inline(always)]
    pub(super) fn find(&mut self, ask: &Lookup<'_, impl KeyQuery<K> + ?Sized>) -> Option<u32> {
        let slot = self.find_without_holds(ask)?;
        self.keep_outstanding(slot, ask.now);
        Some(slot)
    }

    /// As [`find`](Self::find), without raising the state to the outstanding tokens.
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

    /// Stores a key for which room was made; returns its birth.
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

    /// The decision for a cost whose wait includes the key's debt after its block.
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

    /// The denial of a blocked key, and its birth; `None` if it isn't blocked at `now`. A peek, which may be at a later
    /// time, doesn't remove a block that has expired by then.
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

/// A number that no recent entry of the shard had.
fn next_birth(births: &mut u32) -> NonZeroU32 {
    *births = births.wrapping_add(1).max(1);
    NonZeroU32::new(*births).unwrap_or(NonZeroU32::MIN)
}
