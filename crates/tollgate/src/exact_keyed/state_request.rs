//! What can be asked of a key's state, in one form for keys that are there, new ones and the bucket
//! that keys without a slot share.

use tollgate_core::{Booked, Decision, Outcome, Unbooked};

/// What a question is answered with.
pub(super) trait StateAnswer {
    /// The answer where no state is asked: the key is blocked, or new and refused at the cap.
    fn refused(decision: Decision) -> Self;

    fn outcome(&self) -> Outcome;

    /// The same answer; if it is a denial, with the decision that `tell` makes of the one in it.
    fn retold(self, tell: impl FnOnce(Decision) -> Decision) -> Self;
}

impl StateAnswer for Decision {
    fn refused(decision: Decision) -> Self {
        decision
    }

    fn outcome(&self) -> Outcome {
        self.outcome
    }

    fn retold(self, tell: impl FnOnce(Decision) -> Decision) -> Self {
        match self.outcome {
            Outcome::Denied => tell(self),
            Outcome::Allowed | Outcome::Never => self,
        }
    }
}

impl StateAnswer for bool {
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

    fn retold(self, _tell: impl FnOnce(Decision) -> Decision) -> Self {
        self
    }
}

impl StateAnswer for Result<Booked, Unbooked> {
    fn refused(decision: Decision) -> Self {
        Err(Unbooked::Refused(decision))
    }

    fn outcome(&self) -> Outcome {
        self.map_or_else(|unbooked| unbooked.decision().outcome, |_| Outcome::Allowed)
    }

    fn retold(self, tell: impl FnOnce(Decision) -> Decision) -> Self {
        self.map_err(|unbooked| match unbooked {
            Unbooked::Refused(decision) => Unbooked::Refused(decision.retold(tell)),
            Unbooked::TooFarAhead(_) => unbooked,
        })
    }
}

/// One question to a state. It may be put twice: to a fresh state and to the shared one.
#[derive(Clone, Copy)]
pub(super) struct Act<F> {
    pub(super) cost: u64,
    pub(super) purpose: RequestPurpose,
    /// Puts it to a ledger, at a limit and a time, of which so many tokens were taken and are not yet known to be
    /// spent.
    pub(super) on: F,
}

/// Why a state is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RequestPurpose {
    /// To charge what passes.
    Charge,
    /// To decide what a waiter is told, which is a request: it counts for a key at a slower rate.
    Ask,
    /// To see.
    See,
}

impl<F> Act<F> {
    /// Whether it only looks, and so changes nothing.
    #[inline]
    pub(super) fn looks(&self) -> bool {
        self.cost == 0 || self.purpose != RequestPurpose::Charge
    }

    /// Whether there is a request that can be denied.
    pub(super) fn asks(&self) -> bool {
        self.cost > 0 && self.purpose != RequestPurpose::See
    }
}
