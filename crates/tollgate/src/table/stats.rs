//! What a table of keys has counted, and what it says if a key has no room.

use std::fmt;
use std::ops::AddAssign;
use std::time::Duration;

/// The key is new and the table has no slot for it, so nothing could be remembered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoSlot {
    capacity: usize,
}

impl NoSlot {
    pub(crate) const fn new(capacity: usize) -> Self {
        Self { capacity }
    }
}

impl fmt::Display for NoSlot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "no slot for a new key: more than the capacity of {} keys are active; \
             build the limiter with a larger capacity",
            self.capacity
        )
    }
}

impl std::error::Error for NoSlot {}

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
    /// Active keys that were evicted, under [`AtCap::EvictNearestIdle`](crate::AtCap).
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
