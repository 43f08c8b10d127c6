//! Any algorithm behind one small lock, with reservations in order.

use std::fmt;
use std::time::Duration;

use tollgate_core::{
    Arithmetic, BookedUntil, BookingError, Decision, LimitError, LimitLedger, Rate, Timestamp,
};

use super::switch::Switch;
use super::{CancelScope, ChargeTicket, Outstanding};
use crate::Algorithm;
use crate::clock_steps::LatestTime;
use crate::holds::{HoldId, OpenHolds};
use crate::sync::{Mutex, MutexGuard, ignore_poison};

/// A locked limit of any algorithm that needs more than a word.
pub(crate) trait LockedCell: fmt::Debug + Send + Sync {
    fn allow(&self, now: Timestamp, cost: u64) -> bool;
    fn check(&self, now: Timestamp, cost: u64) -> Decision;
    fn peek(&self, now: Timestamp, cost: u64, out: Outstanding) -> Decision;
    fn hold(
        &self,
        now: Timestamp,
        cost: u64,
        until: Timestamp,
    ) -> Result<ChargeTicket, BookingError>;
    fn settle(&self, now: Timestamp, id: HoldId, spent: u64);
    fn reserve(
        &self,
        now: Timestamp,
        cost: u64,
        patience: Duration,
        out: Outstanding,
    ) -> Result<ChargeTicket, BookingError>;
    fn cancel(&self, now: Timestamp, ticket: &ChargeTicket, undo: CancelScope) -> bool;
    fn drain_time(&self, tokens: u128) -> Duration;
    /// The algorithm, with the default window alignment.
    fn algorithm(&self) -> Algorithm;
    fn tokens(&self, now: Timestamp, out: Outstanding) -> f64;
    fn rate(&self) -> Rate;
    fn switch(&self) -> Switch;
    fn change_rate(&self, at: Timestamp, change: &dyn Fn(Rate) -> Rate) -> Result<(), LimitError>;
    fn set_switch(&self, now: Timestamp, mode: Switch);
}

/// A limit that is enforced or bypassed.
#[derive(Debug)]
pub(crate) struct LockedLimit<A: Arithmetic> {
    algorithm: Algorithm,
    book: LimitLedger<A>,
    holds: OpenHolds,
    latest: LatestTime,
    mode: Switch,
}

impl<A: Arithmetic> LockedLimit<A> {
    pub(crate) fn new(algorithm: Algorithm, limit: A, state: A::State) -> Self {
        Self {
            algorithm,
            book: LimitLedger::from_state(limit, state),
            holds: OpenHolds::default(),
            latest: LatestTime::new(&limit),
            mode: Switch::Enforce,
        }
    }

    /// The ledger, for a request that takes tokens.
    #[inline]
    fn ledger_for_charge(&mut self, now: Timestamp) -> &mut LimitLedger<A> {
        self.latest.advance_to(now);
        self.ledger_at(now)
    }

    /// The ledger at this time, with outstanding tokens kept from draining until then.
    #[inline]
    fn ledger_at(&mut self, now: Timestamp) -> &mut LimitLedger<A> {
        self.follow_back(now);
        if !self.holds.is_empty() {
            let (limit, ledger) = self.book.parts_mut();
            self.holds.expire_until(ledger, limit, now);
        }
        &mut self.book
    }

    #[inline]
    fn follow_back(&mut self, now: Timestamp) {
        if let Some(from) = self.latest.detect_set_back(now) {
            self.follow_clock_back(from, now);
        }
    }

    #[cold]
    fn follow_clock_back(&mut self, from: Timestamp, to: Timestamp) {
        // Under the limit that counts the state, which may be older than a limit in force that counts nothing.
        let (limit, ledger) = self.book.counting_parts_mut();
        self.holds.shift_clock(ledger, limit, from, to);
        ledger.follow_clock_back(limit, from, to);
    }

    fn peek(&mut self, now: Timestamp, cost: u64) -> Decision {
        match self.mode {
            Switch::Bypass => Decision::UNLIMITED,
            Switch::Enforce if self.holds.is_empty() => self.ledger_at(now).peek(now, cost),
            // A peek at a later time must not change what is outstanding until then.
            Switch::Enforce => {
                self.follow_back(now);
                let (limit, ledger) = self.book.parts_mut();
                self.holds
                    .ledger_at(ledger, limit, now)
                    .peek(limit, now, cost)
            }
        }
    }
}

impl<A: Arithmetic> LockedCell for Mutex<LockedLimit<A>>
where
    LockedLimit<A>: Send,
{
    fn allow(&self, now: Timestamp, cost: u64) -> bool {
        let mut slot = lock(self);
        slot.mode == Switch::Bypass || slot.ledger_for_charge(now).allow(now, cost)
    }

    fn check(&self, now: Timestamp, cost: u64) -> Decision {
        let mut slot = lock(self);
        match slot.mode {
            Switch::Bypass => Decision::UNLIMITED,
            Switch::Enforce if cost == 0 => slot.peek(now, 0),
            Switch::Enforce => slot.ledger_for_charge(now).decide(now, cost),
        }
    }

    fn peek(&self, now: Timestamp, cost: u64, _out: Outstanding) -> Decision {
        lock(self).peek(now, cost)
    }

    fn hold(
        &self,
        now: Timestamp,
        cost: u64,
        until: Timestamp,
    ) -> Result<ChargeTicket, BookingError> {
        let mut slot = lock(self);
        if slot.mode == Switch::Bypass || cost == 0 {
            return Ok(ChargeTicket::Free(now));
        }
        let booked = slot
            .ledger_for_charge(now)
            .reserve(now, cost, Duration::ZERO)?;
        Ok(ChargeTicket::Held {
            id: slot.holds.open(booked, cost, until),
            is_shared: false,
        })
    }

    fn settle(&self, now: Timestamp, id: HoldId, spent: u64) {
        let slot = &mut *lock(self);
        slot.ledger_at(now);
        let (limit, ledger) = slot.book.parts_mut();
        slot.holds.settle(ledger, limit, now, id, spent);
    }

    fn reserve(
        &self,
        now: Timestamp,
        cost: u64,
        patience: Duration,
        _out: Outstanding,
    ) -> Result<ChargeTicket, BookingError> {
        let slot = &mut *lock(self);
        if slot.mode == Switch::Bypass {
            return Ok(ChargeTicket::Free(now));
        }
        slot.ledger_for_charge(now);
        let (limit, ledger) = slot.book.parts_mut();
        let booked =
            ledger.reserve_with_outstanding(limit, slot.holds.held_tokens(), now, cost, patience);
        booked.map(ChargeTicket::Booked)
    }

    fn cancel(&self, now: Timestamp, ticket: &ChargeTicket, undo: CancelScope) -> bool {
        let ChargeTicket::Booked(booked) = ticket else {
            return matches!(ticket, ChargeTicket::Free(_));
        };
        let mut slot = lock(self);
        let (limit, ledger) = slot.ledger_at(now).parts_mut();
        undo.cancel_booking(ledger, limit, now, booked)
    }

    fn drain_time(&self, tokens: u128) -> Duration {
        let slot = lock(self);
        match slot.mode {
            Switch::Bypass => Duration::ZERO,
            Switch::Enforce => drain_time(slot.algorithm, slot.book.limit().rate(), tokens),
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
            // Booked tokens aren't available, although the state of a window doesn't show it.
            return slot.peek(now, 0).remaining as f64;
        }
        let book = slot.ledger_at(now);
        book.limit().tokens(book.state(), now)
    }

    fn rate(&self) -> Rate {
        lock(self).book.limit().rate()
    }

    fn switch(&self) -> Switch {
        lock(self).mode
    }

    fn change_rate(&self, at: Timestamp, change: &dyn Fn(Rate) -> Rate) -> Result<(), LimitError> {
        let mut slot = lock(self);
        let old = slot.book.limit();
        let limit = old.at_rate(change(old.rate()))?;
        // At the latest time, if the clock is a little behind that: the step isn't spent tokens.
        slot.ledger_for_charge(at);
        let latest = slot.latest.at().max(at);
        slot.book.set_limit(latest, limit);
        slot.latest.extend_reach(&limit);
        Ok(())
    }

    fn set_switch(&self, _now: Timestamp, mode: Switch) {
        lock(self).mode = mode;
    }
}

/// How long this many tokens take at least, from the time at which the first of them passes.
pub(crate) fn drain_time(algorithm: Algorithm, rate: Rate, tokens: u128) -> Duration {
    let period = rate.period().map_or(0, |period| period.as_nanos());
    let limit = u128::from(rate.burst_size().max(1));
    let nanos = match algorithm {
        Algorithm::Gcra | Algorithm::TokenBucket | Algorithm::LeakyBucket => {
            let count = u128::from(rate.count().max(1));
            tokens.saturating_mul(period).div_ceil(count)
        }
        Algorithm::SlidingLog => (tokens / limit).saturating_mul(period),
        // The first token may pass at the end of its window.
        Algorithm::FixedWindow(_) => {
            let windows = (tokens / limit).saturating_sub(1);
            windows.saturating_mul(period)
        }
        // A sliding counter may admit up to two limits in one window.
        Algorithm::SlidingCounter => {
            let windows = (tokens / (2 * limit)).saturating_sub(1);
            windows.saturating_mul(period)
        }
    };
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic can't happen between two writes of one state, so a poisoned lock holds a good one.
    ignore_poison(mutex.lock())
}
