//! What a line needs of the limit that it is for.

use std::fmt;
use std::time::Duration;

use tollgate_core::{Decision, Timestamp};

use crate::Refused;
use crate::cell::Ticket;

/// What waiters wait for: a limit, asked without regard to its line.
pub trait Meter {
    /// The rate that came with a call.
    type Terms: Clone + fmt::Debug;

    /// Decides without charging.
    fn look(&self, terms: &Self::Terms, now: Timestamp, cost: u64) -> Decision;

    /// Charges a cost that passes within this time.
    fn book(
        &self,
        terms: &Self::Terms,
        now: Timestamp,
        cost: u64,
        patience: Duration,
    ) -> Result<Ticket, Refused>;

    /// How far ahead something can be booked.
    fn longest_booking(&self) -> Duration {
        Duration::MAX
    }

    /// Gives back what nobody else relies on.
    fn give_back(&self, terms: &Self::Terms, now: Timestamp, ticket: &Ticket);

    /// Takes back a charge as if it had never been made. False, and nothing changes, if that isn't possible any more:
    /// something was charged, given back or changed since.
    fn unbook(&self, terms: &Self::Terms, now: Timestamp, ticket: &Ticket) -> bool;

    /// Whether a waiter on these terms can be charged ahead of its turn.
    fn books_ahead(&self, _terms: &Self::Terms) -> bool {
        true
    }

    /// What the clock shows.
    fn shows(&self) -> Timestamp;

    /// Whether everything is refused for now, waiters included.
    fn is_blocked(&self, _now: Timestamp) -> bool {
        false
    }

    /// How much later a waiter passes at the earliest, with this much uncharged cost before it.
    fn takes(&self, terms: &Self::Terms, tokens: u128) -> Duration;
}

/// A limit, whatever it is: who waits in line has time for a call through a pointer.
pub(super) type AnyMeter<'a, T> = dyn Meter<Terms = T> + 'a;

/// Charges a cost as of when its turn came, or now if another caller came between.
pub(super) fn charge<T: Clone + fmt::Debug>(
    meter: &AnyMeter<'_, T>,
    terms: &T,
    due: Timestamp,
    now: Timestamp,
    cost: u64,
) -> Result<(Ticket, Timestamp), Refused> {
    match meter.book(terms, due, cost, Duration::ZERO) {
        Ok(ticket) => Ok((ticket, due)),
        Err(Refused::TooLate(_)) if due < now => {
            let ticket = meter.book(terms, now, cost, Duration::ZERO)?;
            Ok((ticket, now))
        }
        Err(refused) => Err(refused),
    }
}
