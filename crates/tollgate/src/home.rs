//! What reservations and waits need of whoever made them: a limiter, or one key of a keyed one.

use std::fmt;
use std::time::Duration;

use tollgate_core::{Decision, Timestamp};

use crate::Refused;
use crate::acquire::Waiting;
use crate::cell::Ticket;
use crate::clock::Clock;

/// Where a [`Reservation`](crate::Reservation) was made: `&Limiter`, or a key of a `&KeyedLimiter`.
///
/// The trait is sealed: it is there to be named, not to be implemented.
pub trait Home: Copy + fmt::Debug + sealed::Home {}

impl<H: Copy + fmt::Debug + sealed::Home> Home for H {}

pub(crate) mod sealed {
    use super::{Clock, Decision, Duration, Refused, Ticket, Timestamp, Waiting};

    pub trait Home {
        fn clock(&self) -> &dyn Clock;
        fn now(&self) -> Timestamp;
        fn waiting(&self) -> &Waiting;
        /// Reserves if the wait is within `patience`.
        fn book(&self, now: Timestamp, cost: u64, patience: Duration) -> Result<Ticket, Refused>;
        fn give_back(&self, now: Timestamp, ticket: &Ticket);
        /// Decides without charging.
        fn look(&self, now: Timestamp, cost: u64) -> Decision;
    }
}
