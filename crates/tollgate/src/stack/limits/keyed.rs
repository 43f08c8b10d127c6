//! Keys of a `KeyedLimiter` in a composite limiter.

use tollgate_core::{Decision, Timestamp};

use crate::clock::Clock;
use crate::key_handle::sealed::KeyOperations as _;
use crate::keyed::{Key, KeyRate, KeyedLimiter, OwnedKey};
use crate::queued_limit::sealed::{LimitPointer as _, QueuedLimit};
use crate::stack::level::{LimitPointer, LimitRef};
use crate::stack::limit::{ClockReading, ComposableKeyedLimit, FastCharge, LevelCharge};
use crate::wait_queue::queue_limit::QueueLimit;

impl<C: Clock, T: Send + Sync> ComposableKeyedLimit for KeyedLimiter<C, T> {
    fn now(&self, _: &KeyRate, seen: &mut ClockReading) -> Timestamp {
        seen.read(self.clock())
    }

    #[inline]
    fn prefetch(&self, key: &KeyRate) {
        self.rated(*key).prefetch();
    }

    fn fits(&self, key: &KeyRate, seen: &mut ClockReading, cost: u64) -> bool {
        self.rated(*key).fits(seen.read(self.clock()), cost)
    }

    fn look(&self, key: &KeyRate, now: Timestamp, cost: u64) -> Decision {
        self.rated(*key).peek_in_order(now, cost)
    }

    fn ask(&self, key: &KeyRate, now: Timestamp, cost: u64) -> Decision {
        let key = self.rated(*key);
        let behind = key.decision_behind_waiters(now, cost);
        behind.unwrap_or_else(|| key.peek(&key.charge_terms(), now, cost))
    }

    fn take(&self, key: &KeyRate, now: Timestamp, cost: u64) -> Result<LevelCharge, Decision> {
        self.rated(*key)
            .charge_now(now, cost)
            .map(LevelCharge::Charge)
    }

    fn charge(&self, key: &KeyRate, seen: &mut ClockReading, cost: u64) -> Option<FastCharge> {
        let now = || seen.read(self.clock());
        let (after, pace) = self.rated(*key).charge_fast(now, cost)?;
        FastCharge::new(after, pace, cost)
    }

    /// One word has no room to track open estimates, so either all of the charge was spent or nothing.
    fn settle(&self, key: &KeyRate, now: Timestamp, taken: LevelCharge, spent: u64) {
        if let (LevelCharge::Charge(ticket), 0) = (taken, spent) {
            self.rated(*key).cancel_in_order(now, &ticket);
        }
    }
}

impl<'a, C: Clock, T: Send + Sync> From<&Key<'a, C, T>> for LimitRef<'a> {
    #[inline]
    fn from(key: &Key<'a, C, T>) -> Self {
        let (limiter, key) = (key.0.limiter, key.limit().key);
        Self(LimitPointer::KeyParts { limiter, key })
    }
}

impl<'a, C: Clock, T: Send + Sync> From<&'a OwnedKey<C, T>> for LimitRef<'a> {
    fn from(key: &'a OwnedKey<C, T>) -> Self {
        let (limiter, key) = (&*key.0.limiter, key.limit().key);
        Self(LimitPointer::KeyParts { limiter, key })
    }
}

impl<'a, C: Clock + 'a, T: Send + Sync + 'a> From<OwnedKey<C, T>> for LimitRef<'a> {
    fn from(key: OwnedKey<C, T>) -> Self {
        let rated = key.limit().key;
        Self(LimitPointer::OwnedKeyParts {
            limiter: key.0.limiter,
            key: rated,
        })
    }
}
