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

    /// Whether it only looks, and so changes nothing.
    fn looks(&self) -> bool;

    /// What the answer means for a state that was kept under another limit.
    fn came_to(&self, answer: &Self::Answer) -> Came;

    /// The same answer; if it is a refusal, with the decision that `tell` makes of the cost and the old one.
    fn retold(
        &self,
        answer: Self::Answer,
        tell: impl FnOnce(u64, Decision) -> Decision,
    ) -> Self::Answer;

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

impl Came {
    /// Of a request of this cost that passes or doesn't.
    const fn of(cost: u64, outcome: Outcome) -> Self {
        match outcome {
            Outcome::Allowed if cost > 0 => Self::Charged,
            Outcome::Denied if cost > 0 => Self::Refused,
            _ => Self::Looked,
        }
    }
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

    fn looks(&self) -> bool {
        self.0 == 0
    }

    fn came_to(&self, answer: &Decision) -> Came {
        Came::of(self.0, answer.outcome)
    }

    fn retold(&self, answer: Decision, tell: impl FnOnce(u64, Decision) -> Decision) -> Decision {
        retold(self.0, answer, tell)
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

    fn looks(&self) -> bool {
        true
    }

    fn came_to(&self, answer: &Decision) -> Came {
        match Came::of(self.0, answer.outcome) {
            Came::Refused if self.1 == Purpose::Ask => Came::Refused,
            _ => Came::Looked,
        }
    }

    fn retold(&self, answer: Decision, tell: impl FnOnce(u64, Decision) -> Decision) -> Decision {
        retold(self.0, answer, tell)
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

    fn looks(&self) -> bool {
        self.0 == 0
    }

    fn came_to(&self, answer: &bool) -> Came {
        let outcome = if *answer {
            Outcome::Allowed
        } else {
            Outcome::Denied
        };
        Came::of(self.0, outcome)
    }

    fn retold(&self, answer: bool, _tell: impl FnOnce(u64, Decision) -> Decision) -> bool {
        answer
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

    fn looks(&self) -> bool {
        self.cost == 0
    }

    fn came_to(&self, answer: &Self::Answer) -> Came {
        match answer {
            Ok(_) => Came::of(self.cost, Outcome::Allowed),
            Err(unbooked) => Came::of(self.cost, unbooked.decision().outcome),
        }
    }

    fn retold(
        &self,
        answer: Self::Answer,
        tell: impl FnOnce(u64, Decision) -> Decision,
    ) -> Self::Answer {
        answer.map_err(|unbooked| match unbooked {
            Unbooked::Refused(decision) => Unbooked::Refused(retold(self.cost, decision, tell)),
            too_far => too_far,
        })
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

    fn looks(&self) -> bool {
        self.0 == 0
    }

    fn came_to(&self, _answer: &()) -> Came {
        Came::of(self.0, Outcome::Allowed)
    }

    fn retold(&self, (): (), _tell: impl FnOnce(u64, Decision) -> Decision) {}

    fn refused(&self, _decision: Decision) {}
}

fn retold(cost: u64, decision: Decision, tell: impl FnOnce(u64, Decision) -> Decision) -> Decision {
    match decision.outcome {
        Outcome::Denied => tell(cost, decision),
        Outcome::Allowed | Outcome::Never => decision,
    }
}
