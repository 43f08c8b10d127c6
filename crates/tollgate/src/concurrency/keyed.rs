//! `KeyedConcurrencyLimiter`: how many at once for each key, in memory bounded by the keys in flight.

use std::borrow::Borrow;
use std::fmt;
use std::hash::Hash;
use std::sync::Arc;

use super::gate::{Gate, MAX_LIMIT};
use super::permit_source::PermitSettings;
use super::stats::Counter;
use super::{Acquire, Occupancy, PermitDenied, Stats};
use crate::WhenFull;
use crate::clock::{Clock, Monotonic};
use crate::key_table::hasher::KeyHasher;
use crate::sharding::ShardLayout;
use crate::sync::{AtomicU64, Mutex, MutexGuard, Ordering, Padded, ignore_poison};
use crate::wait_queue::waiter_count::WaiterCount;
use crate::wait_queue::waiter_wakers::PendingWakeups;

mod builder;
mod key;
mod shard;

pub use builder::{KeyedBuilder, KeyedSettings};
pub use key::{Key, KeyedPermit, KeyedPermitSource, OwnedKeyedPermit};

use shard::{LimitSource, Shard};

/// How many at once for each key, as a tenant: a [`ConcurrencyLimiter`](super::ConcurrencyLimiter)
/// for each key that has anything in flight or queued.
///
/// A key with nothing in flight has no entry, so nothing has to expire and memory is bounded by what is in
/// flight; the capacity bounds the number of keys. Beyond it [`WhenFull`] says what happens to new ones. A
/// table of more than 2,047 keys has several shards, each with some room to spare, so it may hold up to 26 %
/// more. A key that got a permit of the shared limit, and later a slot, may have permits of both.
///
/// Keys are looked up by anything that they borrow as (`&str` for `String`), and a key is cloned
/// when it gets its entry. Asking takes the lock of one of up to 256 shards, and so does ending a
/// permit. Locks are taken in one order, shard before queue, and no waker is woken under any.
///
/// ```
/// use tollgate::KeyedConcurrencyLimiter;
///
/// let limiter = KeyedConcurrencyLimiter::<String>::new(1, 10_000);
/// let permit = limiter.try_acquire("acme")?;
/// assert!(limiter.try_acquire("acme").is_err());
/// assert!(limiter.try_acquire("umbrella").is_ok());
/// permit.success();
/// assert!(limiter.is_empty(), "nothing is in flight, so nothing is kept");
/// # Ok::<(), tollgate::concurrency::PermitDenied>(())
/// ```
pub struct KeyedConcurrencyLimiter<K, C: Clock = Monotonic> {
    shards: Box<[Padded<Mutex<Shard<K>>>]>,
    shard_layout: ShardLayout,
    hasher: KeyHasher,
    /// The limit of keys whose calls give none; read and applied under the lock of a shard.
    limit: AtomicU64,
    at_cap: WhenFull,
    /// The gate that keys without a slot share.
    overflow_gate: Arc<Gate>,
    context: PermitSettings<C>,
}

impl<K> KeyedConcurrencyLimiter<K> {
    /// So many at once for each of at least `capacity` keys, on the default clock.
    pub fn new(limit: u32, capacity: usize) -> Self {
        Self::builder(limit, capacity)
            .clock(Monotonic::new())
            .build_unchecked()
    }

    /// Chooses the policy at the capacity, the bounds on waiting, and the clock.
    pub fn builder(limit: u32, capacity: usize) -> KeyedBuilder<K> {
        KeyedBuilder::new(limit, capacity)
    }
}

impl<K, C: Clock> KeyedConcurrencyLimiter<K, C> {
    /// A permit of this key now, or why not.
    ///
    /// # Errors
    /// [`PermitDenied`]: nothing was taken.
    pub fn try_acquire<Q>(&self, key: &Q) -> Result<KeyedPermit<'_, K, C>, PermitDenied>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        self.key(key).try_acquire()
    }

    /// Waits for a permit of this key, first come first served. Await it, or call
    /// [`wait_blocking`](Acquire::wait_blocking).
    pub fn acquire<Q>(&self, key: &Q) -> Acquire<KeyedPermitSource<&Self>>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        self.key(key).acquire()
    }

    /// One key, to be asked with a weight or a limit of its own.
    pub fn key<'q, Q>(&self, key: &'q Q) -> Key<'q, &Self, Q>
    where
        Q: Hash + ?Sized,
    {
        Key::new(self, key)
    }

    /// One key whose permits share the limiter instead of borrowing it.
    pub fn key_owned<'q, Q>(self: &Arc<Self>, key: &'q Q) -> Key<'q, Arc<Self>, Q>
    where
        Q: Hash + ?Sized,
    {
        Key::new(Arc::clone(self), key)
    }

    /// How full this key's limit is, without taking anything.
    pub fn peek<Q>(&self, key: &Q) -> Occupancy
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        self.key(key).peek()
    }

    /// The limit of keys whose calls give none.
    pub fn limit(&self) -> u32 {
        u32::try_from(self.limit.load(Ordering::Relaxed)).unwrap_or(MAX_LIMIT)
    }

    /// Changes the limit of all keys whose latest call gave none, as
    /// [`ConcurrencyLimiter::set_limit`](super::ConcurrencyLimiter::set_limit) does. It looks at
    /// every key in flight.
    ///
    /// ```
    /// use tollgate::KeyedConcurrencyLimiter;
    ///
    /// let limiter = KeyedConcurrencyLimiter::<String>::new(1, 100);
    /// let permit = limiter.try_acquire("acme")?;
    /// limiter.set_limit(2);
    /// assert!(limiter.try_acquire("acme").is_ok());
    /// # drop(permit);
    /// # Ok::<(), tollgate::concurrency::PermitDenied>(())
    /// ```
    pub fn set_limit(&self, limit: u32) {
        // Before the walk: a key that enters a shard behind it reads this under the shard's lock. Both
        // under the lock of the first one, so that of two who change it at once the same comes last.
        let first = self.shards.first().map(lock);
        self.limit
            .store(u64::from(limit.min(MAX_LIMIT)), Ordering::Relaxed);
        let woken = self.overflow_gate.change_limit(limit);
        drop(first);
        woken.wake();
        for shard in &self.shards {
            let shard = lock(shard);
            let gates = shard
                .entries()
                .filter(|entry| entry.limit == LimitSource::Shared);
            let woken = gates.map(|entry| entry.gate.change_limit(self.limit()));
            let woken: Vec<_> = woken.collect();
            drop(shard);
            woken.into_iter().for_each(PendingWakeups::wake);
        }
    }

    /// How many keys have anything in flight or queued.
    pub fn len(&self) -> usize {
        self.shards.iter().map(|shard| lock(shard).len()).sum()
    }

    /// Whether nothing is in flight or queued, but for what keys without a slot share.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many wait on all keys together, those among them who have not yet looked at what they
    /// were given.
    pub fn waiters(&self) -> usize {
        let all = self.context.total_waiters.as_ref();
        all.map_or(0, WaiterCount::current)
    }

    /// What happened since it was made, on all keys together.
    pub fn stats(&self) -> Stats {
        self.context.counters.stats()
    }

    /// The clock it reads.
    pub fn clock(&self) -> &C {
        &self.context.clock
    }

    fn shard(&self, hash: u64) -> MutexGuard<'_, Shard<K>> {
        lock(&self.shards[self.shard_layout.shard_of(hash)])
    }

    /// A key's gate and slot, made if it is new; or the shared gate, or why it has none.
    fn pin_gate<Q>(
        &self,
        hash: u64,
        key: &Q,
        own_limit: Option<u32>,
    ) -> Result<(Arc<Gate>, Option<u32>), PermitDenied>
    where
        K: Borrow<Q>,
        Q: Eq + ToOwned<Owned = K> + ?Sized,
    {
        let limit_of = own_limit.map_or(LimitSource::Shared, |_| LimitSource::PerCall);
        let mut shard = self.shard(hash);
        let limit = own_limit.unwrap_or_else(|| self.limit()).min(MAX_LIMIT);
        if let Some((slot, entry)) = shard.pin(hash, key) {
            entry.limit = limit_of;
            let gate = Arc::clone(&entry.gate);
            if gate.occupancy().limit != limit {
                let woken = gate.change_limit(limit);
                drop(shard);
                woken.wake();
            }
            return Ok((gate, Some(slot)));
        }
        if !shard.is_full() {
            let gate = Arc::new(Gate::new(limit));
            let slot = shard.insert(hash, key.to_owned(), Arc::clone(&gate), limit_of);
            return Ok((gate, Some(slot)));
        }
        drop(shard);
        match self.at_cap {
            WhenFull::SharedBucket => Ok((Arc::clone(&self.overflow_gate), None)),
            // It was built with one of the two.
            _ => {
                self.context.counters.increment(Counter::Denied);
                Err(PermitDenied::TooManyKeys(NO_OCCUPANCY))
            }
        }
    }

    fn unpin_gate(&self, hash: u64, slot: u32) {
        let last = self.shard(hash).unpin(slot);
        // Here, and not in the statement above: the key is dropped after the lock.
        drop(last);
    }

    fn occupancy<Q>(&self, hash: u64, key: &Q, own_limit: Option<u32>) -> Occupancy
    where
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        let shard = self.shard(hash);
        let limit = own_limit.unwrap_or_else(|| self.limit()).min(MAX_LIMIT);
        if let Some(entry) = shard.get(hash, key) {
            let occupancy = entry.gate.occupancy();
            return Occupancy {
                limit: own_limit.map_or(occupancy.limit, |_| limit),
                ..occupancy
            };
        }
        if !shard.is_full() {
            return Occupancy {
                limit,
                ..NO_OCCUPANCY
            };
        }
        match self.at_cap {
            WhenFull::SharedBucket => self.overflow_gate.occupancy(),
            _ => NO_OCCUPANCY,
        }
    }
}

/// What a key is told that can't have a slot.
const NO_OCCUPANCY: Occupancy = Occupancy {
    limit: 0,
    in_use: 0,
    waiting: 0,
};

fn lock<K>(shard: &Padded<Mutex<Shard<K>>>) -> MutexGuard<'_, Shard<K>> {
    ignore_poison(shard.0.lock())
}

impl<K, C: Clock> fmt::Debug for KeyedConcurrencyLimiter<K, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyedConcurrency")
            .field("limit", &self.limit())
            .field("keys", &self.len())
            .field("waiters", &self.waiters())
            .finish_non_exhaustive()
    }
}
