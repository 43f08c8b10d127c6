//! What can be asked of a key's state, in one form for keys that are there, new ones and the bucket
//! that keys without a slot share.

use tollgate_core::{Booking, BookingError, Decision, Outcome};

/// What a question is answered with.
pub(super) trait StateAnswer {
    /// The answer where no state is asked: the key is blocked, or new and refused at the cap.
    fn from_denial(decision: Decision) -> Self;

    fn outcome(&self) -> Outcome;

    /// The same answer; if it is a denial, with the decision that `tell` makes of the one in it.
    fn map_denial(self, tell: impl FnOnce(Decision) -> Decision) -> Self;
}

impl StateAnswer for Decision {
    fn from_denial(decision: Decision) -> Self {
        decision
    }

    fn outcome(&self) -> Outcome {
        self.outcome
    }

    fn map_denial(self, tell: impl FnOnce(Decision) -> Decision) -> Self {
        match self.outcome {
            Outcome::Denied => tell(self),
            Outcome::Allowed | Outcome::Never => self,
        }
    }
}

impl StateAnswer for bool {
    fn from_denial(_decision: Decision) -> Self {
        false
    }

    fn outcome(&self) -> Outcome {
        if *self {
            Outcome::Allowed
        } else {
            Outcome::Denied
        }
    }

    fn map_denial(self, _tell: impl FnOnce(Decision) -> Decision) -> Self {
        self
    }
}

impl StateAnswer for Result<Booking, BookingError> {
    fn from_denial(decision: Decision) -> Self {
        Err(BookingError::Denied(decision))
    }

    fn outcome(&self) -> Outcome {
        self.map_or_else(|unbooked| unbooked.decision().outcome, |_| Outcome::Allowed)
    }

    fn map_denial(self, tell: impl FnOnce(Decision) -> Decision) -> Self {
        self.map_err(|unbooked| match unbooked {
            BookingError::Denied(decision) => BookingError::Denied(decision.map_denial(tell)),
            BookingError::TooFarAhead(_) => unbooked,
        })
    }
}

/// One question to a state. It may be put twice: to a fresh state and to the shared one.
#[derive(Clone, Copy)]
pub(super) struct StateRequest<F> {
    pub(super) cost: u64,
    pub(super) purpose: RequestPurpose,
    /// Puts it to a ledger, at a limit and a time, of which so many tokens were taken and are not yet known to be
    /// spent.
    pub(super) apply: F,
}

/// Why a state is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RequestPurpose {
    /// To charge what passes.
    Charge,
    /// To decide what a waiter is told, which is a request: it counts for a key at a slower rate.
    WaitCheck,
    /// To see.
    Peek,
}

impl<F> StateRequest<F> {
    /// Whether it only looks, and so changes nothing.
    #[inline]
    pub(super) fn is_peek(&self) -> bool {
        self.cost == 0 || self.purpose != RequestPurpose::Charge
    }

    /// Whether there is a request that can be denied.
    pub(super) fn is_request(&self) -> bool {
        self.cost > 0 && self.purpose != RequestPurpose::Peek
    }
}
