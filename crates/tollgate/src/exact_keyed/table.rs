//! All shards of one limiter and one algorithm, with the policy at the cap.

use std::time::Duration;

use tollgate_core::{Decision, Outcome, Timestamp, Unbooked};

use super::act::{Act, Check, Penalize, Reserve};
use super::entry::Entry;
use super::kept::Kept;
use super::shard::{Answer, KeyQuery, Lookup, NOBODY, Need, New, NotRestored, Shard, Under, Work};
use super::tier::RateOf;
use crate::cell::Ticket;
use crate::shards::Shards;
use crate::sync::{AtomicU64, Mutex, MutexGuard, Ordering, Padded, PoisonError};
use crate::{AtCap, Tier};

mod shared;
mod timeline;

use shared::Shared;
pub(super) use timeline::Timeline;

/// Fewest keys worth a shard of their own.
const SHARD_KEYS: usize = 1_024;
/// So many shards are enough that threads rarely meet at one lock.
const ENOUGH_SHARDS: usize = 256;
/// Most keys of a shard, so that none of its arrays takes long to grow.
const MOST_SHARD_KEYS: usize = 2_048;
const MOST_SHARDS: usize = 4_096;
/// The birth of what was booked in the bucket that keys without a slot share.
const SHARED: u64 = u64::MAX;

/// A shard with its lock, on cache lines of its own.
type Locked<K, A> = Padded<Mutex<Shard<K, A>>>;

/// A table of keys for one algorithm.
#[derive(Debug)]
pub(super) struct Table<K, A: Kept> {
    shards: Box<[Locked<K, A>]>,
    sizes: Shards,
    timeline: Option<Timeline>,
    /// The timeline's anchor, in nanoseconds of the clock. Read under the lock of a shard or of the shared
    /// bucket, and changed under all of them.
    anchor: AtomicU64,
    at_cap: AtCap,
    rate_of: RateOf<K>,
    /// The bucket that keys without a slot share. Its lock is also held while the rate changes.
    shared: Padded<Mutex<Shared<A>>>,
    overflowed: AtomicU64,
}

/// What a table is made of besides its limit.
#[derive(Debug)]
pub(super) struct Plan<K> {
    pub(super) capacity: usize,
    pub(super) at_cap: AtCap,
    pub(super) rate_of: RateOf<K>,
}

impl<K, A: Kept> Table<K, A> {
    pub(super) fn new(limit: A, plan: Plan<K>, timeline: Option<Timeline>) -> Self {
        let capacity = plan.capacity;
        let for_threads = (capacity / SHARD_KEYS).clamp(1, ENOUGH_SHARDS);
        let for_growth = (capacity / MOST_SHARD_KEYS).min(MOST_SHARDS);
        let mut sizes = Shards::new(capacity, for_threads.max(for_growth));
        sizes.room = sizes.room.min(Shard::<K, A>::MOST_ROOM);
        let shard = || Padded(Mutex::new(Shard::new(limit, sizes.room)));
        Self {
            shards: (0..sizes.count).map(|_| shard()).collect(),
            sizes,
            timeline,
            anchor: AtomicU64::new(timeline.map_or(0, |timeline| timeline.anchor.as_nanos())),
            at_cap: plan.at_cap,
            rate_of: plan.rate_of,
            shared: Padded(Mutex::new(Shared::new(limit))),
            overflowed: AtomicU64::new(0),
        }
    }

    /// Whether a key is blocked.
    pub(super) fn is_blocked(&self, ask: &Lookup<'_, impl KeyQuery<K> + ?Sized>) -> bool {
        self.shard(ask.hash).is_blocked(&self.local(ask))
    }

    /// Whether keys have no rates of their own by a function.
    pub(super) fn has_one_rate(&self) -> bool {
        self.rate_of.0.is_none()
    }

    /// The most bytes that it uses, but for what keys own, with all states under the rate in force.
    pub(super) fn memory_bound(&self) -> usize {
        let states = self.limit().heap_bytes();
        let shard = size_of::<Locked<K, A>>()
            .saturating_add(Shard::<K, A>::bytes(self.sizes.room))
            .saturating_add(Shard::<K, A>::most_keys(self.sizes.room).saturating_mul(states));
        shard.saturating_mul(self.shards.len())
    }

    /// Puts a question to a key's state, or to what stands for it at the cap.
    #[inline]
    pub(super) fn act<T: Act<A>>(
        &self,
        ask: &Lookup<'_, impl KeyQuery<K> + ?Sized>,
        tier: Option<&Tier>,
        act: &T,
    ) -> T::Answer {
        self.act_on(ask, tier, act).0
    }

    /// Decides requests in their order, and locks a shard once for those of it in a row.
    pub(super) fn check_many<'q, Q: KeyQuery<K> + ?Sized + 'q>(
        &self,
        requests: impl Iterator<Item = (Lookup<'q, Q>, u64)>,
        mut each: impl FnMut(Decision, u64),
    ) {
        let (under, need) = (Under::Own(&self.rate_of), self.need());
        let mut held: Option<(usize, MutexGuard<'_, Shard<K, A>>)> = None;
        for (ask, cost) in requests {
            let number = self.number(ask.hash);
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
            let decision = match shard.act(&local, &under, &Check(cost), need) {
                Answer::Given(decision, _) => decision,
                Answer::Full(fresh, now) => {
                    drop(held.take());
                    self.at_the_cap(&Check(cost), (fresh, now), &ask).0
                }
            };
            each(decision, cost);
        }
    }

    pub(super) fn reserve(
        &self,
        ask: &Lookup<'_, impl KeyQuery<K> + ?Sized>,
        tier: Option<&Tier>,
        act: &Reserve,
    ) -> Result<Ticket, Unbooked> {
        let (booked, birth, now) = self.act_on(ask, tier, act);
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
        act: &Reserve,
        until: Timestamp,
    ) -> Result<Ticket, Unbooked> {
        let under = self.under(tier);
        let (mut shard, local) = self.enter(ask);
        let (booked, birth) = match shard.act(&local, &under, act, self.need()) {
            Answer::Given(booked, birth) => {
                let booked = booked?;
                let until = self.local_time(until);
                // Under the same lock, so that nothing drains between. What isn't counted isn't out.
                if birth != NOBODY
                    && let Some(id) = shard.keep_track(&local, booked, (act.cost, until))
                {
                    return Ok(Ticket::HeldEntry(id));
                }
                (booked, birth)
            }
            Answer::Full(..) if self.at_cap == AtCap::ShareOne => {
                drop(shard);
                return self.hold_shared(ask, act, until);
            }
            Answer::Full(fresh, now) => {
                drop(shard);
                let (booked, birth, _) = self.at_the_cap(act, (fresh, now), ask);
                (booked?, birth)
            }
        };
        Ok(Ticket::Entry {
            at: ask.now,
            booked,
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
        match *ticket {
            Ticket::HeldEntry(id) => {
                let mut shard = self.shard(ask.hash);
                shard.settle_hold(&self.local(ask), id, spent);
            }
            Ticket::HeldShared(id) => {
                let shared = &mut *lock(&self.shared.0);
                let local = self.local(ask);
                shared.keep_pace(local.clock);
                let held = (local.now, id, spent);
                shared
                    .holds
                    .settle(&mut shared.ledger, &shared.counted_by, held);
            }
            _ => {}
        }
    }

    /// Prolongs a hold.
    pub(super) fn prolong(
        &self,
        ask: &Lookup<'_, impl KeyQuery<K> + ?Sized>,
        ticket: &mut Ticket,
        until: Timestamp,
    ) {
        match ticket {
            Ticket::HeldEntry(id) => {
                let until = self.local_time(until);
                let mut shard = self.shard(ask.hash);
                shard.prolong_hold(&self.local(ask), id, until);
            }
            Ticket::HeldShared(id) => {
                let shared = &mut *lock(&self.shared.0);
                let local = self.local(ask);
                shared.keep_pace(local.clock);
                let ledger = &mut shared.ledger;
                shared
                    .holds
                    .pass_time(ledger, &shared.counted_by, local.now);
                if let Some(new) = shared.holds.prolong(*id, self.local_time(until)) {
                    *id = new;
                }
            }
            _ => {}
        }
    }

    pub(super) fn give_back(&self, ask: &Lookup<'_, impl KeyQuery<K> + ?Sized>, ticket: &Ticket) {
        let Ticket::Entry { booked, birth, .. } = ticket else {
            return;
        };
        match *birth {
            NOBODY => {}
            SHARED => {
                let shared = &mut *lock(&self.shared.0);
                let Shared {
                    counted_by, ledger, ..
                } = shared;
                ledger.give_back(counted_by, self.local_time(ask.now), booked);
            }
            birth => self
                .shard(ask.hash)
                .give_back(&self.local(ask), booked, birth),
        }
    }

    /// Takes back the latest charge of a key as if it had never been made; false if it isn't the latest.
    pub(super) fn unbook(
        &self,
        ask: &Lookup<'_, impl KeyQuery<K> + ?Sized>,
        ticket: &Ticket,
    ) -> bool {
        let (booked, birth) = match ticket {
            Ticket::Entry { booked, birth, .. } => (booked, *birth),
            Ticket::Free(_) => return true,
            _ => return false,
        };
        match birth {
            NOBODY => true,
            // Other keys share this bucket, and what they book isn't in this key's line.
            SHARED => false,
            birth => self.shard(ask.hash).unbook(&self.local(ask), booked, birth),
        }
    }

    pub(super) fn reset(&self, ask: &Lookup<'_, impl KeyQuery<K> + ?Sized>) {
        self.shard(ask.hash).reset(&self.local(ask));
    }

    pub(super) fn gift(&self, ask: &Lookup<'_, impl KeyQuery<K> + ?Sized>, tokens: u64) {
        self.shard(ask.hash).gift(&self.local(ask), tokens);
    }

    /// Takes tokens from a key, by the limit that it is under if none is said; no if it is new and there
    /// is no slot for it.
    pub(super) fn penalize(
        &self,
        ask: &Lookup<'_, impl KeyQuery<K> + ?Sized>,
        tier: Option<&Tier>,
        tokens: u64,
    ) -> bool {
        let need = Need {
            evict: false,
            block: false,
        };
        let under = match tier.and_then(A::of) {
            None => Under::Present(&self.rate_of),
            Some(limit) => Under::Given(limit),
        };
        let (mut shard, local) = self.enter(ask);
        let answer = shard.act(&local, &under, &Penalize(tokens), need);
        matches!(answer, Answer::Given(..))
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
        lock(&self.shared.0).limit
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

    /// Visits every key that is active at `now`, a shard at a time: its entry, its limit, when it is
    /// idle and until when it is blocked, in the time of states.
    pub(super) fn for_each(
        &self,
        now: Timestamp,
        mut each: impl FnMut(&Entry<K, A>, &A, Timestamp, Timestamp),
    ) {
        for number in 0..self.shards.len() {
            self.for_each_of(number, now, &mut each);
        }
    }

    /// The same for the keys of one shard, which is locked meanwhile.
    pub(super) fn for_each_of(
        &self,
        number: usize,
        now: Timestamp,
        each: impl FnMut(&Entry<K, A>, &A, Timestamp, Timestamp),
    ) {
        if let Some(shard) = self.shards.get(number) {
            let mut shard = lock(&shard.0);
            shard.for_each(self.local_time(now), each);
        }
    }

    pub(super) fn shards(&self) -> usize {
        self.shards.len()
    }

    /// Stores a key that a snapshot held.
    pub(super) fn restore(&self, new: New<K, A>, now: Timestamp) -> Result<(), NotRestored>
    where
        K: Eq + Clone,
    {
        self.shard(new.hash).restore(new, self.local_time(now))
    }

    /// What all shards have done, and how many new keys found no slot.
    pub(super) fn work(&self) -> (Work, u64) {
        let mut sum = Work::default();
        for shard in &self.shards {
            let work = lock(&shard.0).work();
            sum.evicted += work.evicted;
            sum.expired += work.expired;
            sum.reset += work.reset;
            sum.examined += work.examined;
            sum.slots += work.slots;
        }
        (sum, self.overflowed.load(Ordering::Relaxed))
    }

    #[inline]
    fn act_on<T: Act<A>>(
        &self,
        ask: &Lookup<'_, impl KeyQuery<K> + ?Sized>,
        tier: Option<&Tier>,
        act: &T,
    ) -> (T::Answer, u64, Timestamp) {
        let under = self.under(tier);
        // The shard's lock is given up before the shared bucket's is taken.
        let (answer, local) = {
            let (mut shard, local) = self.enter(ask);
            (shard.act(&local, &under, act, self.need()), local)
        };
        match answer {
            Answer::Given(answer, birth) => (answer, birth, local.now),
            Answer::Full(fresh, now) => self.at_the_cap(act, (fresh, now), ask),
        }
    }

    fn under<'t>(&'t self, tier: Option<&'t Tier>) -> Under<'t, K, A> {
        // Handles are at tiers of this algorithm alone.
        match tier.and_then(A::of) {
            None => Under::Own(&self.rate_of),
            Some(limit) => Under::Given(limit),
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
    fn at_the_cap<Q: ?Sized, T: Act<A>>(
        &self,
        act: &T,
        (fresh, at): (T::Answer, Timestamp),
        ask: &Lookup<'_, Q>,
    ) -> (T::Answer, u64, Timestamp) {
        self.overflowed.fetch_add(1, Ordering::Relaxed);
        match self.at_cap {
            AtCap::AdmitNew => (fresh, NOBODY, at),
            AtCap::ShareOne => {
                let shared = &mut *lock(&self.shared.0);
                let Lookup { now, clock, .. } = self.local(ask);
                (shared.act(act, (now, clock)), SHARED, now)
            }
            // Even an evicting table is full if all of its keys are blocked.
            AtCap::DenyNew | AtCap::EvictNearestIdle => (act.refused(self.denied()), NOBODY, at),
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
        lock(&self.shards[self.number(hash)].0)
    }

    #[inline]
    fn number(&self, hash: u64) -> usize {
        self.sizes.number(hash)
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

    #[inline]
    fn local<'a, Q: ?Sized>(&self, ask: &Lookup<'a, Q>) -> Lookup<'a, Q> {
        Lookup {
            key: ask.key,
            hash: ask.hash,
            now: self.local_time(ask.now),
            clock: self.local_time(ask.clock),
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // The caller's code runs under the lock only where nothing is half done (comparing keys, cloning
    // a new one, asking for its tier), so a poisoned lock holds a good table.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
