//! What can be asked of a key's state, in one form for keys that are there, new ones and the bucket
//! that keys without a slot share.

use std::time::Duration;

use tollgate_core::{Algorithm, Booked, Decision, Ledger, Timestamp, Unbooked};

/// One question to a state. It may be put twice: to a fresh state and to the shared one.
pub(super) trait Act<A: Algorithm> {
    type Answer;

    fn on(&self, ledger: &mut Ledger<A>, limit: &A, now: Timestamp) -> Self::Answer;

    /// The same to the state of a key of which so many tokens are out.
    #[inline]
    fn on_held(
        &self,
        ledger: &mut Ledger<A>,
        limit: &A,
        (now, _out): (Timestamp, u64),
    ) -> Self::Answer {
        self.on(ledger, limit, now)
    }

    /// Whether it only looks, and so changes nothing.
    fn looks(&self) -> bool;

    /// The answer where no state is asked: the key is blocked, or new and refused at the cap.
    fn refused(&self, decision: Decision) -> Self::Answer;
}

/// Decides a request of this cost.
#[derive(Clone, Copy, Debug)]
pub(super) struct Check(pub(super) u64);

impl<A: Algorithm> Act<A> for Check {
    type Answer = Decision;

    #[inline]
    fn on(&self, ledger: &mut Ledger<A>, limit: &A, now: Timestamp) -> Decision {
        ledger.decide(limit, now, self.0)
    }

    fn looks(&self) -> bool {
        self.0 == 0
    }

    fn refused(&self, decision: Decision) -> Decision {
        decision
    }
}

/// Decides a request of this cost without charging it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Look(pub(super) u64);

impl<A: Algorithm> Act<A> for Look {
    type Answer = Decision;

    fn on(&self, ledger: &mut Ledger<A>, limit: &A, now: Timestamp) -> Decision {
        ledger.look(limit, now, self.0)
    }

    fn looks(&self) -> bool {
        true
    }

    fn refused(&self, decision: Decision) -> Decision {
        decision
    }
}

/// Only whether a request of this cost passes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Allow(pub(super) u64);

impl<A: Algorithm> Act<A> for Allow {
    type Answer = bool;

    #[inline]
    fn on(&self, ledger: &mut Ledger<A>, limit: &A, now: Timestamp) -> bool {
        ledger.allow(limit, now, self.0)
    }

    fn looks(&self) -> bool {
        self.0 == 0
    }

    fn refused(&self, _decision: Decision) -> bool {
        false
    }
}

/// Takes the cost to act within the patience.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reserve {
    pub(super) cost: u64,
    pub(super) patience: Duration,
}

impl<A: Algorithm> Act<A> for Reserve {
    type Answer = Result<Booked, Unbooked>;

    fn on(&self, ledger: &mut Ledger<A>, limit: &A, now: Timestamp) -> Self::Answer {
        ledger.reserve(limit, now, self.cost, self.patience)
    }

    fn on_held(
        &self,
        ledger: &mut Ledger<A>,
        limit: &A,
        (now, out): (Timestamp, u64),
    ) -> Self::Answer {
        ledger.reserve_beside(limit, out, (now, self.cost, self.patience))
    }

    fn looks(&self) -> bool {
        self.cost == 0
    }

    fn refused(&self, decision: Decision) -> Self::Answer {
        Err(Unbooked::Refused(decision))
    }
}

/// Takes tokens that no request asked for, at most until none is left.
#[derive(Clone, Copy, Debug)]
pub(super) struct Penalize(pub(super) u64);

impl<A: Algorithm> Act<A> for Penalize {
    type Answer = ();

    fn on(&self, ledger: &mut Ledger<A>, limit: &A, now: Timestamp) {
        let left = ledger.decide(limit, now, 0).remaining;
        ledger.decide(limit, now, self.0.min(left));
    }

    fn looks(&self) -> bool {
        self.0 == 0
    }

    fn refused(&self, _decision: Decision) {}
}
