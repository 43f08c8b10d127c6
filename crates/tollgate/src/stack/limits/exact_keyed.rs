//! Keys of an exact table as levels, and the estimates that they hold until those are settled.

use tollgate_core::{Decision, Timestamp};

use crate::clock::Clock;
use crate::exact_keyed::{Key, OwnedKey, StoredPointer};
use crate::home::sealed::Home;
use crate::key::KeyHandle;
use crate::key::sealed::KeyVerbs as _;
use crate::stack::Kind;
use crate::stack::level::{AnyLimit, Exactly};
use crate::stack::limit::{Breadth, Limit, Seen, Taken};
use crate::wait_queue::meter::Meter;

impl<P: StoredPointer + Sync> Limit for KeyHandle<P> {
    fn class(&self) -> (Kind, Breadth) {
        (Kind::Rate, Breadth::Key)
    }

    fn now(&self, seen: &mut Seen) -> Timestamp {
        seen.read(self.0.stored().clock())
    }

    fn look(&self, now: Timestamp, cost: u64) -> Decision {
        self.0.stored().peek_in_order(now, cost)
    }

    fn ask(&self, now: Timestamp, cost: u64) -> Decision {
        let key = self.0.stored();
        let behind = key.behind(now, cost);
        behind.unwrap_or_else(|| Meter::look(&key, &key.terms(), now, cost))
    }

    fn take(&self, now: Timestamp, cost: u64) -> Result<Taken, Decision> {
        self.0.stored().take(now, cost).map(Taken::Charge)
    }

    fn hold(&self, now: Timestamp, cost: u64, until: Timestamp) -> Result<Taken, Decision> {
        self.0.stored().hold(now, cost, until).map(Taken::Charge)
    }

    fn settle(&self, now: Timestamp, taken: Taken, spent: u64) {
        if let Taken::Charge(ticket) = taken {
            self.0.stored().settle(now, &ticket, spent);
        }
    }

    fn prolong(&self, taken: &mut Taken, until: Timestamp) {
        if let Taken::Charge(ticket) = taken {
            self.0.stored().prolong(ticket, until);
        }
    }

    fn charge_late(&self, now: Timestamp, cost: u64) {
        self.0.stored().charge_late(now, cost);
    }
}

impl<'a, K, C> From<OwnedKey<K, C>> for AnyLimit<'a>
where
    K: Eq + Clone + Send + Sync + 'a,
    C: Clock + 'a,
{
    fn from(key: OwnedKey<K, C>) -> Self {
        Self::owned(key)
    }
}

impl<K, Q: ?Sized, C: Clock> Exactly for &Key<'_, K, Q, C> {}
impl<K, C: Clock> Exactly for &OwnedKey<K, C> {}
impl<K, C: Clock> Exactly for OwnedKey<K, C> {}
