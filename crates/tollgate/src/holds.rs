//! What was taken from one limit as an estimate and is not settled yet.
//!
//! One rule keeps the bound, however long a hold lives: what is out doesn't drain. Before every step the state
//! owes at least what is out ([`Arithmetic::keep_outstanding`]), so the tokens that are there and those that are out
//! are never more than the burst together, and what comes back was not given to anybody else meanwhile.

use std::collections::BTreeMap;
use std::iter;
use std::mem;
use std::time::Duration;

// Not loom's: a number to tell holds apart is no part of any model.
use std::sync::atomic::{AtomicU64, Ordering};

use tollgate_core::{Arithmetic, Booking, Ledger, Timestamp};

/// Tells a hold from all others, in the order in which they expire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct HoldId {
    until: Timestamp,
    number: u64,
}

/// The holds on one state, each with what is needed to give it back, if anything.
#[derive(Clone, Debug)]
pub(crate) struct OpenHolds<B = Booking> {
    /// Tokens of all that are open: where charges count as hits at a time, or nothing is limited,
    /// more than 64 bits of them may be.
    held_tokens: u128,
    by_expiry: BTreeMap<HoldId, OpenHold<B>>,
    /// How far the clock was set back so far: an id tells when its hold is over on a clock that wasn't.
    clock_set_back: Duration,
    /// And how far ahead.
    clock_set_ahead: Duration,
}

/// What one hold took.
#[derive(Clone, Debug)]
struct OpenHold<B> {
    cost: u64,
    charge: B,
}

impl<B> Default for OpenHolds<B> {
    fn default() -> Self {
        Self {
            held_tokens: 0,
            by_expiry: BTreeMap::new(),
            clock_set_back: Duration::ZERO,
            clock_set_ahead: Duration::ZERO,
        }
    }
}

impl<B> OpenHolds<B> {
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.by_expiry.is_empty()
    }

    /// Tokens that were taken and may still be spent.
    pub(crate) fn held_tokens(&self) -> u64 {
        saturate(self.held_tokens)
    }

    /// When the last of them is over.
    pub(crate) fn last_expiry(&self) -> Timestamp {
        let last = self.by_expiry.last_key_value();
        last.map_or(Timestamp::ZERO, |(id, _)| self.expires_at(id))
    }

    /// When a hold is over, as the clock shows it now.
    fn expires_at(&self, id: &HoldId) -> Timestamp {
        let late = (id.until + self.clock_set_ahead) - (Timestamp::ZERO + self.clock_set_back);
        Timestamp::ZERO + late
    }

    /// How many tokens the state owes at least, and at which times, up to now: what is out doesn't drain, and
    /// becomes less as holds expire.
    pub(crate) fn held_until(&self, now: Timestamp) -> impl Iterator<Item = (Timestamp, u64)> {
        let mut out = self.held_tokens;
        let mut open = self.by_expiry.iter();
        let mut at_end = false;
        iter::from_fn(move || {
            let next = open
                .next()
                .map(|(id, part)| (self.expires_at(id), part.cost));
            if let Some((until, cost)) = next.filter(|(until, _)| !at_end && *until <= now) {
                let owed = saturate(out);
                out -= u128::from(cost);
                return Some((until, owed));
            }
            let is_owed = !mem::replace(&mut at_end, true) && out > 0;
            is_owed.then(|| (now, saturate(out)))
        })
    }

    /// Forgets the holds that are over, once the state owes what they were.
    pub(crate) fn remove_expired(&mut self, now: Timestamp) {
        while let Some(first) = self.by_expiry.first_key_value() {
            if self.expires_at(first.0) > now {
                break;
            }
            if let Some((_, part)) = self.by_expiry.pop_first() {
                self.held_tokens -= u128::from(part.cost);
            }
        }
    }

    /// Counts from where a clock is that showed `from` and shows `to` now, once time has passed until then.
    pub(crate) fn follow_clock_change(&mut self, from: Timestamp, to: Timestamp) {
        self.clock_set_back += from - to;
        self.clock_set_ahead += to - from;
    }

    /// Keeps track of a booking until it is settled, or over.
    pub(crate) fn open(&mut self, booked: B, cost: u64, until: Timestamp) -> HoldId {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let id = HoldId {
            until: Timestamp::ZERO
                + ((until + self.clock_set_back) - (Timestamp::ZERO + self.clock_set_ahead)),
            number: NEXT.fetch_add(1, Ordering::Relaxed),
        };
        self.held_tokens += u128::from(cost);
        self.by_expiry.insert(
            id,
            OpenHold {
                cost,
                charge: booked,
            },
        );
        id
    }

    /// Prolongs a hold until then; none if it was over already.
    pub(crate) fn extend(&mut self, id: HoldId, until: Timestamp) -> Option<HoldId> {
        let OpenHold {
            cost,
            charge: booked,
        } = self.by_expiry.remove(&id)?;
        self.held_tokens -= u128::from(cost);
        Some(self.open(booked, cost, until))
    }

    /// Ends a hold: what it took. Nothing if it was over already.
    pub(crate) fn close(&mut self, id: HoldId) -> Option<(u64, B)> {
        let OpenHold {
            cost,
            charge: booked,
        } = self.by_expiry.remove(&id)?;
        self.held_tokens -= u128::from(cost);
        Some((cost, booked))
    }
}

impl OpenHolds {
    /// Follows a clock that showed `from` and shows `to` now: what was out stays out for as long as it had
    /// left. What was taken before a clock that is set back went ahead is over.
    pub(crate) fn shift_clock<A: Arithmetic>(
        &mut self,
        ledger: &mut Ledger<A>,
        limit: &A,
        from: Timestamp,
        to: Timestamp,
    ) {
        self.expire_until(ledger, limit, from);
        self.follow_clock_change(from, to);
    }

    /// Brings the state up to this time: what is out doesn't drain, and holds that are over count as spent.
    pub(crate) fn expire_until<A: Arithmetic>(
        &mut self,
        ledger: &mut Ledger<A>,
        limit: &A,
        now: Timestamp,
    ) {
        for (at, out) in self.held_until(now) {
            ledger.keep_outstanding(limit, at, out);
        }
        self.remove_expired(now);
    }

    /// The state as it will be at a time, for one who only looks.
    pub(crate) fn ledger_at<A: Arithmetic>(
        &self,
        ledger: &Ledger<A>,
        limit: &A,
        now: Timestamp,
    ) -> Ledger<A> {
        let mut ledger = ledger.clone();
        for (at, out) in self.held_until(now) {
            ledger.keep_outstanding(limit, at, out);
        }
        ledger
    }

    /// Ends a hold of which so much was spent: the rest is handed in, and what was spent beyond it is
    /// owed. Nothing if it was over already: then all of it was spent.
    pub(crate) fn settle<A: Arithmetic>(
        &mut self,
        ledger: &mut Ledger<A>,
        limit: &A,
        now: Timestamp,
        id: HoldId,
        spent: u64,
    ) {
        self.expire_until(ledger, limit, now);
        let Some((cost, booked)) = self.close(id) else {
            return;
        };
        if spent < cost {
            ledger.settle_charge(limit, now, &booked, cost - spent);
        } else if spent > cost {
            ledger.charge_overrun(limit, now, spent - cost);
        }
    }
}

fn saturate(tokens: u128) -> u64 {
    u64::try_from(tokens).unwrap_or(u64::MAX)
}
