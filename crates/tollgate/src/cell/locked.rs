//! Any algorithm behind one small lock, booked ahead in order.

use std::time::Duration;

use tollgate_core::{
    Align, Arithmetic as _, Book, Decision, FixedWindow, LeakyBucket, LimitError, Rate,
    SlidingCounter, SlidingLog, Timestamp, TokenBucket, Unbooked,
};

use super::switch::Switch;
use super::{Out, Ticket};
use crate::Algorithm;
use crate::holds::{HoldId, Holds};
use crate::steps::Latest;
use crate::sync::{Mutex, MutexGuard, unpoisoned};

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
pub(crate) struct Slot<A: tollgate_core::Arithmetic> {
    book: Book<A>,
    holds: Holds,
    latest: Latest,
    mode: Switch,
}

/// Locks whichever slot it is and evaluates the same expression on it.
macro_rules! each {
    ($self:expr, $slot:ident => $call:expr) => {
        each!($self, $slot, $call, TokenBucket LeakyBucket FixedWindow SlidingLog SlidingCounter)
    };
    ($self:expr, $slot:ident, $call:expr, $($kind:ident)*) => {
        match $self {
            $(Locked::$kind(slot) => {
                let $slot = &mut *lock(slot);
                $call
            })*
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

    pub(crate) fn look(&self, now: Timestamp, cost: u64, _out: Out) -> Decision {
        each!(self, slot => slot.look(now, cost))
    }

    pub(crate) fn hold(
        &self,
        now: Timestamp,
        cost: u64,
        until: Timestamp,
    ) -> Result<Ticket, Unbooked> {
        each!(self, slot => slot.hold(now, cost, until))
    }

    pub(crate) fn settle(&self, now: Timestamp, id: HoldId, spent: u64) {
        each!(self, slot => slot.settle(now, id, spent));
    }

    pub(crate) fn reserve(
        &self,
        now: Timestamp,
        cost: u64,
        patience: Duration,
        _out: Out,
    ) -> Result<Ticket, Unbooked> {
        each!(self, slot => slot.reserve(now, cost, patience))
    }

    pub(crate) fn give_back(&self, now: Timestamp, ticket: &Ticket) {
        if let Ticket::Booked(booked) = ticket {
            each!(self, slot => slot.at(now).give_back(now, booked));
        }
    }

    pub(crate) fn unbook(&self, now: Timestamp, ticket: &Ticket) -> bool {
        match ticket {
            Ticket::Booked(booked) => each!(self, slot => slot.at(now).unbook(now, booked)),
            Ticket::Free(_) => true,
            _ => false,
        }
    }

    pub(crate) fn takes(&self, tokens: u128) -> Duration {
        if self.mode() == Switch::Bypass {
            return Duration::ZERO;
        }
        takes(self.algorithm(), self.rate(), tokens)
    }

    /// Which it is; windows wherever they begin.
    pub(crate) const fn algorithm(&self) -> Algorithm {
        match self {
            Self::TokenBucket(_) => Algorithm::TokenBucket,
            Self::LeakyBucket(_) => Algorithm::LeakyBucket,
            Self::FixedWindow(_) => Algorithm::FixedWindow(Align::FirstHit),
            Self::SlidingLog(_) => Algorithm::SlidingLog,
            Self::SlidingCounter(_) => Algorithm::SlidingCounter,
        }
    }

    #[expect(
        clippy::cast_precision_loss,
        reason = "for people to read, never for a decision"
    )]
    pub(crate) fn tokens(&self, now: Timestamp, _out: Out) -> f64 {
        if self.mode() == Switch::Bypass || self.rate().is_unlimited() {
            return f64::INFINITY;
        }
        match self {
            Self::TokenBucket(slot) => {
                let mut slot = lock(slot);
                let book = slot.at(now);
                book.limit().tokens(book.state(), now)
            }
            Self::LeakyBucket(slot) => {
                let mut slot = lock(slot);
                let book = slot.at(now);
                book.limit().limit() as f64 - book.limit().level(book.state(), now)
            }
            _ => each!(self, slot => slot.check(now, 0).remaining as f64),
        }
    }

    pub(crate) fn rate(&self) -> Rate {
        each!(self, slot => slot.book.limit().rate())
    }

    pub(crate) fn mode(&self) -> Switch {
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
                slot.replace(now, limit);
                Ok(())
            }
            _ => each!(self, slot => slot.change_rate(now, change)),
        }
    }

    pub(crate) fn set_mode(&self, _now: Timestamp, mode: Switch) {
        each!(self, slot => slot.mode = mode);
    }
}

impl<A: tollgate_core::Arithmetic> Slot<A> {
    pub(crate) fn new(limit: A, state: A::State) -> Mutex<Self> {
        Mutex::new(Self {
            book: Book::with_state(limit, state),
            holds: Holds::default(),
            latest: Latest::new(&limit),
            mode: Switch::Enforce,
        })
    }

    /// The book, for a caller that asks for tokens.
    #[inline]
    fn asked_at(&mut self, now: Timestamp) -> &mut Book<A> {
        self.latest.pass(now);
        self.at(now)
    }

    /// The book, with what is out kept out of what drained until now.
    #[inline]
    fn at(&mut self, now: Timestamp) -> &mut Book<A> {
        self.follow_back(now);
        if !self.holds.is_empty() {
            let (limit, ledger) = self.book.parts_mut();
            self.holds.pass_time(ledger, limit, now);
        }
        &mut self.book
    }

    #[inline]
    fn follow_back(&mut self, now: Timestamp) {
        if let Some(from) = self.latest.set_back(now) {
            self.set_back(from, now);
        }
    }

    #[cold]
    fn set_back(&mut self, from: Timestamp, to: Timestamp) {
        // By what it is counted by, also while a limit is in force that counts nothing.
        let (limit, ledger) = self.book.counted_mut();
        self.holds.shift(ledger, limit, from, to);
        ledger.set_back(limit, from, to);
    }

    fn allow(&mut self, now: Timestamp, cost: u64) -> bool {
        self.mode == Switch::Bypass || self.asked_at(now).allow(now, cost)
    }

    fn look(&mut self, now: Timestamp, cost: u64) -> Decision {
        match self.mode {
            Switch::Bypass => Decision::UNLIMITED,
            Switch::Enforce if self.holds.is_empty() => self.at(now).look(now, cost),
            // A look at a later time must not change what is out until then.
            Switch::Enforce => {
                self.follow_back(now);
                let (limit, ledger) = self.book.parts_mut();
                self.holds
                    .seen_at(ledger, limit, now)
                    .look(limit, now, cost)
            }
        }
    }

    fn hold(&mut self, now: Timestamp, cost: u64, until: Timestamp) -> Result<Ticket, Unbooked> {
        if self.mode == Switch::Bypass || cost == 0 {
            return Ok(Ticket::Free(now));
        }
        let booked = self.asked_at(now).reserve(now, cost, Duration::ZERO)?;
        Ok(Ticket::Held(self.holds.open(booked, cost, until)))
    }

    fn settle(&mut self, now: Timestamp, id: HoldId, spent: u64) {
        self.at(now);
        let (limit, ledger) = self.book.parts_mut();
        self.holds.settle(ledger, limit, now, id, spent);
    }

    fn check(&mut self, now: Timestamp, cost: u64) -> Decision {
        match self.mode {
            Switch::Bypass => Decision::UNLIMITED,
            Switch::Enforce if cost == 0 => self.look(now, 0),
            Switch::Enforce => self.asked_at(now).decide(now, cost),
        }
    }

    fn reserve(
        &mut self,
        now: Timestamp,
        cost: u64,
        patience: Duration,
    ) -> Result<Ticket, Unbooked> {
        match self.mode {
            Switch::Bypass => Ok(Ticket::Free(now)),
            Switch::Enforce => {
                self.asked_at(now);
                let (limit, ledger) = self.book.parts_mut();
                let out = self.holds.out();
                let booked = ledger.reserve_beside(limit, out, now, cost, patience);
                booked.map(Ticket::Booked)
            }
        }
    }

    fn replace(&mut self, now: Timestamp, limit: A) {
        // As of the latest time, if the clock is a little behind that: what it went back isn't something that was spent.
        self.asked_at(now);
        self.book.replace(self.latest.at().max(now), limit);
        self.latest.keep(&limit);
    }

    fn change_rate(
        &mut self,
        now: Timestamp,
        change: impl Fn(Rate) -> Rate,
    ) -> Result<(), LimitError> {
        let limit = A::new(change(self.book.limit().rate()))?;
        self.replace(now, limit);
        Ok(())
    }
}

/// How long so many tokens take at least, from when the first of them passes.
pub(crate) fn takes(algorithm: Algorithm, rate: Rate, tokens: u128) -> Duration {
    let period = rate.period().map_or(0, |period| period.as_nanos());
    let limit = u128::from(rate.burst_size().max(1));
    let nanos = match algorithm {
        Algorithm::Gcra | Algorithm::TokenBucket | Algorithm::LeakyBucket => {
            let count = u128::from(rate.count().max(1));
            tokens.saturating_mul(period).div_ceil(count)
        }
        Algorithm::SlidingLog => (tokens / limit).saturating_mul(period),
        // The first may be at the end of its window.
        Algorithm::FixedWindow(_) => {
            let windows = (tokens / limit).saturating_sub(1);
            windows.saturating_mul(period)
        }
        // Which sees up to two limits in one window.
        Algorithm::SlidingCounter => {
            let windows = (tokens / (2 * limit)).saturating_sub(1);
            windows.saturating_mul(period)
        }
    };
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic can't happen between two writes of one state, so a poisoned lock holds a good one.
    unpoisoned(mutex.lock())
}
