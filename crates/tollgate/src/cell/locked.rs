//! Any algorithm behind one small lock, booked ahead in order.

use std::time::Duration;

use tollgate_core::{
    Algorithm, Decision, FixedWindow, LeakyBucket, LimitError, Outcome, Rate, Since,
    SlidingCounter, SlidingLog, Timestamp, TokenBucket,
};

use super::{Miss, Ticket};
use crate::Mode;
use crate::sync::{Mutex, MutexGuard, PoisonError};

/// One limit of any kind that needs more than a word.
#[derive(Debug)]
pub(crate) enum Locked {
    TokenBucket(Mutex<Slot<TokenBucket>>),
    LeakyBucket(Mutex<Slot<LeakyBucket>>),
    FixedWindow(Mutex<Slot<FixedWindow>>),
    SlidingLog(Mutex<Slot<SlidingLog>>),
    SlidingCounter(Mutex<Slot<SlidingCounter>>),
}

/// A limit, its state, and what booking ahead needs beside them.
#[derive(Debug)]
pub(crate) struct Slot<A: Algorithm> {
    limit: A,
    state: A::State,
    mode: Mode,
    /// Nobody passes before this time: the act time of the latest booking, for algorithms that
    /// keep bookings as hits instead of debt.
    floor: Timestamp,
    /// Counts charges, so that a receipt knows whether it is the latest.
    version: u64,
}

/// Locks whichever slot it is and evaluates the same expression on it.
macro_rules! each {
    ($self:expr, $slot:ident => $call:expr) => {
        match $self {
            Locked::TokenBucket(slot) => {
                #[allow(unused_mut, reason = "some calls only read")]
                let mut $slot = lock(slot);
                $call
            }
            Locked::LeakyBucket(slot) => {
                #[allow(unused_mut, reason = "some calls only read")]
                let mut $slot = lock(slot);
                $call
            }
            Locked::FixedWindow(slot) => {
                #[allow(unused_mut, reason = "some calls only read")]
                let mut $slot = lock(slot);
                $call
            }
            Locked::SlidingLog(slot) => {
                #[allow(unused_mut, reason = "some calls only read")]
                let mut $slot = lock(slot);
                $call
            }
            Locked::SlidingCounter(slot) => {
                #[allow(unused_mut, reason = "some calls only read")]
                let mut $slot = lock(slot);
                $call
            }
        }
    };
}

impl Locked {
    #[inline(never)]
    pub(crate) fn allow(&self, now: Timestamp, cost: u64) -> bool {
        each!(self, slot => slot.allow(now, cost))
    }

    #[inline(never)]
    pub(crate) fn check(&self, now: Timestamp, cost: u64) -> Decision {
        each!(self, slot => slot.check(now, cost))
    }

    pub(crate) fn reserve(
        &self,
        now: Timestamp,
        cost: u64,
        patience: Duration,
    ) -> Result<Ticket, Miss> {
        each!(self, slot => slot.reserve(now, cost, patience))
    }

    pub(crate) fn give_back(&self, now: Timestamp, ticket: &Ticket) {
        each!(self, slot => slot.give_back(now, ticket));
    }

    #[expect(
        clippy::cast_precision_loss,
        reason = "for people to read, never for a decision"
    )]
    pub(crate) fn tokens(&self, now: Timestamp) -> f64 {
        if let Self::TokenBucket(slot) = self {
            let slot = lock(slot);
            return slot.limit.tokens(&slot.state, now);
        }
        each!(self, slot => slot.check(now, 0).remaining as f64)
    }

    pub(crate) fn rate(&self) -> Rate {
        each!(self, slot => slot.limit.rate())
    }

    pub(crate) fn mode(&self) -> Mode {
        each!(self, slot => slot.mode)
    }

    pub(crate) fn set_rate(&self, now: Timestamp, rate: Rate) -> Result<(), LimitError> {
        match self {
            // Only a fixed window has more to it than its rate.
            Self::FixedWindow(slot) => {
                let mut slot = lock(slot);
                let limit = FixedWindow::new(rate)?.align(slot.limit.alignment());
                slot.replace(now, limit);
                Ok(())
            }
            _ => each!(self, slot => slot.set_rate(now, rate)),
        }
    }

    pub(crate) fn set_mode(&self, _now: Timestamp, mode: Mode) {
        each!(self, slot => slot.mode = mode);
    }
}

impl<A: Algorithm> Slot<A> {
    pub(crate) fn new(limit: A, state: A::State) -> Mutex<Self> {
        Mutex::new(Self {
            limit,
            state,
            mode: Mode::Enforce,
            floor: Timestamp::ZERO,
            version: 0,
        })
    }

    fn allow(&mut self, now: Timestamp, cost: u64) -> bool {
        if self.mode == Mode::Bypass {
            return true;
        }
        let passes = self.earliest(now, cost).is_some_and(|at| at <= now);
        if passes && cost > 0 {
            self.limit.charge(&mut self.state, now, now, cost);
            self.version += 1;
        }
        passes
    }

    fn check(&mut self, now: Timestamp, cost: u64) -> Decision {
        if self.mode == Mode::Bypass {
            return Decision::UNLIMITED;
        }
        let at = self.earliest(now, cost);
        if at.is_some_and(|at| at <= now) && cost > 0 {
            self.limit.charge(&mut self.state, now, now, cost);
            self.version += 1;
        }
        self.report(now, at)
    }

    fn reserve(&mut self, now: Timestamp, cost: u64, patience: Duration) -> Result<Ticket, Miss> {
        if self.mode == Mode::Bypass {
            return Ok(self.ticket(now, now, 0));
        }
        let at = self.earliest(now, cost);
        let Some(at) = at.filter(|at| *at - now <= patience) else {
            return Err(Miss::Refused(self.report(now, at)));
        };
        if at - now > self.limit.horizon() {
            return Err(Miss::BeyondHorizon(self.report(now, Some(at))));
        }
        Ok(self.ticket(now, at, cost))
    }

    /// Charges what `earliest` said passes at `at`.
    fn ticket(&mut self, now: Timestamp, at: Timestamp, cost: u64) -> Ticket {
        let floor_before = self.floor;
        let charge = self.limit.charge(&mut self.state, now, at, cost);
        if cost > 0 {
            self.version += 1;
            if at > now && !A::BY_DEBT {
                self.floor = at;
            }
        }
        Ticket {
            charge,
            version: self.version,
            floor_before,
        }
    }

    fn give_back(&mut self, now: Timestamp, ticket: &Ticket) {
        if ticket.charge.cost() == 0 {
            return;
        }
        let since = if ticket.version == self.version {
            // The latest charge is undone as if it had not been, and the one before it becomes
            // the latest: cancelling in reverse order restores everything.
            self.version -= 1;
            self.floor = ticket.floor_before;
            Since::Nothing
        } else {
            Since::Others
        };
        self.limit
            .give_back(&mut self.state, now, &ticket.charge, since);
    }

    fn set_rate(&mut self, now: Timestamp, rate: Rate) -> Result<(), LimitError> {
        self.replace(now, A::new(rate)?);
        Ok(())
    }

    fn replace(&mut self, now: Timestamp, limit: A) {
        limit.adopt(&mut self.state, &self.limit, now);
        self.limit = limit;
        // A change counts as something built on every charge before it.
        self.version += 1;
    }

    /// When this cost passes, not before what is booked already.
    fn earliest(&self, now: Timestamp, cost: u64) -> Option<Timestamp> {
        if cost == 0 && !A::BY_DEBT {
            return Some(now);
        }
        let from = now.max(self.floor);
        self.limit.earliest(&self.state, from, cost)
    }

    fn report(&self, now: Timestamp, at: Option<Timestamp>) -> Decision {
        let mut decision = self.limit.report(&self.state, now, at);
        if now < self.floor && decision.outcome != Outcome::Never {
            decision.remaining = 0;
        }
        decision
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic can't happen between two writes of one state, so a poisoned lock holds a good one.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
