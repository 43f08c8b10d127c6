//! Tokens that were taken ahead of time: wait for them, or cancel them.

use std::time::Duration;
#[cfg(not(any(loom, shuttle)))]
use std::{future::poll_fn, pin::pin};

use tollgate_core::Timestamp;

use crate::cell::ChargeTicket;
#[cfg(not(any(loom, shuttle)))]
use crate::clock::alarm::Alarm;
use crate::queued_limit::LimitHandle;
use crate::queued_limit::sealed::QueuedLimit as _;
use crate::wait_queue::WaitQueue;
use crate::wait_queue::waiter_count::WaiterGuard;

/// Tokens taken now, to be used once [`delay`](Self::delay) has passed.
///
/// Cancelling refunds, once, the part that no later reservation relies on. Dropping the handle cancels the reservation
/// only before its time. Once its time has come, the reservation counts as used, so you can't evade the limit by
/// dropping handles after you read their delay.
///
/// A reservation is made behind waiters: the waiters are booked first. Cancelling it cancels those bookings too, up to
/// the last reservation that is still in use. If there is a reservation behind it, its time goes to the first waiter
/// that its tokens suffice for, or else to the next reservation. A reservation itself keeps its time: unlike waiters,
/// it doesn't move up when an earlier reservation is cancelled, or when the rate is raised.
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
/// # Ok::<(), tollgate::RateDenied>(())
/// ```
#[derive(Debug)]
#[must_use = "a reservation that is dropped before its time is given back"]
pub struct Reservation<H: LimitHandle> {
    limit_handle: H,
    /// `None` once the reservation was used or cancelled.
    ticket: Option<ChargeTicket>,
    ready_at: Timestamp,
}

impl<H: LimitHandle> Reservation<H> {
    pub(crate) fn new(home: H, ticket: ChargeTicket) -> Self {
        Self {
            limit_handle: home,
            ready_at: ticket.at(),
            ticket: Some(ticket),
        }
    }

    /// The time at which the tokens may be used, on the limiter's clock.
    pub fn ready_at(&self) -> Timestamp {
        self.ready_at
    }

    /// How long until the tokens may be used; zero once their time has come.
    pub fn delay(&self) -> Duration {
        self.delay_from(self.limit_handle.limit().now())
    }

    /// How long from `now` until the tokens may be used.
    pub fn delay_from(&self, now: Timestamp) -> Duration {
        self.ready_at - now
    }

    /// Waits until the tokens may be used; returns how long that took.
    ///
    /// Dropping the future earlier cancels the reservation, as far as no later one relies on it.
    #[cfg(not(any(loom, shuttle)))]
    pub async fn wait(mut self) -> Duration {
        let (at, started) = (self.ready_at, self.limit_handle.limit().now());
        if started < at {
            let limit = self.limit_handle.limit();
            let _waiting = WaiterGuard::enter_unbounded(limit.waiting());
            let mut alarm = pin!(Alarm::new());
            poll_fn(|context| alarm.as_mut().poll(limit.clock(), at, context)).await;
        }
        self.finish();
        self.limit_handle.limit().now() - started
    }

    /// Blocks the thread until the tokens may be used; returns how long that took.
    pub fn wait_blocking(mut self) -> Duration {
        let started = self.limit_handle.limit().now();
        if started < self.ready_at {
            let limit = self.limit_handle.limit();
            let _waiting = WaiterGuard::enter_unbounded(limit.waiting());
            limit.clock().sleep_until_time(self.ready_at);
        }
        self.finish();
        self.limit_handle.limit().now() - started
    }

    /// Keeps the reservation when the handle is dropped: from now on nothing is refunded.
    ///
    /// For callers that wait by other means than [`wait`](Self::wait), such as a queue of their own.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollgate::{Limiter, Rate, clock::Manual};
    ///
    /// let limiter = Limiter::with_clock(Rate::per_second(10).burst(1), Manual::new());
    /// assert!(limiter.allow());
    /// let reservation = limiter.reserve(1)?;
    /// let act_at = reservation.ready_at();
    /// reservation.keep(); // to be used at that time; a dropped reservation is cancelled
    /// assert_eq!(limiter.reserve(1)?.ready_at() - act_at, Duration::from_millis(100));
    /// # Ok::<(), tollgate::RateDenied>(())
    /// ```
    pub fn keep(mut self) {
        self.finish();
    }

    /// Refunds the part that no later reservation relies on.
    pub fn cancel(self) {
        let now = self.limit_handle.limit().now();
        self.cancel_at(now);
    }

    /// Refunds, as of `now`, the part that no later reservation relies on.
    pub fn cancel_at(mut self, now: Timestamp) {
        self.cancel_charge(now);
    }

    /// The time has come and the tokens are used: from now on nothing is refunded.
    pub(crate) fn finish(&mut self) {
        if let Some(ChargeTicket::InLine { number, at }) = self.ticket.take() {
            self.limit_handle.limit().end_reservation(number, at);
        }
    }

    fn cancel_charge(&mut self, now: Timestamp) {
        if let Some(ticket) = self.ticket.take() {
            self.limit_handle.limit().cancel_in_order(now, &ticket);
        }
    }
}

impl<H: LimitHandle> Drop for Reservation<H> {
    fn drop(&mut self) {
        if self.ticket.is_some() {
            let now = self.limit_handle.limit().now();
            if now < self.ready_at {
                self.cancel_charge(now);
            } else {
                self.finish();
            }
        }
    }
}
