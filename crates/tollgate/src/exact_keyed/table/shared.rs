//! The bucket that keys without a slot share, where the policy at the cap says so.

use tollgate_core::{Ledger, Timestamp, Unbooked};

use super::super::act::{Act, Reserve};
use super::super::kept::Kept;
use super::super::shard::Lookup;
use super::{Table, lock};
use crate::cell::Ticket;
use crate::holds::Holds;
use crate::steps::Latest;
use crate::sync::Ordering;

/// The state of the keys without a slot.
#[derive(Debug)]
pub(super) struct Shared<A: Kept> {
    pub(super) limit: A,
    /// What the state is counted by: the limit, or the last one that counts.
    pub(super) counted_by: A,
    pub(super) ledger: Ledger<A>,
    pub(super) holds: Holds,
    pub(super) latest: Latest,
}

impl<A: Kept> Shared<A> {
    pub(super) fn new(limit: A) -> Self {
        Self {
            limit,
            counted_by: limit,
            ledger: Ledger::default(),
            holds: Holds::default(),
            latest: Latest::new(&limit),
        }
    }

    /// If the clock was set back to this time, moves the state back with it, so that nothing is refused until
    /// the clock has caught up.
    pub(super) fn keep_pace(&mut self, now: Timestamp) {
        if let Some(from) = self.latest.set_back(now) {
            self.holds
                .shift(&mut self.ledger, &self.counted_by, (from, now));
            self.ledger.set_back(&self.counted_by, from, now);
        }
        self.latest.pass(now);
    }

    /// Puts a question to it, beside what is out.
    pub(super) fn act<T: Act<A>>(
        &mut self,
        act: &T,
        (now, clock): (Timestamp, Timestamp),
    ) -> T::Answer {
        self.keep_pace(clock);
        self.holds
            .pass_time(&mut self.ledger, &self.counted_by, now);
        let at = (now, self.holds.out());
        act.on_held(&mut self.ledger, &self.limit, at)
    }

    /// Puts another limit in force; one that counts takes over what was spent.
    pub(super) fn change(&mut self, at: Timestamp, limit: A) {
        self.limit = limit;
        if limit.counts() {
            self.keep_pace(at);
            self.latest.keep(&limit);
            let old = std::mem::replace(&mut self.counted_by, limit);
            self.holds.pass_time(&mut self.ledger, &old, at);
            self.ledger.keep_spent(&old, &limit, at);
        }
    }
}

impl<K, A: Kept> Table<K, A> {
    /// Takes an estimate from the bucket that keys without a slot share.
    #[cold]
    pub(super) fn hold_shared<Q: ?Sized>(
        &self,
        ask: &Lookup<'_, Q>,
        act: &Reserve,
        until: Timestamp,
    ) -> Result<Ticket, Unbooked> {
        self.overflowed.fetch_add(1, Ordering::Relaxed);
        let shared = &mut *lock(&self.shared.0);
        let Lookup { now, clock, .. } = self.local(ask);
        let booked = shared.act(act, (now, clock))?;
        let until = self.local_time(until);
        Ok(Ticket::HeldShared(
            shared.holds.open(booked, act.cost, until),
        ))
    }
}
