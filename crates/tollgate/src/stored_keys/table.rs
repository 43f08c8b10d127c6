//! All shards of one limiter and one algorithm, with the policy for a full table.

use std::time::Duration;

use tollgate_core::{Booking, BookingError, Decision, Ledger, Outcome, Timestamp, units};

use super::key_entry::KeyEntry;
use super::shard::{
    KeyQuery, LimitSource, Lookup, NO_ENTRY, NewEntry, RestoreError, RoomRequest, Shard,
    ShardAnswer,
};
use super::state_request::{RequestPurpose, StateAnswer, StateRequest};
use super::table_algorithm::{KeyTiers, TableAlgorithm};
use crate::cell::{CancelScope, ChargeTicket};
use crate::key_table::Stats;
use crate::sharding::ShardLayout;
use crate::sync::{AtomicU64, Mutex, MutexGuard, Ordering, Padded, ignore_poison};
use crate::{Algorithm, Tier, WhenFull};

/// The fewest keys that are worth a shard of their own.
const SHARD_KEYS: usize = 1_024;
/// The most shards for the sake of threads: enough that threads rarely contend for one lock.
const MAX_SHARDS_FOR_THREADS: usize = 256;
/// The most keys of a shard, so that none of its arrays takes long to grow.
const MAX_SHARD_KEYS: usize = 2_048;
const MAX_SHARDS: usize = 4_096;
/// A flag in the birth of bookings in the bucket that keys without a slot share.
const SHARED: u64 = 1 << 63;

/// A shard with its lock, on cache lines of its own.
type LockedShard<K, A> = Padded<Mutex<Shard<K, A>>>;

/// A table of keys for one algorithm.
#[derive(Debug)]
pub(super) struct Table<K, A: TableAlgorithm> {
    shards: Box<[LockedShard<K, A>]>,
    sharding: ShardLayout,
    timeline: Option<Timeline>,
    /// The anchor of the timeline, in nanoseconds of the clock. It is read under the lock of a shard or of the shared
    /// bucket, and changed under all of them.
    anchor: AtomicU64,
    at_cap: WhenFull,
    key_tiers: KeyTiers<K>,
    /// The bucket that keys without a slot share: the only key of its shard. A change of the rate also holds its lock.
    shared_bucket: LockedShard<K, A>,
    overflowed: AtomicU64,
}

/// The last time that GCRA's word distinguishes from the next, nine years after the anchor. A state charged then is
/// never idle, so it is never dropped.
const LAST_OF_GCRA: Timestamp = Timestamp::from_nanos(units::LAST_NANO);

/// The mapping from the clock to the times of states, if they differ.
#[derive(Clone, Copy, Debug)]
pub(super) struct Timeline {
    /// A time on the clock.
    pub(super) anchor: Timestamp,
    /// The time of the states when the clock shows `anchor`.
    pub(super) start: Timestamp,
    /// The last time that states can count. Once they are half-way there, or before the first time, all states move to
    /// another anchor.
    pub(super) last: Timestamp,
}

impl Timeline {
    /// The timeline of this algorithm on a clock that shows `now`. Only GCRA's word is too short for a clock with an
    /// origin long ago; the other algorithms need the clock's own origin for their windows.
    pub(super) fn of(algorithm: Algorithm, now: Timestamp) -> Option<Self> {
        (algorithm == Algorithm::Gcra).then_some(Self {
            anchor: now,
            // Leaves room for a clock that is set back.
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

/// The settings of a table besides its limit.
#[derive(Debug)]
pub(super) struct TableConfig<K> {
    pub(super) capacity: usize,
    pub(super) at_cap: WhenFull,
    pub(super) rate_of: KeyTiers<K>,
}

impl<K, A: TableAlgorithm> Table<K, A> {
    pub(super) fn new(limit: A, plan: TableConfig<K>, timeline: Option<Timeline>) -> Self {
        let capacity = plan.capacity;
        let for_threads = (capacity / SHARD_KEYS).clamp(1, MAX_SHARDS_FOR_THREADS);
        let for_growth = (capacity / MAX_SHARD_KEYS).min(MAX_SHARDS);
        let mut sizes = ShardLayout::new(capacity, for_threads.max(for_growth));
        sizes.capacity_per_shard = sizes.capacity_per_shard.min(Shard::<K, A>::MOST_ROOM);
        let shard = || Padded(Mutex::new(Shard::new(limit, sizes.capacity_per_shard)));
        Self {
            shards: (0..sizes.count).map(|_| shard()).collect(),
            sharding: sizes,
            timeline,
            anchor: AtomicU64::new(timeline.map_or(0, |timeline| timeline.anchor.as_nanos())),
            at_cap: plan.at_cap,
            key_tiers: plan.rate_of,
            shared_bucket: Padded(Mutex::new(Shard::new(limit, 1))),
            overflowed: AtomicU64::new(0),
        }
    }

    /// Whether no function selects tiers.
    pub(super) fn has_one_rate(&self) -> bool {
        self.key_tiers.0.is_none()
    }

    /// The most bytes that it uses, without the memory that keys own, with all states under the rate in force.
    pub(super) fn memory_bound(&self) -> usize {
        let states = self.limit().heap_bytes();
        let shard = size_of::<LockedShard<K, A>>()
            .saturating_add(Shard::<K, A>::memory_for(self.sharding.capacity_per_shard))
            .saturating_add(
                Shard::<K, A>::slots_for(self.sharding.capacity_per_shard).saturating_mul(states),
            );
        shard.saturating_mul(self.shards.len())
    }

    /// Runs a request on a key's state, or applies the policy of a full table.
    #[inline]
    pub(super) fn apply<T: StateAnswer>(
        &self,
        ask: &Lookup<'_, impl KeyQuery<K> + ?Sized>,
        tier: Option<&Tier>,
        (cost, purpose): (u64, RequestPurpose),
        on: impl Fn(&mut Ledger<A>, &A, Timestamp, u64) -> T,
    ) -> T {
        let act = StateRequest {
            cost,
            purpose,
            apply: on,
        };
        self.apply_with_ticket(ask, tier, &act).0
    }

    /// Decides requests in their order. It locks a shard once for consecutive requests of the shard.
    pub(super) fn check_many<'q, Q: KeyQuery<K> + ?Sized + 'q>(
        &self,
        requests: impl Iterator<Item = (Lookup<'q, Q>, u64)>,
        mut each: impl FnMut(Decision, u64),
    ) {
        let (under, need) = (LimitSource::ByKey(&self.key_tiers), self.room_request());
        let mut held: Option<(usize, MutexGuard<'_, Shard<K, A>>)> = None;
        for (ask, cost) in requests {
            let number = self.sharding.shard_of(ask.hash);
            if held.as_ref().is_none_or(|(locked, _)| *locked != number) {
                // One lock is released before the next is taken, so that two batches can't deadlock.
                drop(held.take());
                held = Some((number, lock(&self.shards[number].0)));
            }
            let mut local = self.local_lookup(&ask);
            if self.is_far(local.clock_time) {
                drop(held.take());
                let (shard, nearer) = self.lock_shard(&ask);
                (held, local) = (Some((number, shard)), nearer);
            }
            let Some((_, shard)) = &mut held else {
                continue;
            };
            let act = StateRequest {
                cost,
                purpose: RequestPurpose::Charge,
                apply: |ledger: &mut Ledger<A>, limit: &A, now, _| ledger.decide(limit, now, cost),
            };
            let decision = match shard.apply(&local, &under, &act, need) {
                ShardAnswer::Applied(decision, _) => decision,
                ShardAnswer::Full(fresh, now) => {
                    drop(held.take());
                    self.apply_when_full(&act, fresh, now, &ask).0
                }
            };
            each(decision, cost);
        }
    }

    pub(super) fn reserve_request(
        &self,
        ask: &Lookup<'_, impl KeyQuery<K> + ?Sized>,
        tier: Option<&Tier>,
        cost: u64,
        patience: Duration,
    ) -> Result<ChargeTicket, BookingError> {
        let (booked, birth, now) =
            self.apply_with_ticket(ask, tier, &reserve_request(cost, patience));
        booked.map(|booked| ChargeTicket::Entry {
            at: ask.now + (booked.at() - now),
            booked,
            birth,
        })
    }

    /// Takes an estimate now, and records it until it is settled or expires.
    pub(super) fn hold(
        &self,
        ask: &Lookup<'_, impl KeyQuery<K> + ?Sized>,
        tier: Option<&Tier>,
        cost: u64,
        until: Timestamp,
    ) -> Result<ChargeTicket, BookingError> {
        let (under, act) = (
            self.limit_source(tier),
            reserve_request(cost, Duration::ZERO),
        );
        let (mut answer, mut id) = {
            let (mut shard, local) = self.lock_shard(ask);
            shard.hold(
                &local,
                &under,
                &act,
                self.room_request(),
                self.local_time(until),
            )
        };
        let is_shared =
            matches!(answer, ShardAnswer::Full(..)) && self.at_cap == WhenFull::SharedBucket;
        if is_shared {
            self.overflowed.fetch_add(1, Ordering::Relaxed);
            let (mut shared, local) = self.lock_shared_bucket(ask);
            let (own, until) = (LimitSource::ByKey(&KeyTiers(None)), self.local_time(until));
            (answer, id) = shared.hold(&local, &own, &act, self.room_request(), until);
        }
        if let Some(id) = id {
            return Ok(ChargeTicket::Held { id, is_shared });
        }
        let (booked, birth) = match answer {
            ShardAnswer::Applied(booked, birth) if !is_shared => (booked, birth),
            ShardAnswer::Full(fresh, now) if !is_shared => {
                let (booked, birth, _) = self.apply_when_full(&act, fresh, now, ask);
                (booked, birth)
            }
            shared => {
                let (booked, birth) = shared.into_parts();
                (booked, SHARED | birth)
            }
        };
        Ok(ChargeTicket::Entry {
            at: ask.now,
            booked: booked?,
            birth,
        })
    }

    /// Ends a hold of which `spent` tokens were spent.
    pub(super) fn settle(
        &self,
        ask: &Lookup<'_, impl KeyQuery<K> + ?Sized>,
        ticket: &ChargeTicket,
        spent: u64,
    ) {
        if let ChargeTicket::Held { id, is_shared } = *ticket {
            self.with_entry(ask, is_shared, |shard, slot, now| {
                shard.settle_hold(slot, now, id, spent);
            });
        }
    }

    /// Extends a hold.
    pub(super) fn prolong(
        &self,
        ask: &Lookup<'_, impl KeyQuery<K> + ?Sized>,
        ticket: &mut ChargeTicket,
        until: Timestamp,
    ) {
        if let ChargeTicket::Held { id, is_shared } = ticket {
            self.with_entry(ask, *is_shared, |shard, slot, _| {
                shard.prolong_hold(slot, id, self.local_time(until));
            });
        }
    }

    pub(super) fn give_back(
        &self,
        ask: &Lookup<'_, impl KeyQuery<K> + ?Sized>,
        ticket: &ChargeTicket,
        undo: CancelScope,
    ) -> bool {
        let ChargeTicket::Entry { booked, birth, .. } = ticket else {
            return matches!(ticket, ChargeTicket::Free(_));
        };
        let is_shared = birth & SHARED != 0;
        // Other keys share the bucket of a full table, and their bookings aren't in this key's queue.
        if *birth == NO_ENTRY || (is_shared && undo == CancelScope::Whole) {
            return !is_shared;
        }
        let undone = self.with_entry(ask, is_shared, |shard, slot, now| {
            shard.cancel(slot, now, booked, birth & !SHARED, undo)
        });
        undone.unwrap_or(false)
    }

    /// Runs `act` on the entry of a key, or on the bucket that keys without a slot share, if the entry exists.
    pub(super) fn with_entry<T>(
        &self,
        ask: &Lookup<'_, impl KeyQuery<K> + ?Sized>,
        is_shared: bool,
        change: impl FnOnce(&mut Shard<K, A>, u32, Timestamp) -> T,
    ) -> Option<T> {
        let (mut shard, local) = if is_shared {
            self.lock_shared_bucket(ask)
        } else {
            (self.shard(ask.hash), self.local_lookup(ask))
        };
        let slot = shard.find(&local)?;
        Some(change(&mut shard, slot, local.now))
    }

    /// Takes tokens from a key, under the given tier or else its present limit; false if it is new and there is no slot
    /// for it.
    pub(super) fn penalize(
        &self,
        ask: &Lookup<'_, impl KeyQuery<K> + ?Sized>,
        tier: Option<&Tier>,
        tokens: u64,
    ) -> bool {
        let under = match tier.and_then(A::of_tier) {
            None => LimitSource::Current(&self.key_tiers),
            Some(limit) => LimitSource::FromCall(limit),
        };
        let (mut shard, local) = self.lock_shard(ask);
        let act = StateRequest {
            cost: tokens,
            purpose: RequestPurpose::Charge,
            apply: |ledger: &mut Ledger<A>, limit: &A, now, _| {
                ledger.penalize(limit, now, tokens);
                true
            },
        };
        let answer = shard.apply(&local, &under, &act, RoomRequest::default());
        matches!(answer, ShardAnswer::Applied(..))
    }

    /// Blocks a key; false if it is new and there is no slot for it.
    pub(super) fn block(
        &self,
        ask: &Lookup<'_, impl KeyQuery<K> + ?Sized>,
        duration: Duration,
    ) -> bool {
        let need = RoomRequest {
            block: true,
            ..self.room_request()
        };
        let (mut shard, local) = self.lock_shard(ask);
        shard.block(&local, local.now + duration, need)
    }

    pub(super) fn limit(&self) -> A {
        *lock(&self.shared_bucket.0).limit_in_force()
    }

    pub(super) fn change(&self, now: Timestamp, limit: A) {
        // Held until every shard has the change, so that concurrent changes reach all shards in one order.
        let mut shared = lock(&self.shared_bucket.0);
        let at = self.local_time(now);
        shared.change(at, limit);
        for shard in &self.shards {
            lock(&shard.0).change(at, limit);
        }
    }

    /// Visits every key of a shard that is active at `now`: its entry, its limit, the time at which it is idle and the
    /// end of its block, on the timeline of states. The shard is locked meanwhile.
    pub(super) fn for_each_of(
        &self,
        number: usize,
        now: Timestamp,
        each: impl FnMut(&KeyEntry<K, A>, &A, Timestamp, Timestamp),
    ) {
        let mut shard = lock(&self.shards[number].0);
        shard.for_each(self.local_time(now), each);
    }

    pub(super) fn shards(&self) -> usize {
        self.shards.len()
    }

    /// Stores a key of a snapshot.
    pub(super) fn restore(&self, new: NewEntry<K, A>, now: Timestamp) -> Result<(), RestoreError>
    where
        K: Eq + Clone,
    {
        self.shard(new.hash).restore(new, self.local_time(now))
    }

    /// The statistics of all shards, and the number of new keys that found no slot.
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
    fn apply_with_ticket<T: StateAnswer>(
        &self,
        ask: &Lookup<'_, impl KeyQuery<K> + ?Sized>,
        tier: Option<&Tier>,
        act: &StateRequest<impl Fn(&mut Ledger<A>, &A, Timestamp, u64) -> T>,
    ) -> (T, u64, Timestamp) {
        let under = self.limit_source(tier);
        // The shard's lock is released before the shared bucket's is taken.
        let (answer, local) = {
            let (mut shard, local) = self.lock_shard(ask);
            (shard.apply(&local, &under, act, self.room_request()), local)
        };
        match answer {
            ShardAnswer::Applied(answer, birth) => (answer, birth, local.now),
            ShardAnswer::Full(fresh, now) => self.apply_when_full(act, fresh, now, ask),
        }
    }

    fn limit_source<'t>(&'t self, tier: Option<&'t Tier>) -> LimitSource<'t, K, A> {
        // A handle checks that its tier has this algorithm, so the conversion succeeds.
        match tier.and_then(A::of_tier) {
            None => LimitSource::ByKey(&self.key_tiers),
            Some(limit) => LimitSource::FromCall(limit),
        }
    }

    /// The slots that a charge may take for a new key.
    fn room_request(&self) -> RoomRequest {
        RoomRequest {
            evict: self.at_cap == WhenFull::EvictNearestIdle,
            block: false,
        }
    }

    /// Applies the policy for a full table to a new key.
    #[cold]
    fn apply_when_full<T: StateAnswer>(
        &self,
        act: &StateRequest<impl Fn(&mut Ledger<A>, &A, Timestamp, u64) -> T>,
        fresh: T,
        at: Timestamp,
        ask: &Lookup<'_, impl KeyQuery<K> + ?Sized>,
    ) -> (T, u64, Timestamp) {
        self.overflowed.fetch_add(1, Ordering::Relaxed);
        match self.at_cap {
            WhenFull::AdmitNew => (fresh, NO_ENTRY, at),
            WhenFull::SharedBucket => {
                let (mut shared, local) = self.lock_shared_bucket(ask);
                let answer = shared.apply(
                    &local,
                    &LimitSource::ByKey(&KeyTiers(None)),
                    act,
                    self.room_request(),
                );
                let (answer, birth) = answer.into_parts();
                (answer, SHARED | birth, local.now)
            }
            // An evicting table is full, too, if all of its keys are blocked.
            WhenFull::DenyNew | WhenFull::EvictNearestIdle => {
                (T::from_denial(self.denied_when_full()), NO_ENTRY, at)
            }
        }
    }

    /// The denial of a key without a state. Its wait is only a guess: one interval.
    fn denied_when_full(&self) -> Decision {
        let limit = self.limit();
        let period = limit.rate().period().unwrap_or(Duration::from_secs(1));
        let count = u32::try_from(limit.rate().count()).unwrap_or(u32::MAX);
        let wait = (period / count.max(1)).max(Duration::from_nanos(1));
        Decision::new(Outcome::Denied, limit.limit(), 0, wait, wait)
    }

    #[inline]
    fn shard(&self, hash: u64) -> MutexGuard<'_, Shard<K, A>> {
        lock(&self.shards[self.sharding.shard_of(hash)].0)
    }

    /// Locks the shard of a key, and converts the time of the lookup. The states move to another anchor first if that
    /// time is far.
    #[inline]
    fn lock_shard<'a, Q: ?Sized>(
        &self,
        ask: &Lookup<'a, Q>,
    ) -> (MutexGuard<'_, Shard<K, A>>, Lookup<'a, Q>) {
        let (shard, local) = (self.shard(ask.hash), self.local_lookup(ask));
        if !self.is_far(local.clock_time) {
            return (shard, local);
        }
        drop(shard);
        self.move_anchor(ask.clock_time);
        (self.shard(ask.hash), self.local_lookup(ask))
    }

    /// Locks the bucket that keys without a slot share, and converts the lookup for it.
    fn lock_shared_bucket<'a, Q: ?Sized>(
        &self,
        ask: &Lookup<'a, Q>,
    ) -> (MutexGuard<'_, Shard<K, A>>, Lookup<'a, Q>) {
        let shared = lock(&self.shared_bucket.0);
        let local = Lookup {
            hash: 0,
            is_shared: true,
            ..self.local_lookup(ask)
        };
        (shared, local)
    }

    /// A time on the timeline of states.
    pub(super) fn local_time(&self, now: Timestamp) -> Timestamp {
        match self.timeline {
            None => now,
            Some(Timeline { start, last, .. }) => {
                let anchor = Timestamp::from_nanos(self.anchor.load(Ordering::Relaxed));
                now.shifted(anchor, start).min(last)
            }
        }
    }

    /// Moves the anchor to this time of the clock, once states are half-way to the last time that they can represent,
    /// or before the first. Each state keeps its remaining time, or the part that a clock that was set back leaves of
    /// it.
    #[cold]
    fn move_anchor(&self, now: Timestamp) {
        let mut shared = lock(&self.shared_bucket.0);
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
    fn local_lookup<'a, Q: ?Sized>(&self, ask: &Lookup<'a, Q>) -> Lookup<'a, Q> {
        Lookup {
            clock_time: self.local_time(ask.clock_time),
            ..Lookup::new(ask.key, ask.hash, self.local_time(ask.now))
        }
    }
}

/// Takes this cost, to act within the given wait.
#[expect(
    clippy::type_complexity,
    reason = "a closure's type has no shorter name"
)]
fn reserve_request<A: TableAlgorithm>(
    cost: u64,
    patience: Duration,
) -> StateRequest<impl Fn(&mut Ledger<A>, &A, Timestamp, u64) -> Result<Booking, BookingError>> {
    StateRequest {
        cost,
        purpose: RequestPurpose::Charge,
        apply: move |ledger: &mut Ledger<A>, limit: &A, now, out| {
            ledger.reserve_with_outstanding(limit, out, now, cost, patience)
        },
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // The caller's code runs under the lock only where no change is half done (comparing keys, cloning a new key,
    // selecting its tier), so a poisoned lock holds a valid table.
    ignore_poison(mutex.lock())
}
