//! What reservations and waits need of the limit they came from: a limiter, or one key of a keyed one.

use std::fmt;

/// Where a [`Reservation`](crate::Reservation) or a wait was made: `&Limiter`, a key of a `&KeyedLimiter`, or
/// one of those in an `Arc`, to live in a task.
///
/// The trait is sealed: it is there to be named, not to be implemented.
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

        /// Sleeps by the limit's clock, without a look at the limit itself where that costs something.
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

    /// A limit with its line: requests that come here are decided after those that wait.
    pub trait QueuedLimit:
        QueueLimit + WaitQueue<Waits = FifoQueue<<Self as QueueLimit>::Terms>>
    {
        /// The rate that this caller asks at.
        fn charge_terms(&self) -> Self::Terms;

        fn waiting(&self) -> &WaiterCount;

        /// Visits the line if a waiter may be in it.
        fn visit_if_any<T>(
            &self,
            change: impl FnOnce(&mut QueueState<FifoQueue<Self::Terms>>) -> T,
        ) -> Option<T>;

        fn now(&self) -> Timestamp {
            self.clock().now()
        }

        /// Keeps what is out from draining until now, where the limit doesn't do that by itself.
        fn keep_outstanding(&self, waits: &mut FifoQueue<Self::Terms>, now: Timestamp) {
            let _ = (waits, now);
        }

        /// What a request that comes now is told, if others wait.
        #[cold]
        #[inline(never)]
        fn decision_behind_waiters(&self, now: Timestamp, cost: u64) -> Option<Decision> {
            // A look at a later time must not let waiters pass before the clock shows it.
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

        /// Decides without charging, and without any effect, past the line.
        fn peek_unqueued(&self, now: Timestamp, cost: u64) -> Decision;

        /// Decides without charging.
        fn peek_in_order(&self, now: Timestamp, cost: u64) -> Decision {
            let behind = self.decision_behind_waiters(now, cost);
            behind.unwrap_or_else(|| self.peek_unqueued(now, cost))
        }

        /// Reserves if the wait is within `patience`. Those who wait are charged first.
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
                    // What is booked behind a reservation that the line keeps, the line keeps too.
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
                // It isn't for how far ahead it would be: there is no room for the state of a new key.
                RateDenied::DeadlineExceeded(decision)
                    if decision.wait_or_max() <= self.max_booking_delay() =>
                {
                    RateDenied::QueueFull(decision)
                }
                RateDenied::DeadlineExceeded(decision) => RateDenied::TooFarAhead(decision),
                refused => refused,
            })
        }

        /// Gives back what nobody else relies on; that may let a waiter pass.
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

        /// Gives back tokens that no ticket is for. What was booked before can't be taken back after that, so it is taken back
        /// first: nobody who waits is booked any more, and whoever is first gets them.
        fn refund_in_order(&self, now: Timestamp, refund: impl Fn()) {
            self.visit_if_any(|state| {
                state.waits.advance(self, now);
                state.waits.cancel_all_bookings(self, now);
            });
            self.change_and_notify(now, refund);
        }

        /// A reservation isn't cancelled any more.
        fn end_reservation(&self, number: u64, at: Timestamp) {
            self.visit_if_any(|state| state.waits.end_reservation(number, at));
        }

        /// Forgets what was spent and booked, so that waiters pass by what there is then.
        fn reset_in_order(&self, now: Timestamp, reset: impl Fn()) {
            self.change_and_notify(now, reset);
            self.visit_if_any(|state| {
                state.waits.forget_bookings();
                state.waits.recheck_first(self);
            });
        }

        /// Whether one that comes now to wait might pass by this time, by what was booked and nobody needs any more.
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

        /// Makes a change that may let waiters pass sooner.
        fn change_and_notify(&self, now: Timestamp, change: impl Fn()) {
            let visited = self.visit_if_any(|state| {
                // Waiters whose turn has come by now pass as things stood before.
                state.waits.advance(self, now);
                change();
                self.keep_outstanding(&mut state.waits, now);
                state.waits.recheck_first(self);
            });
            if visited.is_none() {
                change();
                // A waiter sets the mark, then a fence, then looks: so either it sees the change, or its mark
                // is seen here.
                fence(Ordering::SeqCst);
                self.visit_if_any(|state| state.waits.recheck_first(self));
            }
        }

        /// Passes, or takes a place in line.
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
