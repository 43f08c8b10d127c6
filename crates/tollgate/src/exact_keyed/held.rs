//! On which terms a waiter asks, and what it holds from the very turn on.
//!
//! Whoever passes is charged by whoever moves the line, which may be another thread, some time before it notices. What it gets
//! has to be out from then on: if it were charged first and held when it wakes, what drains between would be given back as well.

use std::sync::Arc;
use std::time::Duration;

use tollgate_core::Timestamp;

use crate::Tier;
use crate::cell::Ticket;
use crate::sync::{Mutex, PoisonError};

/// On which terms a key is asked, kept of each that waits.
#[derive(Clone, Debug, Default)]
pub struct Asks {
    /// None stands for the limiter's own rate, or what its function says of the key.
    pub(super) tier: Option<Tier>,
    /// Where to put what is held; none if it is charged.
    pub(super) held: Option<Arc<Held>>,
}

/// What one waiter holds since its turn came.
#[derive(Debug)]
pub(crate) struct Held {
    longest: Duration,
    /// Locked under the lock of a line, or under none, and nothing is locked under it.
    taken: Mutex<Option<(Ticket, Timestamp)>>,
}

impl Held {
    /// Nothing so far; what is taken may be out for so long.
    pub(crate) fn new(longest: Duration) -> Self {
        Self {
            longest,
            taken: Mutex::new(None),
        }
    }

    /// How long what is taken at this time may be out.
    pub(super) fn until(&self, now: Timestamp) -> Timestamp {
        now + self.longest
    }

    pub(super) fn put(&self, ticket: Ticket, until: Timestamp) {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        *taken = Some((ticket, until));
    }

    pub(crate) fn take(&self) -> Option<(Ticket, Timestamp)> {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        taken.take()
    }
}
