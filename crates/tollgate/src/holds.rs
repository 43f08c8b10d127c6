//! What was taken from one limit as an estimate and is not settled yet.
//!
//! One rule keeps the bound, however long a hold lives: what is out doesn't drain. Before every step
//! the state owes at least what is out ([`Algorithm::keep_out`]), so tokens that are there and tokens
//! that are out are never more than the burst together; what comes back was never lent meanwhile.

use std::collections::BTreeMap;

// Not loom's: a number to tell holds apart is no part of any model.
use std::sync::atomic::{AtomicU64, Ordering};

use tollgate_core::{Algorithm, Booked, Ledger, Timestamp};

/// Tells a hold from all others, in the order in which they expire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct HoldId {
    until: Timestamp,
    number: u64,
}

/// The holds on one state.
#[derive(Debug, Default)]
pub(crate) struct Holds {
    /// Tokens of all that are open.
    out: u64,
    open: BTreeMap<HoldId, Part>,
}

/// What one hold took.
#[derive(Debug)]
struct Part {
    cost: u64,
    booked: Booked,
}

impl Holds {
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    /// Lets time pass for the state: what is out doesn't drain, and holds that are over count as
    /// spent.
    pub(crate) fn pass_time<A: Algorithm>(
        &mut self,
        ledger: &mut Ledger<A>,
        limit: &A,
        now: Timestamp,
    ) {
        while let Some(first) = self.open.first_entry() {
            let until = first.key().until;
            if until > now {
                break;
            }
            ledger.keep_out(limit, until, self.out);
            self.out -= first.remove().cost;
        }
        if self.out > 0 {
            ledger.keep_out(limit, now, self.out);
        }
    }

    /// Keeps track of a booking until it is settled, or over.
    pub(crate) fn open(&mut self, booked: Booked, cost: u64, until: Timestamp) -> HoldId {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let id = HoldId {
            until,
            number: NEXT.fetch_add(1, Ordering::Relaxed),
        };
        // No overflow: what is out was taken from a state, and is at most its burst.
        self.out = self.out.saturating_add(cost);
        self.open.insert(id, Part { cost, booked });
        id
    }

    /// Ends a hold of which so much was spent: the rest is handed in, and what was spent beyond it is
    /// owed. Nothing if it was over already: then all of it was spent.
    pub(crate) fn settle<A: Algorithm>(
        &mut self,
        ledger: &mut Ledger<A>,
        limit: &A,
        (now, id, spent): (Timestamp, HoldId, u64),
    ) {
        self.pass_time(ledger, limit, now);
        let Some(part) = self.open.remove(&id) else {
            return;
        };
        self.out -= part.cost;
        if spent < part.cost {
            ledger.hand_in(limit, now, &part.booked, part.cost - spent);
        } else if spent > part.cost {
            ledger.overdraw(limit, now, spent - part.cost);
        }
    }
}
