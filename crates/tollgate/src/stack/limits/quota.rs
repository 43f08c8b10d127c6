//! Keys of a quota in a composite limiter.

use std::borrow::Borrow;
use std::fmt;
use std::ops::Deref;

use tollgate_core::{Decision, Timestamp};

use crate::clock::Clock;
use crate::quota::{Key, OwnedKey, Quota, QuotaKey, QuotaLimiter};
use crate::stack::LimitKind;
use crate::stack::level::{LimitRef, SettlesExactly};
use crate::stack::limit::{ClockReading, ComposableLimit, LevelCharge, LimitScope};

impl<C, L, K, Q> ComposableLimit for QuotaKey<L, K, Q>
where
    C: Clock,
    L: Deref<Target = QuotaLimiter<C>> + Sync,
    K: Deref<Target = [u8]> + Sync,
    Q: Borrow<Quota> + fmt::Debug + Sync,
{
    fn kind_and_scope(&self) -> (LimitKind, LimitScope) {
        (LimitKind::Quota, LimitScope::Key)
    }

    fn now(&self, seen: &mut ClockReading) -> Timestamp {
        seen.read(self.clock())
    }

    fn look(&self, now: Timestamp, cost: u64) -> Decision {
        QuotaKey::peek_at(self, now, cost)
    }

    fn take(&self, now: Timestamp, cost: u64) -> Result<LevelCharge, Decision> {
        QuotaKey::charge(self, now, cost).map(LevelCharge::Quota)
    }

    fn settle(&self, now: Timestamp, taken: LevelCharge, spent: u64) {
        if let LevelCharge::Quota(receipt) = taken {
            QuotaKey::settle(self, now, receipt, spent);
        }
    }
}

impl<'a, C: Clock + 'a> From<OwnedKey<C>> for LimitRef<'a> {
    fn from(key: OwnedKey<C>) -> Self {
        Self::owned(key)
    }
}

impl<C: Clock> SettlesExactly for &Key<'_, C> {}
impl<C: Clock> SettlesExactly for &OwnedKey<C> {}
impl<C: Clock> SettlesExactly for OwnedKey<C> {}
