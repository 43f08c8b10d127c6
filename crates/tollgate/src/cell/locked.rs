//! Any algorithm behind one small lock, booked ahead in order.

use std::fmt;
use std::time::Duration;

use tollgate_core::{Arithmetic, Book, Decision, Floor, LimitError, Rate, Timestamp, Unbooked};

use super::switch::Switch;
use super::{Outstanding, Ticket, Undo};
use crate::Algorithm;
use crate::clock_steps::LatestTime;
use crate::holds::{HoldId, OpenHolds};
use crate::sync::{Mutex, MutexGuard, unpoisoned};

/// A slot, whichever algorithm it is of: a limit of any kind that needs more than a word.
pub(crate) trait Locked: fmt::Debug + Send + Sync {
    fn allow(&self, now: Timestamp, cost: u64) -> bool;
    fn check(&self, now: Timestamp, cost: u64) -> Decision;
    fn look(&self, now: Timestamp, cost: u64, out: Outstanding) -> Decision;
    fn hold(&self, now: Timestamp, cost: u64, until: Timestamp) -> Result<Ticket, Unbooked>;
    fn settle(&self, now: Timestamp, id: HoldId, spent: u64);
    fn reserve(
        &self,
        now: Timestamp,
        cost: u64,
        patience: Duration,
        out: Outstanding,
    ) -> Result<Ticket, Unbooked>;
    fn give_back(&self, now: Timestamp, ticket: &Ticket, undo: Undo) -> bool;
    fn takes(&self, tokens: u128) -> Duration;
    /// Which it is; windows wherever they begin.
    fn algorithm(&self) -> Algorithm;
    fn tokens(&self, now: Timestamp, out: Outstanding) -> f64;
    fn rate(&self) -> Rate;
    fn mode(&self) -> Switch;
    fn change_rate(&self, at: Timestamp, change: &dyn Fn(Rate) -> Rate) -> Result<(), LimitError>;
    fn set_mode(&self, now: Timestamp, mode: Switch);
}

/// A limit that is in force, or bypassed.
#[derive(Debug)]
pub(crate) struct Slot<A: Arithmetic> {
    algorithm: Algorithm,
    book: Book<A>,
    holds: OpenHolds,
    latest: LatestTime,
    mode: Switch,
}

impl<A: Arithmetic> Slot<A> {
    pub(crate) fn new(algorithm: Algorithm, limit: A, state: A::State) -> Self {
        Self {
            algorithm,
            book: Book::with_state(limit, state),
            holds: OpenHolds::default(),
            latest: LatestTime::new(&limit),
            mode: Switch::Enforce,
        }
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
}

impl<A: Arithmetic> Locked for Mutex<Slot<A>>
where
    Slot<A>: Send,
{
    fn allow(&self, now: Timestamp, cost: u64) -> bool {
        let mut slot = lock(self);
        slot.mode == Switch::Bypass || slot.asked_at(now).allow(now, cost)
    }

    fn check(&self, now: Timestamp, cost: u64) -> Decision {
        let mut slot = lock(self);
        match slot.mode {
            Switch::Bypass => Decision::UNLIMITED,
            Switch::Enforce if cost == 0 => slot.look(now, 0),
            Switch::Enforce => slot.asked_at(now).decide(now, cost),
        }
    }

    fn look(&self, now: Timestamp, cost: u64, _out: Outstanding) -> Decision {
        lock(self).look(now, cost)
    }

    fn hold(&self, now: Timestamp, cost: u64, until: Timestamp) -> Result<Ticket, Unbooked> {
        let mut slot = lock(self);
        if slot.mode == Switch::Bypass || cost == 0 {
            return Ok(Ticket::Free(now));
        }
        let booked = slot.asked_at(now).reserve(now, cost, Duration::ZERO)?;
        Ok(Ticket::Held {
            id: slot.holds.open(booked, cost, until),
            is_shared: false,
        })
    }

    fn settle(&self, now: Timestamp, id: HoldId, spent: u64) {
        let slot = &mut *lock(self);
        slot.at(now);
        let (limit, ledger) = slot.book.parts_mut();
        slot.holds.settle(ledger, limit, now, id, spent);
    }

    fn reserve(
        &self,
        now: Timestamp,
        cost: u64,
        patience: Duration,
        _out: Outstanding,
    ) -> Result<Ticket, Unbooked> {
        let slot = &mut *lock(self);
        if slot.mode == Switch::Bypass {
            return Ok(Ticket::Free(now));
        }
        slot.asked_at(now);
        let (limit, ledger) = slot.book.parts_mut();
        let booked = ledger.reserve_beside(limit, slot.holds.out(), now, cost, patience);
        booked.map(Ticket::Booked)
    }

    fn give_back(&self, now: Timestamp, ticket: &Ticket, undo: Undo) -> bool {
        let Ticket::Booked(booked) = ticket else {
            return matches!(ticket, Ticket::Free(_));
        };
        let mut slot = lock(self);
        let (limit, ledger) = slot.at(now).parts_mut();
        undo.booking(ledger, limit, now, booked)
    }

    fn takes(&self, tokens: u128) -> Duration {
        let slot = lock(self);
        match slot.mode {
            Switch::Bypass => Duration::ZERO,
            Switch::Enforce => takes(slot.algorithm, slot.book.limit().rate(), tokens),
        }
    }

    fn algorithm(&self) -> Algorithm {
        lock(self).algorithm
    }

    #[expect(clippy::cast_precision_loss, reason = "only for people to read")]
    fn tokens(&self, now: Timestamp, _out: Outstanding) -> f64 {
        let mut slot = lock(self);
        if slot.mode == Switch::Bypass || slot.book.limit().rate().is_unlimited() {
            return f64::INFINITY;
        }
        if !A::Floor::IS_DEBT {
            // What is booked ahead isn't there, though no state shows it.
            return slot.look(now, 0).remaining as f64;
        }
        let book = slot.at(now);
        book.limit().tokens(book.state(), now)
    }

    fn rate(&self) -> Rate {
        lock(self).book.limit().rate()
    }

    fn mode(&self) -> Switch {
        lock(self).mode
    }

    fn change_rate(&self, at: Timestamp, change: &dyn Fn(Rate) -> Rate) -> Result<(), LimitError> {
        let mut slot = lock(self);
        let old = slot.book.limit();
        let limit = old.at_rate(change(old.rate()))?;
        // As of the latest time, if the clock is a little behind that: what it went back isn't something that was spent.
        slot.asked_at(at);
        let latest = slot.latest.at().max(at);
        slot.book.replace(latest, limit);
        slot.latest.keep(&limit);
        Ok(())
    }

    fn set_mode(&self, _now: Timestamp, mode: Switch) {
        lock(self).mode = mode;
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
