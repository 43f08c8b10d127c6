//! The building blocks of the key tables: hashes, indexes, slabs and heaps.

use std::fmt;
use std::ops::AddAssign;
use std::time::Duration;

use tollgate_core::Rate;

use crate::WhenFull;
use crate::clock::WithClock;
use crate::patience::DEFAULT_MAX_WAITERS;

pub(crate) mod due_heap;
pub(crate) mod hasher;
pub(crate) mod slab;
pub(crate) mod slot_index;

/// The settings of a keyed limiter, without its clock. `S` are the settings that only one kind of table has.
#[derive(Debug)]
pub struct TableSettings<S> {
    pub(crate) rate: Rate,
    pub(crate) capacity: usize,
    pub(crate) at_cap: WhenFull,
    pub(crate) longest_wait: Duration,
    pub(crate) max_waiters: usize,
    pub(crate) kind_settings: S,
}

impl<S> TableSettings<S> {
    pub(crate) fn new(rate: Rate, capacity: usize, table: S) -> Self {
        Self {
            rate,
            capacity,
            at_cap: WhenFull::default(),
            longest_wait: Duration::from_secs(60),
            max_waiters: DEFAULT_MAX_WAITERS,
            kind_settings: table,
        }
    }

    /// The same settings for another table.
    pub(crate) fn map_table<T>(self, table: impl FnOnce(S) -> T) -> TableSettings<T> {
        TableSettings {
            rate: self.rate,
            capacity: self.capacity,
            at_cap: self.at_cap,
            longest_wait: self.longest_wait,
            max_waiters: self.max_waiters,
            kind_settings: table(self.kind_settings),
        }
    }
}

impl<S, C> WithClock<TableSettings<S>, C> {
    /// The policy for new keys in a full table; [`WhenFull::SharedBucket`] by default.
    pub fn at_cap(mut self, at_cap: WhenFull) -> Self {
        self.settings.at_cap = at_cap;
        self
    }

    /// How far ahead a reservation may act; a minute by default. It doesn't bound waits. A key is active, and keeps its
    /// slot, until its reservations have expired.
    pub fn longest_wait(mut self, longest: Duration) -> Self {
        self.settings.longest_wait = longest;
        self
    }

    /// The most requests that may wait at the same time, on all keys together. The default is 65,536.
    pub fn max_waiters(mut self, most: usize) -> Self {
        self.settings.max_waiters = most;
        self
    }
}

/// The key is new and the table has no slot for it, so nothing was stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableFull {
    capacity: usize,
}

impl TableFull {
    pub(crate) const fn new(capacity: usize) -> Self {
        Self { capacity }
    }
}

impl fmt::Display for TableFull {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "no slot for a new key: more than the capacity of {} keys are active; \
             build the limiter with a larger capacity",
            self.capacity
        )
    }
}

impl std::error::Error for TableFull {}

/// A key that has spent tokens or is blocked. The method `for_each_active` of a keyed limiter visits these.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ActiveKey<K> {
    /// The key itself. A [`KeyedLimiter`](crate::KeyedLimiter) doesn't store keys: it has the
    /// [fingerprint](crate::KeyedLimiter::fingerprint) here.
    pub key: K,
    /// How long until the key is equivalent to one that was never seen.
    pub idle_after: Duration,
    /// Whether the key is blocked now.
    pub blocked: bool,
}

/// The counters of a keyed limiter. All but `slots` only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Checks of a cost above 0 that passed.
    pub allowed: u64,
    /// Checks of a cost above 0 that were denied.
    pub denied: u64,
    /// Checks of new keys for which there was no slot.
    pub overflowed: u64,
    /// Active keys that were evicted, under [`WhenFull::EvictNearestIdle`](crate::WhenFull::EvictNearestIdle).
    pub evicted: u64,
    /// Keys whose slot was reused, or freed, once they were idle; keys in a stash don't count.
    pub expired: u64,
    /// Keys that an operator reset.
    pub reset: u64,
    /// Keys, or slots of a table of fingerprints, that were examined for expiry.
    pub examined: u64,
    /// Keys that were moved to another slot, as the table grew or to make room.
    pub moved: u64,
    /// Keys that were put into the stash, because their own cache lines were full.
    pub stashed: u64,
    /// Slots in use or ready for use now, of those that are reserved.
    pub slots: u64,
}

impl AddAssign for Stats {
    fn add_assign(&mut self, other: Self) {
        self.allowed += other.allowed;
        self.denied += other.denied;
        self.overflowed += other.overflowed;
        self.evicted += other.evicted;
        self.expired += other.expired;
        self.reset += other.reset;
        self.examined += other.examined;
        self.moved += other.moved;
        self.stashed += other.stashed;
        self.slots += other.slots;
    }
}
