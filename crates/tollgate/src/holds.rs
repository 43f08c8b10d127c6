//! Estimates that were taken from one limit and are not settled yet.
//!
//! One rule keeps the bound, however long a hold lasts: outstanding tokens don't drain. Before every step the state
//! owes at least the outstanding tokens ([`Arithmetic::keep_outstanding`]). So available and outstanding tokens
//! together never exceed the burst, and no refunded token was granted to another request meanwhile.

use std::collections::BTreeMap;
use std::iter;
use std::mem;
use std::time::Duration;

// Not loom's: the number that distinguishes holds is no part of any model.
use std::sync::atomic::{AtomicU64, Ordering};

use tollgate_core::{Arithmetic, Booking, Ledger, Timestamp};

/// Identifies a hold. The order of ids is the order in which holds expire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct HoldId {
    until: Timestamp,
    number: u64,
}

/// The holds on one state, each with the data to refund it, if there is any.
#[derive(Clone, Debug)]
pub(crate) struct OpenHolds<B = Booking> {
    /// The tokens of all open holds. They may exceed 64 bits where charges count as hits at a time, or where nothing is
    /// limited.
    held_tokens: u128,
    by_expiry: BTreeMap<HoldId, OpenHold<B>>,
    /// How far the clock was set back so far. An id has the expiry on a clock that was never set.
    clock_set_back: Duration,
    /// How far the clock was set ahead so far.
    clock_set_ahead: Duration,
}

/// The charge of one hold.
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

    /// The time at which the last hold expires.
    pub(crate) fn last_expiry(&self) -> Timestamp {
        let last = self.by_expiry.last_key_value();
        last.map_or(Timestamp::ZERO, |(id, _)| self.expires_at(id))
    }

    /// The time at which a hold expires, on the clock as it is now.
    fn expires_at(&self, id: &HoldId) -> Timestamp {
        let late = (id.until + self.clock_set_ahead) - (Timestamp::ZERO + self.clock_set_back);
        Timestamp::ZERO + late
    }

    /// The tokens that the state must owe at least, and at which times, up to now: outstanding tokens don't drain, and
    /// become fewer as holds expire.
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

    /// Removes expired holds, once the state owes their tokens.
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

    /// Follows a clock that showed `from` and shows `to` now, after holds were expired up to `from`.
    pub(crate) fn follow_clock_change(&mut self, from: Timestamp, to: Timestamp) {
        self.clock_set_back += from - to;
        self.clock_set_ahead += to - from;
    }

    /// Records a booking until it is settled or expires.
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

    /// Extends a hold until then; `None` if it has expired.
    pub(crate) fn extend(&mut self, id: HoldId, until: Timestamp) -> Option<HoldId> {
        let OpenHold {
            cost,
            charge: booked,
        } = self.by_expiry.remove(&id)?;
        self.held_tokens -= u128::from(cost);
        Some(self.open(booked, cost, until))
    }

    /// Ends a hold, and returns its charge; `None` if it has expired.
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
    /// Follows a clock that showed `from` and shows `to` now: outstanding tokens stay outstanding for their remaining
    /// time. If the clock was set back, holds that were taken before it went ahead have expired.
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

    /// Advances the state to this time: outstanding tokens don't drain, and expired holds count as spent.
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

    /// The state as it will be at a time, for a peek.
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

    /// Ends a hold of which `spent` tokens were spent: unspent tokens are refunded, and tokens beyond the estimate are
    /// owed. It does nothing if the hold has expired: then all of it counts as spent.
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
