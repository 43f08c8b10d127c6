//! All shards of one limiter and one algorithm, with the policy at the cap.

use std::time::Duration;

use tollgate_core::{Booked, Decision, Ledger, Outcome, Timestamp, Unbooked, units};

use super::entry::Entry;
use super::shard::{
    KeyQuery, LimitSource, Lookup, NOBODY, Need, NewEntry, RestoreError, Shard, ShardAnswer,
};
use super::state_request::{Act, RequestPurpose, StateAnswer};
use super::table_algorithm::{Kept, KeyTiers};
use crate::cell::{Ticket, Undo};
use crate::sharding::ShardLayout;
use crate::sync::{AtomicU64, Mutex, MutexGuard, Ordering, Padded, unpoisoned};
use crate::table::Stats;
use crate::{Algorithm, AtCap, Tier};

/// Fewest keys worth a shard of their own.
const SHARD_KEYS: usize = 1_024;
/// So many shards are enough that threads rarely meet at one lock.
const MAX_SHARDS_FOR_THREADS: usize = 256;
/// Most keys of a shard, so that none of its arrays takes long to grow.
const MAX_SHARD_KEYS: usize = 2_048;
const MAX_SHARDS: usize = 4_096;
/// Set in the birth of what was booked in the bucket that keys without a slot share.
const SHARED: u64 = 1 << 63;

/// A shard with its lock, on cache lines of its own.
type LockedShard<K, A> = Padded<Mutex<Shard<K, A>>>;

/// A table of keys for one algorithm.
#[derive(Debug)]
pub(super) struct Table<K, A: Kept> {
    shards: Box<[LockedShard<K, A>]>,
    sizes: ShardLayout,
    timeline: Option<Timeline>,
    /// The timeline's anchor, in nanoseconds of the clock. Read under the lock of a shard or of the shared
    /// bucket, and changed under all of them.
    anchor: AtomicU64,
    at_cap: AtCap,
    rate_of: KeyTiers<K>,
    /// The bucket that keys without a slot share: the only key of its shard. Its lock is also held while the rate
    /// changes.
    shared: LockedShard<K, A>,
    overflowed: AtomicU64,
}

/// The last time that GCRA's word can tell from the next, nine years after the anchor. A state
/// charged then is never idle, so it is never dropped.
const LAST_OF_GCRA: Timestamp = Timestamp::from_nanos(units::LAST_NANO);

/// How states count time, where that isn't as the clock does.
#[derive(Clone, Copy, Debug)]
pub(super) struct Timeline {
    /// When the clock shows this …
    pub(super) anchor: Timestamp,
    /// … states are at this time.
    pub(super) start: Timestamp,
    /// The last time that states can count. Once they are half-way there, or before the first, all are moved to
    /// another anchor.
    pub(super) last: Timestamp,
}

impl Timeline {
    /// How states of this algorithm count it on a clock that shows `now`. Only GCRA's word is too short for a clock
    /// that counts from long ago, and only for the others does it matter where the clock's origin is.
    pub(super) fn of(algorithm: Algorithm, now: Timestamp) -> Option<Self> {
        (algorithm == Algorithm::Gcra).then_some(Self {
            anchor: now,
            // Room for a clock that is set back, too.
            start: Timestamp::from_nanos(LAST_OF_GCRA.as_nanos() / 4),
            last: LAST_OF_GCRA,
        })
    }

    /// Whether states are so late, or so early, that they should count from another anchor.
    fn is_far(&self, local: Timestamp) -> bool {
        let is_late = local.as_nanos() > self.last.as_nanos() / 2;
        self.last != Timestamp::MAX && (is_late || local == Timestamp::ZERO)
    }
}

/// What a table is made of besides its limit.
#[derive(Debug)]
pub(super) struct Plan<K> {
    pub(super) capacity: usize,
    pub(super) at_cap: AtCap,
    pub(super) rate_of: KeyTiers<K>,
}

impl<K, A: Kept> Table<K, A> {
    pub(super) fn new(limit: A, plan: Plan<K>, timeline: Option<Timeline>) -> Self {
        let capacity = plan.capacity;
        let for_threads = (capacity / SHARD_KEYS).clamp(1, MAX_SHARDS_FOR_THREADS);
        let for_growth = (capacity / MAX_SHARD_KEYS).min(MAX_SHARDS);
        let mut sizes = ShardLayout::new(capacity, for_threads.max(for_growth));
        sizes.room = sizes.room.min(Shard::<K, A>::MOST_ROOM);
        let shard = || Padded(Mutex::new(Shard::new(limit, sizes.room)));
        Self {
            shards: (0..sizes.count).map(|_| shard()).collect(),
            sizes,
            timeline,
            anchor: AtomicU64::new(timeline.map_or(0, |timeline| timeline.anchor.as_nanos())),
            at_cap: plan.at_cap,
            rate_of: plan.rate_of,
            shared: Padded(Mutex::new(Shard::new(limit, 1))),
            overflowed: AtomicU64::new(0),
        }
    }

    /// Whether keys have no rates of their own by a function.
    pub(super) fn has_one_rate(&self) -> bool {
        self.rate_of.0.is_none()
    }

    /// The most bytes that it uses, but for what keys own, with all states under the rate in force.
    pub(super) fn memory_bound(&self) -> usize {
        let states = self.limit().heap_bytes();
        let shard = size_of::<LockedShard<K, A>>()
            .saturating_add(Shard::<K, A>::bytes(self.sizes.room))
            .saturating_add(Shard::<K, A>::slots(self.sizes.room).saturating_mul(states));
        shard.saturating_mul(self.shards.len())
    }

    /// Puts a question to a key's state, or to what stands for it at the cap.
    #[inline]
    pub(super) fn act<T: StateAnswer>(
        &self,
        ask: &Lookup<'_, impl KeyQuery<K> + ?Sized>,
        tier: Option<&Tier>,
        (cost, purpose): (u64, RequestPurpose),
        on: impl Fn(&mut Ledger<A>, &A, Timestamp, u64) -> T,
    ) -> T {
        let act = Act { cost, purpose, on };
        self.act_on(ask, tier, &act).0
    }

    /// Decides requests in their order, and locks a shard once for those of it in a row.
    pub(super) fn check_many<'q, Q: KeyQuery<K> + ?Sized + 'q>(
        &self,
        requests: impl Iterator<Item = (Lookup<'q, Q>, u64)>,
        mut each: impl FnMut(Decision, u64),
    ) {
        let (under, need) = (LimitSource::Own(&self.rate_of), self.need());
        let mut held: Option<(usize, MutexGuard<'_, Shard<K, A>>)> = None;
        for (ask, cost) in requests {
            let number = self.sizes.number(ask.hash);
            if held.as_ref().is_none_or(|(locked, _)| *locked != number) {
                // One lock is given up before the next is taken.
                drop(held.take());
                held = Some((number, lock(&self.shards[number].0)));
            }
            let mut local = self.local(&ask);
            if self.is_far(local.clock) {
                drop(held.take());
                let (shard, nearer) = self.enter(&ask);
                (held, local) = (Some((number, shard)), nearer);
            }
            let Some((_, shard)) = &mut held else {
                continue;
            };
            let act = Act {
                cost,
                purpose: RequestPurpose::Charge,
                on: |ledger: &mut Ledger<A>, limit: &A, now, _| ledger.decide(limit, now, cost),
            };
            let decision = match shard.act(&local, &under, &act, need) {
                ShardAnswer::Given(decision, _) => decision,
                ShardAnswer::Full(fresh, now) => {
                    drop(held.take());
                    self.at_the_cap(&act, fresh, now, &ask).0
                }
            };
            each(decision, cost);
        }
    }

    pub(super) fn reserve(
        &self,
        ask: &Lookup<'_, impl KeyQuery<K> + ?Sized>,
        tier: Option<&Tier>,
        cost: u64,
        patience: Duration,
    ) -> Result<Ticket, Unbooked> {
        let (booked, birth, now) = self.act_on(ask, tier, &reserve(cost, patience));
        booked.map(|booked| Ticket::Entry {
            at: ask.now + (booked.at() - now),
            booked,
            birth,
        })
    }

    /// Takes an estimate now, which is kept track of until it is settled, or over.
    pub(super) fn hold(
        &self,
        ask: &Lookup<'_, impl KeyQuery<K> + ?Sized>,
        tier: Option<&Tier>,
        cost: u64,
        until: Timestamp,
    ) -> Result<Ticket, Unbooked> {
        let (under, act) = (self.under(tier), reserve(cost, Duration::ZERO));
        let (mut answer, mut id) = {
            let (mut shard, local) = self.enter(ask);
            shard.hold(&local, &under, &act, self.need(), self.local_time(until))
        };
        let is_shared = matches!(answer, ShardAnswer::Full(..)) && self.at_cap == AtCap::ShareOne;
        if is_shared {
            self.overflowed.fetch_add(1, Ordering::Relaxed);
            let (mut shared, local) = self.lock_shared_bucket(ask);
            let (own, until) = (LimitSource::Own(&KeyTiers(None)), self.local_time(until));
            (answer, id) = shared.hold(&local, &own, &act, self.need(), until);
        }
        if let Some(id) = id {
            return Ok(Ticket::Held { id, is_shared });
        }
        let (booked, birth) = match answer {
            ShardAnswer::Given(booked, birth) if !is_shared => (booked, birth),
            ShardAnswer::Full(fresh, now) if !is_shared => {
                let (booked, birth, _) = self.at_the_cap(&act, fresh, now, ask);
                (booked, birth)
            }
            shared => {
                let (booked, birth) = shared.into_parts();
                (booked, SHARED | birth)
            }
        };
        Ok(Ticket::Entry {
            at: ask.now,
            booked: booked?,
            birth,
        })
    }

    /// Ends a hold of which so much was spent.
    pub(super) fn settle(
        &self,
        ask: &Lookup<'_, impl KeyQuery<K> + ?Sized>,
        ticket: &Ticket,
        spent: u64,
    ) {
        if let Ticket::Held { id, is_shared } = *ticket {
            self.with_entry(ask, is_shared, |shard, slot, now| {
                shard.settle_hold(slot, now, id, spent);
            });
        }
    }

    /// Prolongs a hold.
    pub(super) fn prolong(
        &self,
        ask: &Lookup<'_, impl KeyQuery<K> + ?Sized>,
        ticket: &mut Ticket,
        until: Timestamp,
    ) {
        if let Ticket::Held { id, is_shared } = ticket {
            self.with_entry(ask, *is_shared, |shard, slot, _| {
                shard.prolong_hold(slot, id, self.local_time(until));
            });
        }
    }

    pub(super) fn give_back(
        &self,
        ask: &Lookup<'_, impl KeyQuery<K> + ?Sized>,
        ticket: &Ticket,
        undo: Undo,
    ) -> bool {
        let Ticket::Entry { booked, birth, .. } = ticket else {
            return matches!(ticket, Ticket::Free(_));
        };
        let is_shared = birth & SHARED != 0;
        // Other keys share the bucket at the cap, and what they book isn't in this key's line.
        if *birth == NOBODY || (is_shared && undo == Undo::Whole) {
            return !is_shared;
        }
        let undone = self.with_entry(ask, is_shared, |shard, slot, now| {
            shard.give_back(slot, now, booked, birth & !SHARED, undo)
        });
        undone.unwrap_or(false)
    }

    /// What comes of this, done to the entry of a key or to the bucket that keys without a slot share, if it is there.
    pub(super) fn with_entry<T>(
        &self,
        ask: &Lookup<'_, impl KeyQuery<K> + ?Sized>,
        is_shared: bool,
        change: impl FnOnce(&mut Shard<K, A>, u32, Timestamp) -> T,
    ) -> Option<T> {
        let (mut shard, local) = if is_shared {
            self.lock_shared_bucket(ask)
        } else {
            (self.shard(ask.hash), self.local(ask))
        };
        let slot = shard.find(&local)?;
        Some(change(&mut shard, slot, local.now))
    }

    /// Takes tokens from a key, by the limit that it is under if none is said; no if it is new and there
    /// is no slot for it.
    pub(super) fn penalize(
        &self,
        ask: &Lookup<'_, impl KeyQuery<K> + ?Sized>,
        tier: Option<&Tier>,
        tokens: u64,
    ) -> bool {
        let under = match tier.and_then(A::of) {
            None => LimitSource::Present(&self.rate_of),
            Some(limit) => LimitSource::Given(limit),
        };
        let (mut shard, local) = self.enter(ask);
        let act = Act {
            cost: tokens,
            purpose: RequestPurpose::Charge,
            on: |ledger: &mut Ledger<A>, limit: &A, now, _| {
                ledger.penalize(limit, now, tokens);
                true
            },
        };
        let answer = shard.act(&local, &under, &act, Need::default());
        matches!(answer, ShardAnswer::Given(..))
    }

    /// Blocks a key; no if it is new and there is no slot for it.
    pub(super) fn block(
        &self,
        ask: &Lookup<'_, impl KeyQuery<K> + ?Sized>,
        duration: Duration,
    ) -> bool {
        let need = Need {
            block: true,
            ..self.need()
        };
        let (mut shard, local) = self.enter(ask);
        shard.block(&local, local.now + duration, need)
    }

    pub(super) fn limit(&self) -> A {
        *lock(&self.shared.0).in_force()
    }

    pub(super) fn change(&self, now: Timestamp, limit: A) {
        // Held until every shard has it, so that two changes come to all of them in one order, and at one time.
        let mut shared = lock(&self.shared.0);
        let at = self.local_time(now);
        shared.change(at, limit);
        for shard in &self.shards {
            lock(&shard.0).change(at, limit);
        }
    }

    /// Visits every key of a shard that is active at `now`: its entry, its limit, when it is idle and until when it is
    /// blocked, in the time of states. The shard is locked meanwhile.
    pub(super) fn for_each_of(
        &self,
        number: usize,
        now: Timestamp,
        each: impl FnMut(&Entry<K, A>, &A, Timestamp, Timestamp),
    ) {
        let mut shard = lock(&self.shards[number].0);
        shard.for_each(self.local_time(now), each);
    }

    pub(super) fn shards(&self) -> usize {
        self.shards.len()
    }

    /// Stores a key that a snapshot held.
    pub(super) fn restore(&self, new: NewEntry<K, A>, now: Timestamp) -> Result<(), RestoreError>
    where
        K: Eq + Clone,
    {
        self.shard(new.hash).restore(new, self.local_time(now))
    }

    /// What all shards have done, and how many new keys found no slot.
    pub(super) fn stats(&self) -> Stats {
        let mut stats = Stats {
            overflowed: self.overflowed.load(Ordering::Relaxed),
            ..Stats::default()
        };
        for shard in &self.shards {
            stats += lock(&shard.0).stats();
        }
        stats
    }

    #[inline]
    fn act_on<T: StateAnswer>(
        &self,
        ask: &Lookup<'_, impl KeyQuery<K> + ?Sized>,
        tier: Option<&Tier>,
        act: &Act<impl Fn(&mut Ledger<A>, &A, Timestamp, u64) -> T>,
    ) -> (T, u64, Timestamp) {
        let under = self.under(tier);
        // The shard's lock is given up before the shared bucket's is taken.
        let (answer, local) = {
            let (mut shard, local) = self.enter(ask);
            (shard.act(&local, &under, act, self.need()), local)
        };
        match answer {
            ShardAnswer::Given(answer, birth) => (answer, birth, local.now),
            ShardAnswer::Full(fresh, now) => self.at_the_cap(act, fresh, now, ask),
        }
    }

    fn under<'t>(&'t self, tier: Option<&'t Tier>) -> LimitSource<'t, K, A> {
        // Handles are at tiers of this algorithm alone.
        match tier.and_then(A::of) {
            None => LimitSource::Own(&self.rate_of),
            Some(limit) => LimitSource::Given(limit),
        }
    }

    /// What a charge may put aside for a new key.
    fn need(&self) -> Need {
        Need {
            evict: self.at_cap == AtCap::EvictNearestIdle,
            block: false,
        }
    }

    /// What the policy says about a new key for which there is no slot.
    #[cold]
    fn at_the_cap<T: StateAnswer>(
        &self,
        act: &Act<impl Fn(&mut Ledger<A>, &A, Timestamp, u64) -> T>,
        fresh: T,
        at: Timestamp,
        ask: &Lookup<'_, impl KeyQuery<K> + ?Sized>,
    ) -> (T, u64, Timestamp) {
        self.overflowed.fetch_add(1, Ordering::Relaxed);
        match self.at_cap {
            AtCap::AdmitNew => (fresh, NOBODY, at),
            AtCap::ShareOne => {
                let (mut shared, local) = self.lock_shared_bucket(ask);
                let answer =
                    shared.act(&local, &LimitSource::Own(&KeyTiers(None)), act, self.need());
                let (answer, birth) = answer.into_parts();
                (answer, SHARED | birth, local.now)
            }
            // Even an evicting table is full if all of its keys are blocked.
            AtCap::DenyNew | AtCap::EvictNearestIdle => (T::refused(self.denied()), NOBODY, at),
        }
    }

    /// The refusal of a key that nothing is known about: one interval is as good a guess as any.
    fn denied(&self) -> Decision {
        let limit = self.limit();
        let period = limit.rate().period().unwrap_or(Duration::from_secs(1));
        let count = u32::try_from(limit.rate().count()).unwrap_or(u32::MAX);
        let wait = (period / count.max(1)).max(Duration::from_nanos(1));
        Decision::new(Outcome::Denied, limit.limit(), 0, wait, wait)
    }

    #[inline]
    fn shard(&self, hash: u64) -> MutexGuard<'_, Shard<K, A>> {
        lock(&self.shards[self.sizes.number(hash)].0)
    }

    /// The shard of a key, and what is asked in the time of states: they are moved first if it is far.
    #[inline]
    fn enter<'a, Q: ?Sized>(
        &self,
        ask: &Lookup<'a, Q>,
    ) -> (MutexGuard<'_, Shard<K, A>>, Lookup<'a, Q>) {
        let (shard, local) = (self.shard(ask.hash), self.local(ask));
        if !self.is_far(local.clock) {
            return (shard, local);
        }
        drop(shard);
        self.move_anchor(ask.clock);
        (self.shard(ask.hash), self.local(ask))
    }

    /// The bucket that keys without a slot share, and what it is asked in their place.
    fn lock_shared_bucket<'a, Q: ?Sized>(
        &self,
        ask: &Lookup<'a, Q>,
    ) -> (MutexGuard<'_, Shard<K, A>>, Lookup<'a, Q>) {
        let shared = lock(&self.shared.0);
        let local = Lookup {
            hash: 0,
            is_shared: true,
            ..self.local(ask)
        };
        (shared, local)
    }

    /// A time as the states count it.
    pub(super) fn local_time(&self, now: Timestamp) -> Timestamp {
        match self.timeline {
            None => now,
            Some(Timeline { start, last, .. }) => {
                let anchor = Timestamp::from_nanos(self.anchor.load(Ordering::Relaxed));
                now.shifted(anchor, start).min(last)
            }
        }
    }

    /// Lets states count from this time of the clock, once they are half-way to the last that they can tell,
    /// or before the first: each keeps what it has left, or what a clock that was set back leaves it.
    #[cold]
    fn move_anchor(&self, now: Timestamp) {
        let mut shared = lock(&self.shared.0);
        let mut shards: Vec<_> = self.shards.iter().map(|shard| lock(&shard.0)).collect();
        let (from, Some(timeline)) = (self.local_time(now), self.timeline) else {
            return;
        };
        // Another thread may have done it already.
        if !timeline.is_far(from) {
            return;
        }
        shared.move_to_clock(from, timeline.start);
        for shard in &mut shards {
            shard.move_to_clock(from, timeline.start);
        }
        self.anchor.store(now.as_nanos(), Ordering::Relaxed);
    }

    /// Whether states should count from another anchor.
    #[inline]
    fn is_far(&self, local: Timestamp) -> bool {
        self.timeline.is_some_and(|timeline| timeline.is_far(local))
    }

    #[inline]
    fn local<'a, Q: ?Sized>(&self, ask: &Lookup<'a, Q>) -> Lookup<'a, Q> {
        Lookup {
            clock: self.local_time(ask.clock),
            ..Lookup::new(ask.key, ask.hash, self.local_time(ask.now))
        }
    }
}

/// Takes this cost, to act within so long.
#[expect(
    clippy::type_complexity,
    reason = "a closure's type has no shorter name"
)]
fn reserve<A: Kept>(
    cost: u64,
    patience: Duration,
) -> Act<impl Fn(&mut Ledger<A>, &A, Timestamp, u64) -> Result<Booked, Unbooked>> {
    Act {
        cost,
        purpose: RequestPurpose::Charge,
        on: move |ledger: &mut Ledger<A>, limit: &A, now, out| {
            ledger.reserve_beside(limit, out, now, cost, patience)
        },
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // The caller's code runs under the lock only where nothing is half done (comparing keys, cloning
    // a new one, asking for its tier), so a poisoned lock holds a good table.
    unpoisoned(mutex.lock())
}
