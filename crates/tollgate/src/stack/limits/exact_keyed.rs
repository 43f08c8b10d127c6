//! Keys of a `StoredKeyLimiter` in a composite limiter, with the estimates that they hold until
//! settlement.

use tollgate_core::{Decision, Timestamp};

use crate::clock::Clock;
use crate::key_handle::KeyHandle;
use crate::key_handle::sealed::KeyOperations as _;
use crate::queued_limit::sealed::QueuedLimit;
use crate::stack::LimitKind;
use crate::stack::level::{LimitRef, SettlesExactly};
use crate::stack::limit::{ClockReading, ComposableLimit, LevelCharge, LimitScope};
use crate::stored_keys::{Key, OwnedKey, StoredKeyRef};
use crate::wait_queue::queue_limit::QueueLimit;

impl<P: StoredKeyRef + Sync> ComposableLimit for KeyHandle<P> {
    fn kind_and_scope(&self) -> (LimitKind, LimitScope) {
        (LimitKind::Rate, LimitScope::Key)
    }

    fn now(&self, seen: &mut ClockReading) -> Timestamp {
        seen.read(self.0.stored().clock())
    }

    fn look(&self, now: Timestamp, cost: u64) -> Decision {
        self.0.stored().peek_in_order(now, cost)
    }

    fn ask(&self, now: Timestamp, cost: u64) -> Decision {
        let key = self.0.stored();
        let behind = key.decision_behind_waiters(now, cost);
        behind.unwrap_or_else(|| QueueLimit::peek(&key, &key.charge_terms(), now, cost))
    }

    fn take(&self, now: Timestamp, cost: u64) -> Result<LevelCharge, Decision> {
        self.0
            .stored()
            .charge_now(now, cost)
            .map(LevelCharge::Charge)
    }

    fn hold(&self, now: Timestamp, cost: u64, until: Timestamp) -> Result<LevelCharge, Decision> {
        self.0
            .stored()
            .hold(now, cost, until)
            .map(LevelCharge::Charge)
    }

    fn settle(&self, now: Timestamp, taken: LevelCharge, spent: u64) {
        if let LevelCharge::Charge(ticket) = taken {
            self.0.stored().settle(now, &ticket, spent);
        }
    }

    fn prolong(&self, taken: &mut LevelCharge, until: Timestamp) {
        if let LevelCharge::Charge(ticket) = taken {
            self.0.stored().prolong(ticket, until);
        }
    }

    fn charge_late(&self, now: Timestamp, cost: u64) {
        self.0.stored().charge_overrun(now, cost);
    }
}

impl<'a, K, C> From<OwnedKey<K, C>> for LimitRef<'a>
where
    K: Eq + Clone + Send + Sync + 'a,
    C: Clock + 'a,
{
    fn from(key: OwnedKey<K, C>) -> Self {
        Self::owned(key)
    }
}

impl<K, Q: ?Sized, C: Clock> SettlesExactly for &Key<'_, K, Q, C> {}
impl<K, C: Clock> SettlesExactly for &OwnedKey<K, C> {}
impl<K, C: Clock> SettlesExactly for OwnedKey<K, C> {}
