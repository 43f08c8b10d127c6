//! Parts that several tables of keys are built of: hashes, indexes, slabs and heaps.

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

/// The settings of a limiter by key, but for its clock; `S` are those that only one kind of table has.
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

    /// The same settings of another table.
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
    /// What happens to new keys at the cap: [`WhenFull::SharedBucket`] unless said otherwise.
    pub fn at_cap(mut self, at_cap: WhenFull) -> Self {
        self.settings.at_cap = at_cap;
        self
    }

    /// How far ahead a reservation may act: a minute unless said otherwise. A wait takes as long as it takes.
    /// A key is active, and keeps its slot, until what it has booked is over.
    pub fn longest_wait(mut self, longest: Duration) -> Self {
        self.settings.longest_wait = longest;
        self
    }

    /// How many may wait at once, on all keys together. The default is 65,536.
    pub fn max_waiters(mut self, most: usize) -> Self {
        self.settings.max_waiters = most;
        self
    }
}

/// The key is new and the table has no slot for it, so nothing could be remembered.
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

/// A key that has something spent or is blocked; seen by `for_each_active` of a limiter by key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ActiveKey<K> {
    /// The key itself; of a [`KeyedLimiter`](crate::KeyedLimiter), which doesn't keep it, its
    /// [fingerprint](crate::KeyedLimiter::fingerprint).
    pub key: K,
    /// How long until it is like a key that was never seen.
    pub idle_after: Duration,
    /// Whether it is blocked now.
    pub blocked: bool,
}

/// What a keyed limiter has counted. All but `slots` only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Checks of a cost above 0 that passed.
    pub allowed: u64,
    /// Checks of a cost above 0 that were refused.
    pub denied: u64,
    /// Checks of new keys for which there was no slot.
    pub overflowed: u64,
    /// Active keys that were evicted, under [`WhenFull::EvictNearestIdle`](crate::UnsupportedWhenFull).
    pub evicted: u64,
    /// Keys whose slot was taken over, or freed, once they were idle; but for those in a stash.
    pub expired: u64,
    /// Keys that an operator reset.
    pub reset: u64,
    /// Keys, or slots of a table of fingerprints, that were looked at to find idle ones: the work of
    /// expiry.
    pub examined: u64,
    /// Keys that were moved to another slot, as the table grew or to make room.
    pub moved: u64,
    /// Keys that were put into the stash, because their own lines were full.
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
