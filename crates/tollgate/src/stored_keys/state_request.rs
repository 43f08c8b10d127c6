//! Requests to a key's state, in one form for existing keys, new keys and the bucket that keys without a slot share.

use tollgate_core::{Booking, BookingError, Decision, Outcome};

/// The result of a request.
pub(super) trait StateAnswer {
    /// The result without a state: the key is blocked, or new and denied at the cap.
    fn from_denial(decision: Decision) -> Self;

    fn outcome(&self) -> Outcome;

    /// The same result; `tell` replaces the decision of a denial.
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

/// One request to a state. It may run twice: on a fresh state and on the shared one.
#[derive(Clone, Copy)]
pub(super) struct StateRequest<F> {
    pub(super) cost: u64,
    pub(super) purpose: RequestPurpose,
    /// Runs the request on a ledger, with its limit, the time and the outstanding tokens.
    pub(super) apply: F,
}

/// The purpose of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RequestPurpose {
    /// Charges the request if it passes.
    Charge,
    /// Decides for a waiter. It counts as a request: it moves a key that counts by a slower rate.
    WaitCheck,
    /// Reads the state.
    Peek,
}

impl<F> StateRequest<F> {
    /// Whether it only peeks, and so changes nothing.
    #[inline]
    pub(super) fn is_peek(&self) -> bool {
        self.cost == 0 || self.purpose != RequestPurpose::Charge
    }

    /// Whether there is a cost that can be denied.
    pub(super) fn is_request(&self) -> bool {
        self.cost > 0 && self.purpose != RequestPurpose::Peek
    }
}
