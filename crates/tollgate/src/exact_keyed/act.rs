//! What can be asked of a key's state, in one form for keys that are there, new ones and the bucket
//! that keys without a slot share.

use std::time::Duration;

use tollgate_core::{Arithmetic, Booked, Decision, Ledger, Outcome, Timestamp, Unbooked};

/// What a question is answered with.
pub(super) trait Reply {
    /// The answer where no state is asked: the key is blocked, or new and refused at the cap.
    fn refused(decision: Decision) -> Self;

    fn outcome(&self) -> Outcome;

    /// The decision in it, if a decision is part of it.
    fn decision(&mut self) -> Option<&mut Decision> {
        None
    }
}

impl Reply for Decision {
    fn refused(decision: Decision) -> Self {
        decision
    }

    fn outcome(&self) -> Outcome {
        self.outcome
    }

    fn decision(&mut self) -> Option<&mut Decision> {
        Some(self)
    }
}

impl Reply for bool {
    fn refused(_decision: Decision) -> Self {
        false
    }

    fn outcome(&self) -> Outcome {
        if *self {
            Outcome::Allowed
        } else {
            Outcome::Denied
        }
    }
}

impl Reply for Result<Booked, Unbooked> {
    fn refused(decision: Decision) -> Self {
        Err(Unbooked::Refused(decision))
    }

    fn outcome(&self) -> Outcome {
        self.map_or_else(|unbooked| unbooked.decision().outcome, |_| Outcome::Allowed)
    }

    fn decision(&mut self) -> Option<&mut Decision> {
        match self {
            Err(Unbooked::Refused(decision)) => Some(decision),
            Ok(_) | Err(Unbooked::TooFarAhead(_)) => None,
        }
    }
}

/// One question to a state. It may be put twice: to a fresh state and to the shared one.
pub(super) trait Act<A: Arithmetic> {
    type Answer: Reply;

    fn on(&self, ledger: &mut Ledger<A>, limit: &A, now: Timestamp) -> Self::Answer;

    /// The same, for a key of which `out` tokens were taken and are not yet known to be spent.
    #[inline]
    fn on_held(
        &self,
        ledger: &mut Ledger<A>,
        limit: &A,
        now: Timestamp,
        _out: u64,
    ) -> Self::Answer {
        self.on(ledger, limit, now)
    }

    fn cost(&self) -> u64;

    /// Whether it only looks, and so changes nothing.
    fn looks(&self) -> bool {
        self.cost() == 0
    }

    /// What the answer means for a state that was kept under another limit.
    fn came_to(&self, answer: &Self::Answer) -> Came {
        match answer.outcome() {
            Outcome::Allowed if self.cost() > 0 => Came::Charged,
            Outcome::Denied if self.cost() > 0 => Came::Refused,
            _ => Came::Looked,
        }
    }

    /// The same answer; if it is a refusal, with the decision that `tell` makes of the cost and the old one.
    fn retold(
        &self,
        mut answer: Self::Answer,
        tell: impl FnOnce(u64, Decision) -> Decision,
    ) -> Self::Answer {
        if let Some(decision) = answer.decision()
            && decision.outcome == Outcome::Denied
        {
            *decision = tell(self.cost(), *decision);
        }
        answer
    }
}

/// The result of an act.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Came {
    /// Something was charged.
    Charged,
    /// A request was refused.
    Refused,
    /// Nothing was asked for, or it can never pass.
    Looked,
}

/// Decides a request of this cost.
#[derive(Clone, Copy, Debug)]
pub(super) struct Check(pub(super) u64);

impl<A: Arithmetic> Act<A> for Check {
    type Answer = Decision;

    #[inline]
    fn on(&self, ledger: &mut Ledger<A>, limit: &A, now: Timestamp) -> Decision {
        ledger.decide(limit, now, self.0)
    }

    fn cost(&self) -> u64 {
        self.0
    }
}

/// Decides a request of this cost without charging it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Look(pub(super) u64, pub(super) Purpose);

/// Why the state is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// To see.
    See,
    /// For a request, so that a refusal counts as one.
    Ask,
}

impl<A: Arithmetic> Act<A> for Look {
    type Answer = Decision;

    fn on(&self, ledger: &mut Ledger<A>, limit: &A, now: Timestamp) -> Decision {
        ledger.look(limit, now, self.0)
    }

    fn cost(&self) -> u64 {
        self.0
    }

    fn looks(&self) -> bool {
        true
    }

    fn came_to(&self, answer: &Decision) -> Came {
        match answer.outcome {
            Outcome::Denied if self.0 > 0 && self.1 == Purpose::Ask => Came::Refused,
            _ => Came::Looked,
        }
    }
}

/// Only whether a request of this cost passes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Allow(pub(super) u64);

impl<A: Arithmetic> Act<A> for Allow {
    type Answer = bool;

    #[inline]
    fn on(&self, ledger: &mut Ledger<A>, limit: &A, now: Timestamp) -> bool {
        ledger.allow(limit, now, self.0)
    }

    fn cost(&self) -> u64 {
        self.0
    }
}

/// Takes the cost to act within the patience.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reserve {
    pub(super) cost: u64,
    pub(super) patience: Duration,
}

impl<A: Arithmetic> Act<A> for Reserve {
    type Answer = Result<Booked, Unbooked>;

    fn on(&self, ledger: &mut Ledger<A>, limit: &A, now: Timestamp) -> Self::Answer {
        ledger.reserve(limit, now, self.cost, self.patience)
    }

    fn on_held(&self, ledger: &mut Ledger<A>, limit: &A, now: Timestamp, out: u64) -> Self::Answer {
        ledger.reserve_beside(limit, out, now, self.cost, self.patience)
    }

    fn cost(&self) -> u64 {
        self.cost
    }
}

/// Takes tokens that no request asked for, at most until none is left.
#[derive(Clone, Copy, Debug)]
pub(super) struct Penalize(pub(super) u64);

impl<A: Arithmetic> Act<A> for Penalize {
    type Answer = bool;

    fn on(&self, ledger: &mut Ledger<A>, limit: &A, now: Timestamp) -> bool {
        ledger.penalize(limit, now, self.0);
        true
    }

    fn cost(&self) -> u64 {
        self.0
    }
}
