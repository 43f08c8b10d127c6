//! What can be asked of a key's state, in one form for keys that are there, new ones and the bucket
//! that keys without a slot share.

use std::time::Duration;

use tollgate_core::{Arithmetic, Booked, Decision, Ledger, Outcome, Timestamp, Unbooked};

/// One question to a state. It may be put twice: to a fresh state and to the shared one.
pub(super) trait Act<A: Arithmetic> {
    type Answer;

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

    fn outcome(answer: &Self::Answer) -> Outcome;

    /// What the answer means for a state that was kept under another limit.
    fn came_to(&self, answer: &Self::Answer) -> Came {
        match Self::outcome(answer) {
            Outcome::Allowed if self.cost() > 0 => Came::Charged,
            Outcome::Denied if self.cost() > 0 => Came::Refused,
            _ => Came::Looked,
        }
    }

    /// The decision in an answer, if a decision is part of it.
    fn decision(_answer: &mut Self::Answer) -> Option<&mut Decision> {
        None
    }

    /// The same answer; if it is a refusal, with the decision that `tell` makes of the cost and the old one.
    fn retold(
        &self,
        mut answer: Self::Answer,
        tell: impl FnOnce(u64, Decision) -> Decision,
    ) -> Self::Answer {
        if let Some(decision) = Self::decision(&mut answer)
            && decision.outcome == Outcome::Denied
        {
            *decision = tell(self.cost(), *decision);
        }
        answer
    }

    /// The answer where no state is asked: the key is blocked, or new and refused at the cap.
    fn refused(&self, decision: Decision) -> Self::Answer;
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

    fn outcome(answer: &Decision) -> Outcome {
        answer.outcome
    }

    fn decision(answer: &mut Decision) -> Option<&mut Decision> {
        Some(answer)
    }

    fn refused(&self, decision: Decision) -> Decision {
        decision
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

    fn outcome(answer: &Decision) -> Outcome {
        answer.outcome
    }

    fn came_to(&self, answer: &Decision) -> Came {
        match answer.outcome {
            Outcome::Denied if self.0 > 0 && self.1 == Purpose::Ask => Came::Refused,
            _ => Came::Looked,
        }
    }

    fn decision(answer: &mut Decision) -> Option<&mut Decision> {
        Some(answer)
    }

    fn refused(&self, decision: Decision) -> Decision {
        decision
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

    fn outcome(answer: &bool) -> Outcome {
        if *answer {
            Outcome::Allowed
        } else {
            Outcome::Denied
        }
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

    fn outcome(answer: &Self::Answer) -> Outcome {
        match answer {
            Ok(_) => Outcome::Allowed,
            Err(unbooked) => unbooked.decision().outcome,
        }
    }

    fn decision(answer: &mut Self::Answer) -> Option<&mut Decision> {
        match answer {
            Err(Unbooked::Refused(decision)) => Some(decision),
            Ok(_) | Err(Unbooked::TooFarAhead(_)) => None,
        }
    }

    fn refused(&self, decision: Decision) -> Self::Answer {
        Err(Unbooked::Refused(decision))
    }
}

/// Takes tokens that no request asked for, at most until none is left.
#[derive(Clone, Copy, Debug)]
pub(super) struct Penalize(pub(super) u64);

impl<A: Arithmetic> Act<A> for Penalize {
    type Answer = ();

    fn on(&self, ledger: &mut Ledger<A>, limit: &A, now: Timestamp) {
        ledger.penalize(limit, now, self.0);
    }

    fn cost(&self) -> u64 {
        self.0
    }

    fn outcome((): &()) -> Outcome {
        Outcome::Allowed
    }

    fn refused(&self, _decision: Decision) {}
}
