//! Exact keys as levels of a stack, and what they hold until it is settled.

use std::borrow::Borrow;
use std::time::Duration;

use tollgate_core::{Decision, Timestamp, Unbooked};

use super::act::Reserve;
use super::key::Key;
use crate::cell::Ticket;
use crate::clock::Clock;
use crate::home::sealed::Home;
use crate::line::meter::Meter;
use crate::stack::Kind;
use crate::stack::limit::{Breadth, Limit, Seen, Taken};

impl<K, Q, C> Limit for Key<'_, K, Q, C>
where
    K: Borrow<Q> + Send,
    Q: Eq + ToOwned<Owned = K> + Sync + ?Sized,
    C: Clock,
{
    fn kind(&self) -> Kind {
        Kind::Rate
    }

    fn breadth(&self) -> Breadth {
        Breadth::Key
    }

    fn now(&self, seen: &mut Seen) -> Timestamp {
        seen.read(&self.limiter.clock)
    }

    fn look(&self, now: Timestamp, cost: u64) -> Decision {
        self.look_in_turn(now, cost)
    }

    fn ask(&self, now: Timestamp, cost: u64) -> Decision {
        let behind = self.behind(now, cost);
        behind.unwrap_or_else(|| Meter::look(self, &self.terms(), now, cost))
    }

    fn take(&self, now: Timestamp, cost: u64) -> Result<Taken, Decision> {
        let booked = self.book_in_turn(now, cost, Duration::ZERO);
        self.limiter.counters.count(booked.is_ok());
        match booked {
            Ok(ticket) => Ok(Taken::Charge(ticket)),
            Err(refused) => Err(*refused.decision()),
        }
    }

    fn put_back(&self, now: Timestamp, taken: Taken) {
        self.settle(now, taken, 0);
    }

    fn hold(&self, now: Timestamp, cost: u64, until: Timestamp) -> Result<Taken, Decision> {
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
        held.map(Taken::Charge).map_err(Unbooked::decision)
    }

    fn settle(&self, now: Timestamp, taken: Taken, spent: u64) {
        match taken {
            Taken::Charge(Ticket::HeldEntry(id)) => {
                let ask = self.ask(now);
                self.improve(now, || self.limiter.tables.settle(&ask, id, spent));
            }
            Taken::Charge(Ticket::HeldShared(id)) => {
                let ask = self.ask(now);
                self.improve(now, || self.limiter.tables.settle_shared(&ask, id, spent));
            }
            // Nothing to keep track of: the key isn't limited, or the request came to nothing.
            Taken::Charge(ticket) if spent == 0 => self.give_back_in_turn(now, &ticket),
            _ => {}
        }
    }

    fn prolong(&self, taken: &mut Taken, until: Timestamp) {
        let ask = self.ask(self.limiter.clock.now());
        let tables = &self.limiter.tables;
        match taken {
            Taken::Charge(Ticket::HeldEntry(id)) => tables.prolong(&ask, id, until),
            Taken::Charge(Ticket::HeldShared(id)) => tables.prolong_shared(&ask, id, until),
            _ => {}
        }
    }

    fn charge_late(&self, now: Timestamp, cost: u64) {
        let ask = self.ask(now);
        self.limiter.tables.penalize(&ask, self.tier, cost);
    }
}
