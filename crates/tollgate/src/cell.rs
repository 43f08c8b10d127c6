//! The storage of one limit's state for many threads: one atomic word, the same word with stripes around it, or a small
//! lock. All three use the arithmetic of `tollgate-core`.

use std::time::Duration;

use tollgate_core::{
    Arithmetic, Booking, BookingError, Charge, Decision, GcraParams, Ledger, LimitError, Rate,
    TatState, Timestamp,
};

pub(crate) mod locked;
pub(crate) mod striped;
pub(crate) mod switch;
pub(crate) mod word;

use locked::LockedCell;
use striped::Striped;
use switch::Switch;
use word::GcraWord;

use crate::Algorithm;
use crate::holds::HoldId;

/// The receipt of a charge, needed to refund it.
#[derive(Clone, Copy, Debug)]
pub enum ChargeTicket {
    /// Nothing was charged. The request acts at this time.
    Free(Timestamp),
    /// A charge of a word: an interval of TATs.
    Charged(Charge),
    /// A booking of a locked state.
    Booked(Booking),
    /// An estimate, recorded in a limit's state or in an entry of a table.
    Held {
        id: HoldId,
        /// Whether it is the entry that the keys without a slot share.
        is_shared: bool,
    },
    /// A booking of one entry of a table: the time at which it acts on the limiter's clock, and the birth of the entry,
    /// because the key may have been dropped and added again meanwhile.
    Entry {
        booked: Booking,
        at: Timestamp,
        birth: u64,
    },
    /// A reservation made behind waiters. The queue has its booking.
    InLine { number: u64, at: Timestamp },
}

impl ChargeTicket {
    pub(crate) fn at(&self) -> Timestamp {
        match self {
            Self::Free(at) => *at,
            Self::Charged(charge) => charge.at(),
            Self::Booked(booked) => booked.at(),
            Self::Entry { at, .. } | Self::InLine { at, .. } => *at,
            // Held now, to be used immediately.
            Self::Held { .. } => Timestamp::ZERO,
        }
    }

    /// The charged tokens; 0 for holds and for reservations in the queue, whose costs are stored elsewhere.
    pub(crate) fn cost(&self) -> u64 {
        match self {
            Self::Charged(charge) => charge.cost(),
            Self::Booked(booked) | Self::Entry { booked, .. } => booked.cost(),
            Self::Free(_) | Self::Held { .. } | Self::InLine { .. } => 0,
        }
    }
}

/// How much of a booking is to be cancelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CancelScope {
    /// The part that no later charge relies on.
    Unused,
    /// All of it, as if it had never been made, or nothing.
    Whole,
}

impl CancelScope {
    /// The TAT after a charge is cancelled, if it can be.
    pub(crate) fn cancel_tat(
        self,
        tat: TatState,
        now: Timestamp,
        charge: &Charge,
    ) -> Option<TatState> {
        match self {
            Self::Unused => GcraParams::tat_after_cancel(tat, now, charge),
            Self::Whole => GcraParams::tat_before_charge(tat, now, charge),
        }
    }

    /// Cancels a booking of a ledger; returns whether it is as if it had never been made.
    pub(crate) fn cancel_booking<A: Arithmetic>(
        self,
        ledger: &mut Ledger<A>,
        limit: &A,
        now: Timestamp,
        booked: &Booking,
    ) -> bool {
        let undone = ledger.cancel_if_last(limit, now, booked);
        if !undone && self == Self::Unused {
            ledger.cancel(limit, now, booked);
        }
        undone
    }
}

/// Whether a limit has outstanding tokens: taken as estimates, not settled, and therefore not draining.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outstanding {
    NoneHeld,
    SomeHeld,
}

/// The state of one limit, in the form that its algorithm needs.
#[derive(Debug)]
pub(crate) enum LimitCell {
    Word(GcraWord),
    Striped(Box<Striped>),
    Locked(Box<dyn LockedCell>),
}

/// Calls the same method on each variant of the cell.
macro_rules! each {
    ($self:expr, $cell:ident => $call:expr) => {
        match $self {
            LimitCell::Word($cell) => $call,
            LimitCell::Striped($cell) => $call,
            LimitCell::Locked($cell) => $call,
        }
    };
}

impl LimitCell {
    #[inline]
    pub(crate) fn allow(&self, now: Timestamp, cost: u64) -> bool {
        // Tested first, as that is one comparison; a match on all three variants takes seven instructions.
        match self {
            Self::Word(word) => word.allow(now, cost),
            _ => each!(self, cell => cell.allow(now, cost)),
        }
    }

    #[inline]
    pub(crate) fn check(&self, now: Timestamp, cost: u64) -> Decision {
        each!(self, cell => cell.check(now, cost))
    }

    /// Decides without charging.
    pub(crate) fn peek(&self, now: Timestamp, cost: u64, out: Outstanding) -> Decision {
        each!(self, cell => cell.peek(now, cost, out))
    }

    /// Whether a cost would pass, without charging it.
    #[inline]
    pub(crate) fn would_pass(&self, now: Timestamp, cost: u64) -> bool {
        match self {
            Self::Word(word) => word.would_pass(now, cost),
            Self::Striped(striped) => striped.would_pass(now, cost),
            Self::Locked(locked) => locked.peek(now, cost, Outstanding::NoneHeld).is_allowed(),
        }
    }

    /// Takes an estimate that must be settled by `until`.
    pub(crate) fn hold(
        &self,
        now: Timestamp,
        cost: u64,
        until: Timestamp,
    ) -> Result<ChargeTicket, BookingError> {
        each!(self, cell => cell.hold(now, cost, until))
    }

    /// Settles a charge of which `spent` tokens were spent. Only an estimate can be spent in part.
    pub(crate) fn settle(&self, now: Timestamp, ticket: &ChargeTicket, spent: u64) {
        match ticket {
            ChargeTicket::Held { id, .. } => each!(self, cell => cell.settle(now, *id, spent)),
            _ if spent == 0 => {
                self.cancel(now, ticket, CancelScope::Unused);
            }
            _ => {}
        }
    }

    /// Expires holds up to this time. Returns whether every caller has to call this first; a cell behind a lock does it
    /// in each call anyway.
    pub(crate) fn expire_holds(&self, now: Timestamp) -> bool {
        match self {
            Self::Word(word) => word.expire_holds(now),
            Self::Striped(striped) => striped.expire_holds(now),
            Self::Locked(_) => false,
        }
    }

    pub(crate) fn reserve(
        &self,
        now: Timestamp,
        cost: u64,
        patience: Duration,
        out: Outstanding,
    ) -> Result<ChargeTicket, BookingError> {
        each!(self, cell => cell.reserve(now, cost, patience, out))
    }

    pub(crate) fn cancel(&self, now: Timestamp, ticket: &ChargeTicket, undo: CancelScope) -> bool {
        each!(self, cell => cell.cancel(now, ticket, undo))
    }

    /// The least time that a waiter behind this cost has to wait, counted from the time at which the first of that cost
    /// passes.
    pub(crate) fn drain_time(&self, tokens: u128) -> Duration {
        each!(self, cell => cell.drain_time(tokens))
    }

    pub(crate) fn tokens(&self, now: Timestamp, out: Outstanding) -> f64 {
        each!(self, cell => cell.tokens(now, out))
    }

    pub(crate) fn rate(&self) -> Rate {
        each!(self, cell => cell.rate())
    }

    /// Whether the cell's algorithm can represent a rate.
    pub(crate) fn check_rate(&self, rate: Rate) -> Result<(), LimitError> {
        let algorithm = match self {
            Self::Word(_) | Self::Striped(_) => Algorithm::Gcra,
            Self::Locked(locked) => locked.algorithm(),
        };
        algorithm.check_rate(rate)
    }

    /// Replaces the rate in force by `change` of it, with no other change in between.
    pub(crate) fn change_rate(
        &self,
        now: Timestamp,
        change: impl Fn(Rate) -> Rate,
    ) -> Result<(), LimitError> {
        match self {
            Self::Word(word) => word.change_rate(now, change).map(|_| ()),
            Self::Striped(striped) => striped.change_rate(now, change),
            Self::Locked(locked) => locked.change_rate(now, &change),
        }
    }

    pub(crate) fn switch(&self) -> Switch {
        each!(self, cell => cell.switch())
    }

    pub(crate) fn set_switch(&self, now: Timestamp, mode: Switch) {
        each!(self, cell => cell.set_switch(now, mode));
    }
}
