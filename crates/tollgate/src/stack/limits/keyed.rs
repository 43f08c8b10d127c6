//! Keys of a table as levels.

use tollgate_core::{Decision, Timestamp};

use crate::clock::Clock;
use crate::home::sealed::Home;
use crate::keyed::{Key, KeyParts, KeyedLimiter, OwnedKey};
use crate::line::meter::Meter;
use crate::stack::level::{AnyLimit, Inner};
use crate::stack::limit::{KeyedBook, Mark, Seen, Taken};

impl<C: Clock, T: Send + Sync> KeyedBook for KeyedLimiter<C, T> {
    fn now(&self, seen: &mut Seen) -> Timestamp {
        seen.read(self.clock())
    }

    #[inline]
    fn prefetch(&self, key: &KeyParts) {
        self.prefetch_parts(key);
    }

    fn fits(&self, key: &KeyParts, seen: &mut Seen, cost: u64) -> bool {
        self.fits_parts(key, seen.read(self.clock()), cost)
    }

    fn look(&self, key: &KeyParts, now: Timestamp, cost: u64) -> Decision {
        self.key_of(key).look_in_turn(now, cost)
    }

    fn ask(&self, key: &KeyParts, now: Timestamp, cost: u64) -> Decision {
        let key = self.key_of(key);
        let behind = key.behind(now, cost);
        behind.unwrap_or_else(|| key.look(&key.terms(), now, cost))
    }

    fn take(&self, key: &KeyParts, now: Timestamp, cost: u64) -> Result<Taken, Decision> {
        self.take_parts(key, now, cost).map(Taken::Charge)
    }

    fn charge(&self, key: &KeyParts, seen: &mut Seen, cost: u64) -> Option<Mark> {
        if self.is_marked_parts(key) {
            return None;
        }
        let (after, pace) = self.charge_parts(key, seen.read(self.clock()), cost)?;
        Mark::new(after, pace, cost)
    }

    fn put_back(&self, key: &KeyParts, now: Timestamp, taken: Taken) {
        if let Taken::Charge(ticket) = taken {
            self.key_of(key).give_back_in_turn(now, &ticket);
        }
    }

    /// A word has no room to track what is out, so either all of it was spent or none.
    fn settle(&self, key: &KeyParts, now: Timestamp, taken: Taken, spent: u64) {
        if spent == 0 {
            self.put_back(key, now, taken);
        }
    }
}

/// Of the key itself nothing is kept, so it may be made for this call alone.
impl<'a, C: Clock, T: Send + Sync> From<&Key<'a, C, T>> for AnyLimit<'a> {
    #[inline]
    fn from(key: &Key<'a, C, T>) -> Self {
        let (limiter, key) = key.parts();
        Self(Inner::KeyParts { limiter, key })
    }
}

impl<'a, C: Clock, T: Send + Sync> From<&'a OwnedKey<C, T>> for AnyLimit<'a> {
    fn from(key: &'a OwnedKey<C, T>) -> Self {
        (&key.key()).into()
    }
}

impl<'a, C: Clock + 'a, T: Send + Sync + 'a> From<OwnedKey<C, T>> for AnyLimit<'a> {
    fn from(key: OwnedKey<C, T>) -> Self {
        let (limiter, key) = key.into_parts();
        Self(Inner::OwnedKeyParts { limiter, key })
    }
}
