//! Keys of a table as levels.

use tollgate_core::{Decision, Timestamp};

use crate::clock::Clock;
use crate::home::sealed::{Home, Lends as _};
use crate::key::sealed::KeyVerbs as _;
use crate::keyed::{Key, KeyedLimiter, OwnedKey, RatedKey};
use crate::stack::level::{AnyLimit, LimitPointer};
use crate::stack::limit::{ComposableKeyedLimit, FastCharge, Seen, Taken};
use crate::wait_queue::meter::Meter;

impl<C: Clock, T: Send + Sync> ComposableKeyedLimit for KeyedLimiter<C, T> {
    fn now(&self, _: &RatedKey, seen: &mut Seen) -> Timestamp {
        seen.read(self.clock())
    }

    #[inline]
    fn prefetch(&self, key: &RatedKey) {
        self.rated(*key).prefetch();
    }

    fn fits(&self, key: &RatedKey, seen: &mut Seen, cost: u64) -> bool {
        self.rated(*key).fits(seen.read(self.clock()), cost)
    }

    fn look(&self, key: &RatedKey, now: Timestamp, cost: u64) -> Decision {
        self.rated(*key).peek_in_order(now, cost)
    }

    fn ask(&self, key: &RatedKey, now: Timestamp, cost: u64) -> Decision {
        let key = self.rated(*key);
        let behind = key.behind(now, cost);
        behind.unwrap_or_else(|| key.look(&key.terms(), now, cost))
    }

    fn take(&self, key: &RatedKey, now: Timestamp, cost: u64) -> Result<Taken, Decision> {
        self.rated(*key).take(now, cost).map(Taken::Charge)
    }

    fn charge(&self, key: &RatedKey, seen: &mut Seen, cost: u64) -> Option<FastCharge> {
        let now = || seen.read(self.clock());
        let (after, pace) = self.rated(*key).charge_fast(now, cost)?;
        FastCharge::new(after, pace, cost)
    }

    /// A word has no room to track what is out, so either all of it was spent or none.
    fn settle(&self, key: &RatedKey, now: Timestamp, taken: Taken, spent: u64) {
        if let (Taken::Charge(ticket), 0) = (taken, spent) {
            self.rated(*key).cancel_in_order(now, &ticket);
        }
    }
}

impl<'a, C: Clock, T: Send + Sync> From<&Key<'a, C, T>> for AnyLimit<'a> {
    #[inline]
    fn from(key: &Key<'a, C, T>) -> Self {
        let (limiter, key) = (key.0.limiter, key.limit().key);
        Self(LimitPointer::KeyParts { limiter, key })
    }
}

impl<'a, C: Clock, T: Send + Sync> From<&'a OwnedKey<C, T>> for AnyLimit<'a> {
    fn from(key: &'a OwnedKey<C, T>) -> Self {
        let (limiter, key) = (&*key.0.limiter, key.limit().key);
        Self(LimitPointer::KeyParts { limiter, key })
    }
}

impl<'a, C: Clock + 'a, T: Send + Sync + 'a> From<OwnedKey<C, T>> for AnyLimit<'a> {
    fn from(key: OwnedKey<C, T>) -> Self {
        let rated = key.limit().key;
        Self(LimitPointer::OwnedKeyParts {
            limiter: key.0.limiter,
            key: rated,
        })
    }
}
