//! Keys of a quota as levels.

use tollgate_core::{Decision, Timestamp};

use crate::clock::Clock;
use crate::quota::{Key, OwnedKey};
use crate::stack::Kind;
use crate::stack::level::{AnyLimit, Exactly};
use crate::stack::limit::{Breadth, Limit, Seen, Shares, Taken};

impl<C: Clock> Limit for Key<'_, C> {
    fn kind(&self) -> Kind {
        Kind::Quota
    }

    fn breadth(&self) -> Breadth {
        Breadth::Key
    }

    fn now(&self, seen: &mut Seen) -> Timestamp {
        seen.read(self.clock())
    }

    fn look(&self, now: Timestamp, cost: u64) -> Decision {
        Key::look(self, now, cost)
    }

    fn take(&self, now: Timestamp, cost: u64) -> Result<Taken, Decision> {
        Key::charge(self, now, cost).map(Taken::Quota)
    }

    fn put_back(&self, now: Timestamp, taken: Taken) {
        Limit::settle(self, now, taken, 0);
    }

    fn settle(&self, now: Timestamp, taken: Taken, spent: u64) {
        if let Taken::Quota(receipt) = taken {
            Key::settle(self, now, receipt, spent);
        }
    }
}

impl<C: Clock> Shares for OwnedKey<C> {
    type Key<'a>
        = Key<'a, C>
    where
        Self: 'a;

    fn borrowed(&self) -> Key<'_, C> {
        self.key()
    }
}

impl<'a, C: Clock> From<&'a Key<'a, C>> for AnyLimit<'a> {
    fn from(key: &'a Key<'a, C>) -> Self {
        Self::new(key)
    }
}

impl<'a, C: Clock> From<&'a OwnedKey<C>> for AnyLimit<'a> {
    fn from(key: &'a OwnedKey<C>) -> Self {
        Self::new(key)
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
