//! A slot that was taken ahead of its time: wait for it, or give it back.

use std::fmt;
use std::time::Duration;

use tollgate_core::Timestamp;

use crate::Limiter;
use crate::cell::Ticket;
use crate::clock::{Clock, Monotonic};

/// Tokens taken now, to be used once [`delay`](Self::delay) has passed.
///
/// Cancelling gives back what nothing was built on, once. Dropping the handle cancels it only
/// while its time is still ahead: a slot whose time has come counts as used, so a handle that is
/// dropped after a look at its delay is no way around the limit.
///
/// ```
/// use std::time::Duration;
/// use tollgate::{Limiter, Rate, clock::Manual};
///
/// let clock = Manual::new();
/// let limiter = Limiter::with_clock(Rate::per_second(10).burst(1), clock.clone());
/// let first = limiter.reserve(1)?;
/// let second = limiter.reserve(1)?;
/// assert_eq!(first.delay(), Duration::ZERO);
/// assert_eq!(second.delay(), Duration::from_millis(100));
/// second.cancel(); // its time lies ahead and nothing was built on it: all of it comes back
/// assert_eq!(limiter.reserve(1)?.delay(), Duration::from_millis(100));
/// # Ok::<(), tollgate::Refused>(())
/// ```
#[must_use = "a reservation that is dropped before its time is given back"]
pub struct Reservation<'a, C: Clock = Monotonic> {
    limiter: &'a Limiter<C>,
    /// Taken out once the slot was used or given back.
    ticket: Option<Ticket>,
    at: Timestamp,
}

impl<'a, C: Clock> Reservation<'a, C> {
    pub(crate) fn new(limiter: &'a Limiter<C>, ticket: Ticket) -> Self {
        Self {
            limiter,
            at: ticket.at(),
            ticket: Some(ticket),
        }
    }

    /// When the slot may be used, on the limiter's clock.
    pub fn act_at(&self) -> Timestamp {
        self.at
    }

    /// How long until the slot may be used: zero once its time has come.
    pub fn delay(&self) -> Duration {
        self.delay_from(self.limiter.clock().now())
    }

    /// How long from `now` until the slot may be used.
    pub fn delay_from(&self, now: Timestamp) -> Duration {
        self.at - now
    }

    /// Waits until the slot may be used; returns how long that took.
    ///
    /// Dropping the future before then gives the slot back.
    #[cfg(feature = "tokio")]
    pub async fn wait(mut self) -> Duration {
        let started = self.limiter.clock().now();
        let delay = self.delay_from(started);
        if !delay.is_zero() {
            let _waiting = self.limiter.waiting().enter_unbounded();
            tokio::time::sleep(delay).await;
        }
        self.mark_used();
        self.limiter.clock().now() - started
    }

    /// Blocks the thread until the slot may be used; returns how long that took.
    pub fn wait_blocking(mut self) -> Duration {
        let clock = self.limiter.clock();
        let started = clock.now();
        if started < self.at {
            let _waiting = self.limiter.waiting().enter_unbounded();
            clock.park_until(self.at);
        }
        self.mark_used();
        clock.now() - started
    }

    /// Gives back what nothing was built on.
    pub fn cancel(self) {
        let now = self.limiter.clock().now();
        self.cancel_at(now);
    }

    /// Gives back, as of `now`, what nothing was built on.
    pub fn cancel_at(mut self, now: Timestamp) {
        self.give_back(now);
    }

    /// The slot's time has come and it is used: from now on nothing is given back.
    pub(crate) fn mark_used(&mut self) {
        self.ticket = None;
    }

    fn give_back(&mut self, now: Timestamp) {
        if let Some(ticket) = self.ticket.take() {
            self.limiter.give_back(now, &ticket);
        }
    }
}

impl<C: Clock> Drop for Reservation<'_, C> {
    fn drop(&mut self) {
        if self.ticket.is_some() {
            let now = self.limiter.clock().now();
            if now < self.at {
                self.give_back(now);
            }
        }
    }
}

impl<C: Clock> fmt::Debug for Reservation<'_, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reservation")
            .field("act_at", &self.at)
            .field("open", &self.ticket.is_some())
            .finish_non_exhaustive()
    }
}
