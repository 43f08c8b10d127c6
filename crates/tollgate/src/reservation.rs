//! A slot that was taken ahead of its time: wait for it, or give it back.

use std::time::Duration;
#[cfg(not(any(loom, shuttle)))]
use std::{future::poll_fn, pin::pin};

use tollgate_core::Timestamp;

use crate::cell::Ticket;
#[cfg(not(any(loom, shuttle)))]
use crate::clock::alarm::Alarm;
use crate::home::Home;
use crate::home::sealed::Home as _;
use crate::wait_queue::Post;
use crate::wait_queue::waiting::Seat;

/// Tokens taken now, to be used once [`delay`](Self::delay) has passed.
///
/// Cancelling gives back, once, as much as no later reservation relies on. Dropping the handle cancels it only while
/// its time is still ahead: a slot whose time has come counts as used, so dropping a handle after looking at its delay
/// is no way around the limit.
///
/// It is made behind waiters: their turns are booked first. Cancelling it takes those bookings back, up to the last
/// reservation that is still wanted; if there is one behind it, the first waiter that its tokens suffice for takes its
/// time, or else the next reservation. A reservation itself keeps its time: it doesn't move up when one before it is
/// cancelled, or when the rate is raised, as waiters do.
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
#[derive(Debug)]
#[must_use = "a reservation that is dropped before its time is given back"]
pub struct Reservation<H: Home> {
    home: H,
    /// Taken out once the slot was used or given back.
    ticket: Option<Ticket>,
    at: Timestamp,
}

impl<H: Home> Reservation<H> {
    pub(crate) fn new(home: H, ticket: Ticket) -> Self {
        Self {
            home,
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
        self.delay_from(self.home.limit().now())
    }

    /// How long from `now` until the slot may be used.
    pub fn delay_from(&self, now: Timestamp) -> Duration {
        self.at - now
    }

    /// Waits until the slot may be used; returns how long that took.
    ///
    /// Dropping the future before then gives the slot back, as far as nothing was booked behind it.
    #[cfg(not(any(loom, shuttle)))]
    pub async fn wait(mut self) -> Duration {
        let (at, started) = (self.at, self.home.limit().now());
        if started < at {
            let limit = self.home.limit();
            let _waiting = Seat::enter_anyway(limit.waiting());
            let mut alarm = pin!(Alarm::new());
            poll_fn(|context| alarm.as_mut().poll(limit.clock(), at, context)).await;
        }
        self.mark_used();
        self.home.limit().now() - started
    }

    /// Blocks the thread until the slot may be used; returns how long that took.
    pub fn wait_blocking(mut self) -> Duration {
        let started = self.home.limit().now();
        if started < self.at {
            let limit = self.home.limit();
            let _waiting = Seat::enter_anyway(limit.waiting());
            limit.clock().park_until(self.at);
        }
        self.mark_used();
        self.home.limit().now() - started
    }

    /// Keeps the slot, whatever becomes of the handle: from now on nothing is given back.
    ///
    /// For whoever waits by other means than [`wait`](Self::wait), as by a queue of their own.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollgate::{Limiter, Rate, clock::Manual};
    ///
    /// let limiter = Limiter::with_clock(Rate::per_second(10).burst(1), Manual::new());
    /// assert!(limiter.allow());
    /// let slot = limiter.reserve(1)?;
    /// let act_at = slot.act_at();
    /// slot.keep(); // to be used at that time; dropped, it would have been given back
    /// assert_eq!(limiter.reserve(1)?.act_at() - act_at, Duration::from_millis(100));
    /// # Ok::<(), tollgate::Refused>(())
    /// ```
    pub fn keep(mut self) {
        self.mark_used();
    }

    /// Gives back as much as no later reservation relies on.
    pub fn cancel(self) {
        let now = self.home.limit().now();
        self.cancel_at(now);
    }

    /// Gives back, as of `now`, as much as no later reservation relies on.
    pub fn cancel_at(mut self, now: Timestamp) {
        self.give_back(now);
    }

    /// The slot's time has come and it is used: from now on nothing is given back.
    pub(crate) fn mark_used(&mut self) {
        if let Some(Ticket::InLine { number, at }) = self.ticket.take() {
            self.home.limit().end_in_turn(number, at);
        }
    }

    fn give_back(&mut self, now: Timestamp) {
        if let Some(ticket) = self.ticket.take() {
            self.home.limit().cancel_in_order(now, &ticket);
        }
    }
}

impl<H: Home> Drop for Reservation<H> {
    fn drop(&mut self) {
        if self.ticket.is_some() {
            let now = self.home.limit().now();
            if now < self.at {
                self.give_back(now);
            } else {
                self.mark_used();
            }
        }
    }
}
