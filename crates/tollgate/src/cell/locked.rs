//! Any algorithm behind one small lock, booked ahead in order.

use std::time::Duration;

use tollgate_core::{
    Algorithm, Book, Decision, FixedWindow, LeakyBucket, LimitError, Rate, SlidingCounter,
    SlidingLog, Timestamp, TokenBucket, Unbooked,
};

use super::Ticket;
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

/// A limit that is in force, or bypassed.
#[derive(Debug)]
pub(crate) struct Slot<A: Algorithm> {
    book: Book<A>,
    mode: Mode,
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
    ) -> Result<Ticket, Unbooked> {
        each!(self, slot => slot.reserve(now, cost, patience))
    }

    pub(crate) fn give_back(&self, now: Timestamp, ticket: &Ticket) {
        if let Ticket::Booked(booked) = ticket {
            each!(self, slot => slot.book.give_back(now, booked));
        }
    }

    #[expect(
        clippy::cast_precision_loss,
        reason = "for people to read, never for a decision"
    )]
    pub(crate) fn tokens(&self, now: Timestamp) -> f64 {
        if self.mode() == Mode::Bypass || self.rate().is_unlimited() {
            return f64::INFINITY;
        }
        match self {
            Self::TokenBucket(slot) => {
                let slot = lock(slot);
                slot.book.limit().tokens(slot.book.state(), now)
            }
            Self::LeakyBucket(slot) => {
                let slot = lock(slot);
                let limit = slot.book.limit();
                limit.limit() as f64 - limit.level(slot.book.state(), now)
            }
            _ => each!(self, slot => slot.check(now, 0).remaining as f64),
        }
    }

    pub(crate) fn rate(&self) -> Rate {
        each!(self, slot => slot.book.limit().rate())
    }

    pub(crate) fn mode(&self) -> Mode {
        each!(self, slot => slot.mode)
    }

    pub(crate) fn change_rate(
        &self,
        now: Timestamp,
        change: impl Fn(Rate) -> Rate,
    ) -> Result<(), LimitError> {
        match self {
            // Only a fixed window has more to it than its rate.
            Self::FixedWindow(slot) => {
                let mut slot = lock(slot);
                let old = slot.book.limit();
                let limit = FixedWindow::new(change(old.rate()))?.align(old.alignment());
                slot.book.replace(now, limit);
                Ok(())
            }
            _ => each!(self, slot => slot.change_rate(now, change)),
        }
    }

    pub(crate) fn set_mode(&self, _now: Timestamp, mode: Mode) {
        each!(self, slot => slot.mode = mode);
    }
}

impl<A: Algorithm> Slot<A> {
    pub(crate) fn new(limit: A, state: A::State) -> Mutex<Self> {
        Mutex::new(Self {
            book: Book::with_state(limit, state),
            mode: Mode::Enforce,
        })
    }

    fn allow(&mut self, now: Timestamp, cost: u64) -> bool {
        self.mode == Mode::Bypass || self.book.allow(now, cost)
    }

    fn check(&mut self, now: Timestamp, cost: u64) -> Decision {
        match self.mode {
            Mode::Bypass => Decision::UNLIMITED,
            Mode::Enforce => self.book.decide(now, cost),
        }
    }

    fn reserve(
        &mut self,
        now: Timestamp,
        cost: u64,
        patience: Duration,
    ) -> Result<Ticket, Unbooked> {
        match self.mode {
            Mode::Bypass => Ok(Ticket::Free(now)),
            Mode::Enforce => self.book.reserve(now, cost, patience).map(Ticket::Booked),
        }
    }

    fn change_rate(
        &mut self,
        now: Timestamp,
        change: impl Fn(Rate) -> Rate,
    ) -> Result<(), LimitError> {
        let limit = A::new(change(self.book.limit().rate()))?;
        self.book.replace(now, limit);
        Ok(())
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic can't happen between two writes of one state, so a poisoned lock holds a good one.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
