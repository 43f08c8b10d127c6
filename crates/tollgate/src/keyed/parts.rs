//! A key without its limiter, so that both can be kept apart and met again.

use std::time::Duration;

use tollgate_core::{Decision, Outcome, Pace, Tat, Timestamp};

use super::pace::InForce;
use super::rated::Rated;
use super::{Key, KeyedLimiter};
use crate::cell::Ticket;
use crate::clock::Clock;
use crate::home::sealed::Home;

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
    pub(crate) fn key_of(&self, parts: &KeyParts) -> Rated<'_, C, T> {
        Rated {
            limiter: self,
            fingerprint: parts.fingerprint,
            in_force: parts.in_force,
            is_own: parts.is_own,
        }
    }

    /// Starts to bring the key's state into the cache.
    #[inline]
    pub(crate) fn prefetch_parts(&self, key: &KeyParts) {
        self.table.place(key.fingerprint).prefetch();
    }

    /// Whether the cost would pass, for a real request.
    #[inline]
    pub(crate) fn fits_parts(&self, key: &KeyParts, now: Timestamp, cost: u64) -> bool {
        if self.lines.is_marked(key.fingerprint)
            && let Some(behind) = self.key_of(key).behind(now, cost)
        {
            return behind.is_allowed();
        }
        let local = self.table.since_anchor(now);
        self.key_of(key).ask_for(local, cost).outcome == Outcome::Allowed
    }

    /// Charges the cost, or says why not.
    pub(crate) fn take_parts(
        &self,
        key: &KeyParts,
        now: Timestamp,
        cost: u64,
    ) -> Result<Ticket, Decision> {
        let booked = self.key_of(key).book_in_turn(now, cost, Duration::ZERO);
        self.counters.count(booked.is_ok());
        booked.map_err(|refused| *refused.decision())
    }

    /// Charges the cost if the quick way suffices: what that left in the key's word, and the pace. `None` decides nothing.
    #[inline]
    pub(crate) fn charge_parts(
        &self,
        key: &KeyParts,
        now: Timestamp,
        cost: u64,
    ) -> Option<(Tat, Pace)> {
        let after = self.key_of(key).pass(self.table.since_anchor(now), cost)?;
        self.counters.count(true);
        Some((Tat::from_word(after.0), key.in_force.pace))
    }

    /// Whether others may wait for the key.
    #[inline]
    pub(crate) fn is_marked_parts(&self, key: &KeyParts) -> bool {
        self.lines.is_marked(key.fingerprint)
    }
}
