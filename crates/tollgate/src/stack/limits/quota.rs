//! Keys of a quota as levels.

use std::borrow::Borrow;
use std::fmt;
use std::ops::Deref;

use tollgate_core::{Decision, Timestamp};

use crate::clock::Clock;
use crate::quota::{Key, OwnedKey, Quota, QuotaKey, QuotaLimiter};
use crate::stack::Kind;
use crate::stack::level::{AnyLimit, Exactly};
use crate::stack::limit::{Breadth, Limit, Seen, Taken};

impl<C, L, K, Q> Limit for QuotaKey<L, K, Q>
where
    C: Clock,
    L: Deref<Target = QuotaLimiter<C>> + Sync,
    K: Deref<Target = [u8]> + Sync,
    Q: Borrow<Quota> + fmt::Debug + Sync,
{
    fn class(&self) -> (Kind, Breadth) {
        (Kind::Quota, Breadth::Key)
    }

    fn now(&self, seen: &mut Seen) -> Timestamp {
        seen.read(self.clock())
    }

    fn look(&self, now: Timestamp, cost: u64) -> Decision {
        QuotaKey::look(self, now, cost)
    }

    fn take(&self, now: Timestamp, cost: u64) -> Result<Taken, Decision> {
        QuotaKey::charge(self, now, cost).map(Taken::Quota)
    }

    fn settle(&self, now: Timestamp, taken: Taken, spent: u64) {
        if let Taken::Quota(receipt) = taken {
            QuotaKey::settle(self, now, receipt, spent);
        }
    }
}

impl<'a, C: Clock + 'a> From<OwnedKey<C>> for AnyLimit<'a> {
    fn from(key: OwnedKey<C>) -> Self {
        Self::owned(key)
    }
}

impl<C: Clock> Exactly for &Key<'_, C> {}
impl<C: Clock> Exactly for &OwnedKey<C> {}
impl<C: Clock> Exactly for OwnedKey<C> {}
