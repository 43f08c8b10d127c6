//! The interface of a limit to reservations and waits: a limiter, or one key of a keyed limiter.

use std::fmt;

/// The limit of a [`Reservation`](crate::Reservation) or a wait: `&Limiter`, a key of a `&KeyedLimiter`, or one of
/// those in an `Arc`, for use in a task.
///
/// The trait is sealed: you can name it in bounds, but not implement it.
pub trait LimitHandle: Clone + fmt::Debug + sealed::LimitPointer {}

impl<H: Clone + fmt::Debug + sealed::LimitPointer> LimitHandle for H {}

pub(crate) mod sealed {
    use std::time::Duration;

    use tollgate_core::{Decision, Outcome, Timestamp};

    use crate::RateDenied;
    use crate::cell::{CancelScope, ChargeTicket};
    use crate::sync::{Ordering, fence};
    use crate::wait_queue::fifo_queue::{FifoQueue, JoinOutcome};
    use crate::wait_queue::queue_limit::{QueueLimit, QueueRequest};
    use crate::wait_queue::waiter_count::WaiterCount;
    use crate::wait_queue::{QueuePointer, QueueState, WaitQueue};

    /// A limit, or a shared pointer to one.
    pub trait LimitPointer {
        type Limit<'a>: QueuedLimit
        where
            Self: 'a;

        fn limit(&self) -> Self::Limit<'_>;

        /// Sleeps by the limit's clock. Implementors avoid a lookup of the limit where that is costly.
        fn park_until_woken(&self, at: Timestamp) {
            self.limit().clock().park_until_woken(at);
        }
    }

    impl<H: LimitPointer> QueuePointer for H {
        type Post<'a>
            = H::Limit<'a>
        where
            Self: 'a;

        fn post(&self) -> H::Limit<'_> {
            self.limit()
        }

        fn nap_until(&self, at: Timestamp) {
            LimitPointer::park_until_woken(self, at);
        }
    }

    /// A limit with its queue: new requests are decided after the waiters.
    pub trait QueuedLimit:
        QueueLimit + WaitQueue<Waits = FifoQueue<<Self as QueueLimit>::Terms>>
    {
        /// The terms (such as the rate) of this caller's charges.
        fn charge_terms(&self) -> Self::Terms;

        fn waiting(&self) -> &WaiterCount;

        /// Visits the queue if a waiter may be in it.
        fn visit_if_any<T>(
            &self,
            change: impl FnOnce(&mut QueueState<FifoQueue<Self::Terms>>) -> T,
        ) -> Option<T>;

        fn now(&self) -> Timestamp {
            self.clock().now()
        }

        /// Keeps outstanding tokens from draining until now, if the limit doesn't do that itself.
        fn keep_outstanding(&self, waits: &mut FifoQueue<Self::Terms>, now: Timestamp) {
            let _ = (waits, now);
        }

        /// The decision for a request that comes now, if others wait.
        #[cold]
        #[inline(never)]
        fn decision_behind_waiters(&self, now: Timestamp, cost: u64) -> Option<Decision> {
            // A peek at a later time must not let waiters pass before the clock shows that time.
            let by = match cost {
                0 => now.min(self.now()),
                _ => now,
            };
            self.visit_if_any(|state| {
                state.waits.advance(self, by);
                self.keep_outstanding(&mut state.waits, by);
                state.waits.decision_behind_waiters(&QueueRequest::new(
                    self,
                    &self.charge_terms(),
                    now,
                    cost,
                ))
            })?
        }

        /// Decides without charging, without any effect, and without regard to the queue.
        fn peek_unqueued(&self, now: Timestamp, cost: u64) -> Decision;

        /// Decides without charging.
        fn peek_in_order(&self, now: Timestamp, cost: u64) -> Decision {
            let behind = self.decision_behind_waiters(now, cost);
            behind.unwrap_or_else(|| self.peek_unqueued(now, cost))
        }

        /// Reserves if the wait is within `patience`. The waiters in the queue are charged first.
        fn book_in_order(
            &self,
            now: Timestamp,
            cost: u64,
            patience: Duration,
        ) -> Result<ChargeTicket, RateDenied> {
            let terms = self.charge_terms();
            let request = QueueRequest::new(self, &terms, now, cost);
            let behind = self.visit_if_any(|state| {
                state.waits.advance(self, now);
                self.keep_outstanding(&mut state.waits, now);
                let told = match state.waits.decision_behind_waiters(&request) {
                    Some(told) => told,
                    // Behind a reservation that is in the queue, a further reservation goes into the queue, too.
                    None if !state.waits.has_no_claims() && !patience.is_zero() => {
                        self.peek_unqueued(now, cost)
                    }
                    None => return None,
                };
                if told.outcome == Outcome::Never {
                    return Some(Err(RateDenied::ExceedsBurst(told)));
                }
                if told.wait_or_max() > patience.min(self.max_booking_delay()) {
                    return Some(Err(RateDenied::DeadlineExceeded(told)));
                }
                if cost == 0 {
                    return Some(Ok(ChargeTicket::Free(now + told.wait_or_max())));
                }
                if patience.is_zero() {
                    return None;
                }
                Some(state.waits.reserve(&request))
            });
            behind
                .flatten()
                .unwrap_or_else(|| self.book(&terms, now, cost, patience))
        }

        /// Reserves, however long the wait, up to the longest that may be booked.
        fn reserve_in_order(&self, now: Timestamp, cost: u64) -> Result<ChargeTicket, RateDenied> {
            let booked = self.book_in_order(now, cost, Duration::MAX);
            // No deadline was given, so it can't be missed.
            booked.map_err(|refused| match refused {
                RateDenied::DeadlineExceeded(decision) if self.is_blocked(now) => {
                    RateDenied::Blocked(decision)
                }
                // The distance isn't the reason: the table is full, so a new key can't be stored.
                RateDenied::DeadlineExceeded(decision)
                    if decision.wait_or_max() <= self.max_booking_delay() =>
                {
                    RateDenied::QueueFull(decision)
                }
                RateDenied::DeadlineExceeded(decision) => RateDenied::TooFarAhead(decision),
                refused => refused,
            })
        }

        /// Refunds the part that no later charge relies on. That may let a waiter pass.
        fn cancel_in_order(&self, now: Timestamp, ticket: &ChargeTicket) {
            if let ChargeTicket::InLine { number, at } = *ticket {
                self.visit_if_any(|state| {
                    state.waits.advance(self, now);
                    state.waits.cancel(self, now, number, at);
                });
                return;
            }
            self.change_and_notify(now, || {
                self.cancel(&self.charge_terms(), now, ticket, CancelScope::Unused);
            });
        }

        /// Refunds tokens without a ticket. Earlier bookings can't be cancelled after that, so the bookings of waiters
        /// are cancelled first, and the first waiter gets the tokens.
        fn refund_in_order(&self, now: Timestamp, refund: impl Fn()) {
            self.visit_if_any(|state| {
                state.waits.advance(self, now);
                state.waits.cancel_all_bookings(self, now);
            });
            self.change_and_notify(now, refund);
        }

        /// Records that a reservation will no longer be cancelled.
        fn end_reservation(&self, number: u64, at: Timestamp) {
            self.visit_if_any(|state| state.waits.end_reservation(number, at));
        }

        /// Forgets charges and bookings, so that waiters pass by the fresh state.
        fn reset_in_order(&self, now: Timestamp, reset: impl Fn()) {
            self.change_and_notify(now, reset);
            self.visit_if_any(|state| {
                state.waits.forget_bookings();
                state.waits.recheck_first(self);
            });
        }

        /// Whether a request that joins the queue now may pass by this time, thanks to bookings that are no longer
        /// needed.
        #[cold]
        fn may_pass_before(&self, now: Timestamp, cost: u64, deadline: Timestamp) -> bool {
            let visited = self.visit_if_any(|state| {
                state.waits.advance(self, now);
                let terms = self.charge_terms();
                let request = QueueRequest::new(self, &terms, now, cost);
                state.waits.may_pass_before(&request, deadline)
            });
            visited.unwrap_or(false)
        }

        /// Makes a change that may let waiters pass earlier.
        fn change_and_notify(&self, now: Timestamp, change: impl Fn()) {
            let visited = self.visit_if_any(|state| {
                // Waiters that are due by now pass under the state before the change.
                state.waits.advance(self, now);
                change();
                self.keep_outstanding(&mut state.waits, now);
                state.waits.recheck_first(self);
            });
            if visited.is_none() {
                change();
                // A waiter sets the mark, then fences, then reads the state. So either it sees this change, or this
                // thread sees its mark.
                fence(Ordering::SeqCst);
                self.visit_if_any(|state| state.waits.recheck_first(self));
            }
        }

        /// Passes, or joins the queue.
        fn join_queue(
            &self,
            now: Timestamp,
            cost: u64,
            deadline: Option<Timestamp>,
        ) -> Result<JoinOutcome, RateDenied> {
            self.visit(None, |state| {
                let terms = self.charge_terms();
                let request = QueueRequest::new(self, &terms, now, cost);
                state.waits.join(&request, deadline)
            })
        }
    }
}
