//! Keys of an exact table as levels, and the estimates that they hold until those are settled.

use tollgate_core::{Decision, Timestamp};

use crate::clock::Clock;
use crate::exact_keyed::{Key, KeyQuery, OwnedKey, OwnedStoredKey, StoredKey};
use crate::home::sealed::Home;
use crate::key::sealed::KeyPointer as _;
use crate::line::meter::Meter;
use crate::stack::Kind;
use crate::stack::level::{AnyLimit, Exactly};
use crate::stack::limit::{Breadth, Limit, Seen, Shares, Taken};

impl<K: Send, Q: KeyQuery<K> + Sync + ?Sized, C: Clock> Limit for StoredKey<'_, K, Q, C> {
    fn kind(&self) -> Kind {
        Kind::Rate
    }

    fn breadth(&self) -> Breadth {
        Breadth::Key
    }

    fn now(&self, seen: &mut Seen) -> Timestamp {
        seen.read(self.clock())
    }

    fn look(&self, now: Timestamp, cost: u64) -> Decision {
        self.look_in_turn(now, cost)
    }

    fn ask(&self, now: Timestamp, cost: u64) -> Decision {
        let behind = self.behind(now, cost);
        behind.unwrap_or_else(|| Meter::look(self, &self.terms(), now, cost))
    }

    fn take(&self, now: Timestamp, cost: u64) -> Result<Taken, Decision> {
        StoredKey::take(self, now, cost).map(Taken::Charge)
    }

    fn put_back(&self, now: Timestamp, taken: Taken) {
        Limit::settle(self, now, taken, 0);
    }

    fn hold(&self, now: Timestamp, cost: u64, until: Timestamp) -> Result<Taken, Decision> {
        StoredKey::hold(self, now, cost, until).map(Taken::Charge)
    }

    fn settle(&self, now: Timestamp, taken: Taken, spent: u64) {
        if let Taken::Charge(ticket) = taken {
            StoredKey::settle(self, now, &ticket, spent);
        }
    }

    fn prolong(&self, taken: &mut Taken, until: Timestamp) {
        if let Taken::Charge(ticket) = taken {
            StoredKey::prolong(self, ticket, until);
        }
    }

    fn charge_late(&self, now: Timestamp, cost: u64) {
        StoredKey::charge_late(self, now, cost);
    }
}

impl<K: Eq + Clone + Send + Sync, C: Clock> Shares for OwnedStoredKey<K, C> {
    type Key<'a>
        = StoredKey<'a, K, K, C>
    where
        Self: 'a;

    fn borrowed(&self) -> StoredKey<'_, K, K, C> {
        self.key()
    }
}

impl<'a, K, Q, C> From<&'a Key<'a, K, Q, C>> for AnyLimit<'a>
where
    K: Send,
    Q: KeyQuery<K> + Sync + ?Sized,
    C: Clock,
{
    fn from(key: &'a Key<'a, K, Q, C>) -> Self {
        Self::new(&key.0)
    }
}

impl<'a, K, C> From<&'a OwnedKey<K, C>> for AnyLimit<'a>
where
    K: Eq + Clone + Send + Sync,
    C: Clock,
{
    fn from(key: &'a OwnedKey<K, C>) -> Self {
        Self::new(&key.0)
    }
}

impl<'a, K, C> From<OwnedKey<K, C>> for AnyLimit<'a>
where
    K: Eq + Clone + Send + Sync + 'a,
    C: Clock + 'a,
{
    fn from(key: OwnedKey<K, C>) -> Self {
        Self::owned(key.0)
    }
}

impl<K, Q: ?Sized, C: Clock> Exactly for &Key<'_, K, Q, C> {}
impl<K, C: Clock> Exactly for &OwnedKey<K, C> {}
impl<K, C: Clock> Exactly for OwnedKey<K, C> {}
