//! Keys of the table as levels of a stack.

use std::time::Duration;

use tollgate_core::{Decision, Outcome, Tat, Timestamp};

use super::pace::InForce;
use super::rated::Rated;
use super::{Key, KeyedLimiter};
use crate::clock::Clock;
use crate::home::sealed::Home;
use crate::line::meter::Meter;
use crate::stack::limit::{KeyedBook, Mark, Seen, Taken};

impl<'a, C: Clock, T> Key<'a, C, T> {
    /// What it is made of, at the rate that is in force for it.
    #[inline]
    pub(crate) fn parts(&self) -> (&'a KeyedLimiter<C, T>, KeyParts) {
        let rated = self.rated();
        let parts = KeyParts {
            fingerprint: rated.fingerprint,
            in_force: rated.in_force,
            is_own: rated.is_own,
        };
        (self.limiter, parts)
    }
}

/// A key without its limiter.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeyParts {
    fingerprint: u64,
    in_force: InForce,
    is_own: bool,
}

impl<C: Clock, T> KeyedLimiter<C, T> {
    #[inline]
    fn key_of(&self, parts: &KeyParts) -> Rated<'_, C, T> {
        Rated {
            limiter: self,
            fingerprint: parts.fingerprint,
            in_force: parts.in_force,
            is_own: parts.is_own,
        }
    }
}

impl<C: Clock, T: Send + Sync> KeyedBook for KeyedLimiter<C, T> {
    fn now(&self, seen: &mut Seen) -> Timestamp {
        seen.read(&self.clock)
    }

    #[inline]
    fn prefetch(&self, key: &KeyParts) {
        self.table.place(key.fingerprint).prefetch();
    }

    fn fits(&self, key: &KeyParts, seen: &mut Seen, cost: u64) -> bool {
        let now = seen.read(&self.clock);
        if self.lines.is_marked(key.fingerprint)
            && let Some(behind) = self.key_of(key).behind(now, cost)
        {
            return behind.is_allowed();
        }
        let local = self.table.since_anchor(now);
        self.key_of(key).ask_for(local, cost).outcome == Outcome::Allowed
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
        let booked = self.key_of(key).book_in_turn(now, cost, Duration::ZERO);
        self.counters.count(booked.is_ok());
        match booked {
            Ok(ticket) => Ok(Taken::Charge(ticket)),
            Err(refused) => Err(*refused.decision()),
        }
    }

    fn charge(&self, key: &KeyParts, seen: &mut Seen, cost: u64) -> Option<Mark> {
        if self.lines.is_marked(key.fingerprint) {
            return None;
        }
        let now = self.table.since_anchor(seen.read(&self.clock));
        let after = self.key_of(key).pass(now, cost)?;
        self.counters.count(true);
        Mark::new(Tat::from_word(after.0), key.in_force.pace, cost)
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
