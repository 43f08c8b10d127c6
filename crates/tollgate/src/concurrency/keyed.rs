//! `KeyedConcurrencyLimiter`: a concurrency limit for each key, with memory bounded by the keys in
//! flight.

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

/// A concurrency limit for each key, such as a tenant: a
/// [`ConcurrencyLimiter`](super::ConcurrencyLimiter) for each key that has anything in flight or
/// queued.
///
/// A key with nothing in flight has no entry. So nothing has to expire, and memory is bounded by what
/// is in flight; the capacity bounds the number of keys. When it is reached, [`WhenFull`] defines what
/// happens to new keys. A table of more than 2,047 keys has several shards, each with some room to
/// spare, so it may hold up to 26 % more. A key that got a permit of the shared limit, and later an
/// entry of its own, may have permits of both.
///
/// Keys are looked up by any type that they borrow as (`&str` for `String`), and a key is cloned when
/// it gets its entry. Each acquire and each release takes the lock of one of up to 256 shards. Locks
/// are taken in one order, shard before queue, and no waker is woken while a lock is held.
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
    /// The limit of calls that set none; read and applied under the lock of a shard.
    limit: AtomicU64,
    at_cap: WhenFull,
    /// The gate that keys without an entry share.
    overflow_gate: Arc<Gate>,
    context: PermitSettings<C>,
}

impl<K> KeyedConcurrencyLimiter<K> {
    /// A limit for each of at least `capacity` keys, on the default clock.
    pub fn new(limit: u32, capacity: usize) -> Self {
        Self::builder(limit, capacity)
            .clock(Monotonic::new())
            .build_unchecked()
    }

    /// A builder for the behaviour of a full table, the bounds on waiting, and the clock.
    pub fn builder(limit: u32, capacity: usize) -> KeyedBuilder<K> {
        KeyedBuilder::new(limit, capacity)
    }
}

impl<K, C: Clock> KeyedConcurrencyLimiter<K, C> {
    /// Acquires a permit of this key without waiting.
    ///
    /// # Errors
    /// [`PermitDenied`]: nothing was acquired.
    pub fn try_acquire<Q>(&self, key: &Q) -> Result<KeyedPermit<'_, K, C>, PermitDenied>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        self.key(key).try_acquire()
    }

    /// Waits for a permit of this key in its queue. Await it, or call
    /// [`wait_blocking`](Acquire::wait_blocking).
    pub fn acquire<Q>(&self, key: &Q) -> Acquire<KeyedPermitSource<&Self>>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        self.key(key).acquire()
    }

    /// A handle for one key, for calls with a weight or another limit.
    pub fn key<'q, Q>(&self, key: &'q Q) -> Key<'q, &Self, Q>
    where
        Q: Hash + ?Sized,
    {
        Key::new(self, key)
    }

    /// A handle for one key whose permits share the limiter instead of borrowing it.
    pub fn key_owned<'q, Q>(self: &Arc<Self>, key: &'q Q) -> Key<'q, Arc<Self>, Q>
    where
        Q: Hash + ?Sized,
    {
        Key::new(Arc::clone(self), key)
    }

    /// The permits in use and the waiters of this key, without acquiring any.
    pub fn peek<Q>(&self, key: &Q) -> Occupancy
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        self.key(key).peek()
    }

    /// The limit of calls that set none.
    pub fn limit(&self) -> u32 {
        u32::try_from(self.limit.load(Ordering::Relaxed)).unwrap_or(MAX_LIMIT)
    }

    /// Changes the limit of all keys whose latest call set none, as
    /// [`ConcurrencyLimiter::set_limit`](super::ConcurrencyLimiter::set_limit) does. It visits every
    /// key in flight.
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
        // Store the limit before visiting the shards: a key that enters a shard that was visited
        // already reads it under the shard's lock. Hold the first shard's lock for both, so that two
        // concurrent calls apply their limits in the same order everywhere.
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

    /// The number of keys with anything in flight or queued.
    pub fn len(&self) -> usize {
        self.shards.iter().map(|shard| lock(shard).len()).sum()
    }

    /// Whether nothing is in flight or queued, except on the gate that keys without an entry share.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The number of waiters of all keys together, including those that were granted a permit but
    /// haven't polled yet.
    pub fn waiters(&self) -> usize {
        let all = self.context.total_waiters.as_ref();
        all.map_or(0, WaiterCount::current)
    }

    /// The counters of all keys together since it was built.
    pub fn stats(&self) -> Stats {
        self.context.counters.stats()
    }

    /// The limiter's clock.
    pub fn clock(&self) -> &C {
        &self.context.clock
    }

    fn shard(&self, hash: u64) -> MutexGuard<'_, Shard<K>> {
        lock(&self.shards[self.shard_layout.shard_of(hash)])
    }

    /// Pins a key's entry, which is made if the key is new; or returns the shared gate, or the denial.
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
            // The builder accepts only these two choices.
            _ => {
                self.context.counters.increment(Counter::Denied);
                Err(PermitDenied::TooManyKeys(NO_OCCUPANCY))
            }
        }
    }

    fn unpin_gate(&self, hash: u64, slot: u32) {
        let last = self.shard(hash).unpin(slot);
        // A separate statement, so that the key is dropped after the lock is released.
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

/// The occupancy for a key that can't have an entry.
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
