//! What a line needs of the limit that it is for.

use std::fmt;
use std::time::Duration;

use tollgate_core::{Decision, Timestamp};

use crate::RateDenied;
use crate::cell::{CancelScope, ChargeTicket};

/// What waiters wait for: a limit, asked without regard to its line.
pub trait QueueLimit {
    /// The rate that came with a call.
    type Terms: Clone + fmt::Debug;

    /// Decides without charging.
    fn peek(&self, terms: &Self::Terms, now: Timestamp, cost: u64) -> Decision;

    /// Charges a cost that passes within this time.
    fn book(
        &self,
        terms: &Self::Terms,
        now: Timestamp,
        cost: u64,
        patience: Duration,
    ) -> Result<ChargeTicket, RateDenied>;

    /// How far ahead something can be booked.
    fn max_booking_delay(&self) -> Duration {
        Duration::MAX
    }

    /// Gives back what nobody else relies on, or all of a charge as if it had never been made. False, and in the latter
    /// case nothing changes, if that isn't possible any more: something was charged, given back or changed since.
    fn cancel(
        &self,
        terms: &Self::Terms,
        now: Timestamp,
        ticket: &ChargeTicket,
        undo: CancelScope,
    ) -> bool;

    /// Whether a waiter on these terms can be charged ahead of its turn.
    fn can_book_ahead(&self, _terms: &Self::Terms) -> bool {
        true
    }

    /// What the clock shows.
    fn clock_time(&self) -> Timestamp;

    /// Whether everything is refused for now, waiters included.
    fn is_blocked(&self, _now: Timestamp) -> bool {
        false
    }

    /// How much later a waiter passes at the earliest, with this much uncharged cost before it.
    fn drain_time(&self, terms: &Self::Terms, tokens: u128) -> Duration;
}

/// A limit, whatever it is: who waits in line has time for a call through a pointer.
pub(crate) type DynQueueLimit<'a, T> = dyn QueueLimit<Terms = T> + 'a;

/// What is asked of a limit at a time, on which terms.
pub(crate) struct QueueRequest<'a, T> {
    pub(crate) meter: &'a DynQueueLimit<'a, T>,
    pub(crate) terms: &'a T,
    pub(crate) now: Timestamp,
    pub(crate) cost: u64,
}

impl<'a, T: Clone + fmt::Debug> QueueRequest<'a, T> {
    pub(crate) fn new(
        meter: &'a DynQueueLimit<'a, T>,
        terms: &'a T,
        now: Timestamp,
        cost: u64,
    ) -> Self {
        Self {
            meter,
            terms,
            now,
            cost,
        }
    }

    /// Decides without charging, past the line.
    pub(super) fn peek(&self) -> Decision {
        self.meter.peek(self.terms, self.now, self.cost)
    }

    /// What is left, past the line.
    pub(super) fn peek_remaining(&self) -> Decision {
        self.meter.peek(self.terms, self.now, 0)
    }

    /// Charges it if it passes within this time.
    pub(super) fn book(&self, patience: Duration) -> Result<ChargeTicket, RateDenied> {
        (self.meter).book(self.terms, self.now, self.cost, patience)
    }

    /// Charges it as of when its turn came, or now if another caller came between.
    pub(super) fn charge(&self, due: Timestamp) -> Result<(ChargeTicket, Timestamp), RateDenied> {
        match (Self { now: due, ..*self }).book(Duration::ZERO) {
            Ok(ticket) => Ok((ticket, due)),
            Err(RateDenied::DeadlineExceeded(_)) if due < self.now => {
                Ok((self.book(Duration::ZERO)?, self.now))
            }
            Err(refused) => Err(refused),
        }
    }
}
