//! Charges that can be given back: taken at once, or held as estimates until they are settled.

use std::borrow::Borrow;
use std::time::Duration;

use tollgate_core::{Decision, Timestamp, Unbooked};

use super::Key;
use crate::cell::Ticket;
use crate::clock::Clock;
use crate::exact_keyed::act::Reserve;
use crate::home::sealed::Home;

impl<K, Q, C> Key<'_, K, Q, C>
where
    K: Borrow<Q>,
    Q: Eq + ToOwned<Owned = K> + ?Sized,
    C: Clock,
{
    pub(crate) fn clock(&self) -> &C {
        &self.limiter.clock
    }

    /// Charges the cost now, or says why not.
    pub(crate) fn take(&self, now: Timestamp, cost: u64) -> Result<Ticket, Decision> {
        let booked = self.book_in_turn(now, cost, Duration::ZERO);
        self.limiter.counters.count(booked.is_ok());
        booked.map_err(|refused| *refused.decision())
    }

    /// Charges an estimate, which is out until it is settled or its time is over.
    pub(crate) fn hold(
        &self,
        now: Timestamp,
        cost: u64,
        until: Timestamp,
    ) -> Result<Ticket, Decision> {
        if let Some(told) = self.told_to_wait(now, cost)
            && !told.is_allowed()
        {
            return Err(told);
        }
        let act = Reserve {
            cost,
            patience: Duration::ZERO,
        };
        let tables = &self.limiter.tables;
        let held = tables.hold(&self.ask(now), self.tier, &act, until);
        self.limiter.counters.count(held.is_ok());
        held.map_err(Unbooked::decision)
    }

    /// Ends a charge or an estimate, of which `spent` was spent.
    pub(crate) fn settle(&self, now: Timestamp, ticket: &Ticket, spent: u64) {
        let (tables, ask) = (&self.limiter.tables, self.ask(now));
        match *ticket {
            Ticket::HeldEntry(id) => self.improve(now, || tables.settle(&ask, id, spent)),
            Ticket::HeldShared(id) => self.improve(now, || tables.settle_shared(&ask, id, spent)),
            // Nothing to keep track of: the key isn't limited, or the request came to nothing.
            _ if spent == 0 => self.give_back_in_turn(now, ticket),
            _ => {}
        }
    }

    /// Lets an estimate be out for longer.
    pub(crate) fn prolong(&self, ticket: &mut Ticket, until: Timestamp) {
        let (tables, ask) = (&self.limiter.tables, self.ask(self.limiter.clock.now()));
        match ticket {
            Ticket::HeldEntry(id) => tables.prolong(&ask, id, until),
            Ticket::HeldShared(id) => tables.prolong_shared(&ask, id, until),
            _ => {}
        }
    }

    /// Charges a cost that is known late, as a debt.
    pub(crate) fn charge_late(&self, now: Timestamp, cost: u64) {
        let tables = &self.limiter.tables;
        tables.penalize(&self.ask(now), self.tier, cost);
    }
}
