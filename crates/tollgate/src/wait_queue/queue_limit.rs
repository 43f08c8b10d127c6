//! What a queue needs of its limit.

use std::fmt;
use std::time::Duration;

use tollgate_core::{Decision, Timestamp};

use crate::RateDenied;
use crate::cell::{CancelScope, ChargeTicket};

/// A limit with waiters. Its methods ignore the queue.
pub trait QueueLimit {
    /// The rate of a call.
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

    /// How far in advance a charge can be booked.
    fn max_booking_delay(&self) -> Duration {
        Duration::MAX
    }

    /// Refunds the part of a charge that no later decision relies on, or all of it as if it had never
    /// been made. Returns false if that isn't possible any more, because something was charged,
    /// refunded or changed since; then, if all of it was to be refunded, nothing changes.
    fn cancel(
        &self,
        terms: &Self::Terms,
        now: Timestamp,
        ticket: &ChargeTicket,
        undo: CancelScope,
    ) -> bool;

    /// Whether a waiter on these terms can be charged in advance.
    fn can_book_ahead(&self, _terms: &Self::Terms) -> bool {
        true
    }

    /// The current time.
    fn clock_time(&self) -> Timestamp;

    /// Whether everything is denied for now, waiters included.
    fn is_blocked(&self, _now: Timestamp) -> bool {
        false
    }

    /// The least delay of a waiter behind this much uncharged cost.
    fn drain_time(&self, terms: &Self::Terms, tokens: u128) -> Duration;
}

/// A limit of any kind. A queued request has time for a virtual call.
pub(crate) type DynQueueLimit<'a, T> = dyn QueueLimit<Terms = T> + 'a;

/// A request to a limit: the time, the cost and the terms.
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

    /// Decides without charging, ignoring the queue.
    pub(super) fn peek(&self) -> Decision {
        self.meter.peek(self.terms, self.now, self.cost)
    }

    /// The remaining tokens, ignoring the queue.
    pub(super) fn peek_remaining(&self) -> Decision {
        self.meter.peek(self.terms, self.now, 0)
    }

    /// Charges the cost if it passes within this time.
    pub(super) fn book(&self, patience: Duration) -> Result<ChargeTicket, RateDenied> {
        (self.meter).book(self.terms, self.now, self.cost, patience)
    }

    /// Charges the cost as of its due time, or as of now if another caller was charged in between.
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
