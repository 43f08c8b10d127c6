//! Places that keep the state of one limit for many threads: one atomic word, the same word with
//! stripes around it, or a small lock. The arithmetic is `tollgate-core`'s in all three.

use std::time::Duration;

use tollgate_core::{
    Arithmetic, Booked, Charge, Decision, Ledger, LimitError, Pace, Rate, Tat, Timestamp, Unbooked,
};

pub(crate) mod locked;
pub(crate) mod striped;
pub(crate) mod switch;
pub(crate) mod word;

use locked::Locked;
use striped::Striped;
use switch::Switch;
use word::Word;

use crate::Algorithm;
use crate::holds::HoldId;

/// What is needed to give a reservation back.
#[derive(Clone, Copy, Debug)]
pub enum Ticket {
    /// Nothing was taken, to act at this time.
    Free(Timestamp),
    /// An interval of a word's TAT line.
    Charged(Charge),
    /// A booking of a locked state.
    Booked(Booked),
    /// An estimate that a limit's state, or an entry of a table, keeps track of.
    Held {
        id: HoldId,
        /// Whether it is the entry that a table's keys without a slot share.
        is_shared: bool,
    },
    /// A booking of one entry of a table: when it acts on the limiter's clock, and which entry it
    /// was, because the key may have been dropped and come back meanwhile.
    Entry {
        booked: Booked,
        at: Timestamp,
        birth: u64,
    },
    /// A reservation that was made behind waiters: their line keeps what was booked.
    InLine { number: u64, at: Timestamp },
}

impl Ticket {
    pub(crate) fn at(&self) -> Timestamp {
        match self {
            Self::Free(at) => *at,
            Self::Charged(charge) => charge.at(),
            Self::Booked(booked) => booked.at(),
            Self::Entry { at, .. } | Self::InLine { at, .. } => *at,
            // Held now, to be used now.
            Self::Held { .. } => Timestamp::ZERO,
        }
    }

    /// How much was taken; 0 for holds and for what a line keeps, which have their own count.
    pub(crate) fn cost(&self) -> u64 {
        match self {
            Self::Charged(charge) => charge.cost(),
            Self::Booked(booked) | Self::Entry { booked, .. } => booked.cost(),
            Self::Free(_) | Self::Held { .. } | Self::InLine { .. } => 0,
        }
    }
}

/// How a booking is given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Undo {
    /// As much of it as nothing was built on.
    Rest,
    /// All of it, as if it had never been booked, or nothing.
    Whole,
}

impl Undo {
    /// The TAT after giving a charge back, if it can be.
    pub(crate) fn tat(self, tat: Tat, now: Timestamp, charge: &Charge) -> Option<Tat> {
        match self {
            Self::Rest => Pace::returned(tat, now, charge),
            Self::Whole => Pace::undone(tat, now, charge),
        }
    }

    /// Gives a booking back to a ledger; whether that is as if it had never been booked.
    pub(crate) fn booking<A: Arithmetic>(
        self,
        ledger: &mut Ledger<A>,
        limit: &A,
        now: Timestamp,
        booked: &Booked,
    ) -> bool {
        let undone = ledger.unbook(limit, now, booked);
        if !undone && self == Self::Rest {
            ledger.give_back(limit, now, booked);
        }
        undone
    }
}

/// Whether something was taken as an estimate, is not settled, and so doesn't drain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outstanding {
    Nothing,
    Something,
}

/// The state of one limit, behind whatever its algorithm needs.
#[derive(Debug)]
pub(crate) enum Cell {
    Word(Word),
    Striped(Box<Striped>),
    Locked(Box<dyn Locked>),
}

/// Calls the same method on whichever cell it is.
macro_rules! each {
    ($self:expr, $cell:ident => $call:expr) => {
        match $self {
            Cell::Word($cell) => $call,
            Cell::Striped($cell) => $call,
            Cell::Locked($cell) => $call,
        }
    };
}

impl Cell {
    #[inline]
    pub(crate) fn allow(&self, now: Timestamp, cost: u64) -> bool {
        // Asked first, as that is one comparison; to tell all three apart takes seven instructions.
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
    pub(crate) fn look(&self, now: Timestamp, cost: u64, out: Outstanding) -> Decision {
        each!(self, cell => cell.look(now, cost, out))
    }

    /// Whether a cost would pass, without charging it.
    #[inline]
    pub(crate) fn fits(&self, now: Timestamp, cost: u64) -> bool {
        match self {
            Self::Word(word) => word.fits(now, cost),
            Self::Striped(striped) => striped.fits(now, cost),
            Self::Locked(locked) => locked.look(now, cost, Outstanding::Nothing).is_allowed(),
        }
    }

    /// Takes an estimate, to be settled by `until`.
    pub(crate) fn hold(
        &self,
        now: Timestamp,
        cost: u64,
        until: Timestamp,
    ) -> Result<Ticket, Unbooked> {
        each!(self, cell => cell.hold(now, cost, until))
    }

    /// Settles what was taken, of which so much was spent. Only an estimate can be spent in part.
    pub(crate) fn settle(&self, now: Timestamp, ticket: &Ticket, spent: u64) {
        match ticket {
            Ticket::Held { id, .. } => each!(self, cell => cell.settle(now, *id, spent)),
            _ if spent == 0 => {
                self.give_back(now, ticket, Undo::Rest);
            }
            _ => {}
        }
    }

    /// Brings what is out up to this time, and says whether every caller has to do so first. Not behind a lock, where
    /// each call does it anyway.
    pub(crate) fn pass_time(&self, now: Timestamp) -> bool {
        match self {
            Self::Word(word) => word.pass_time(now),
            Self::Striped(striped) => striped.pass_time(now),
            Self::Locked(_) => false,
        }
    }

    pub(crate) fn reserve(
        &self,
        now: Timestamp,
        cost: u64,
        patience: Duration,
        out: Outstanding,
    ) -> Result<Ticket, Unbooked> {
        each!(self, cell => cell.reserve(now, cost, patience, out))
    }

    pub(crate) fn give_back(&self, now: Timestamp, ticket: &Ticket, undo: Undo) -> bool {
        each!(self, cell => cell.give_back(now, ticket, undo))
    }

    /// How long a waiter with so much cost before it has to wait at least, counted from when the first of that
    /// passes.
    pub(crate) fn takes(&self, tokens: u128) -> Duration {
        each!(self, cell => cell.takes(tokens))
    }

    pub(crate) fn tokens(&self, now: Timestamp, out: Outstanding) -> f64 {
        each!(self, cell => cell.tokens(now, out))
    }

    pub(crate) fn rate(&self) -> Rate {
        each!(self, cell => cell.rate())
    }

    /// Whether its algorithm can represent a rate.
    pub(crate) fn takes_rate(&self, rate: Rate) -> Result<(), LimitError> {
        let algorithm = match self {
            Self::Word(_) | Self::Striped(_) => Algorithm::Gcra,
            Self::Locked(locked) => locked.algorithm(),
        };
        algorithm.takes(rate)
    }

    /// Changes the rate to what `change` makes of the one in force, with no other change between.
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

    pub(crate) fn mode(&self) -> Switch {
        each!(self, cell => cell.mode())
    }

    pub(crate) fn set_mode(&self, now: Timestamp, mode: Switch) {
        each!(self, cell => cell.set_mode(now, mode));
    }
}
