//! What reservations and waits need of the limit they came from: a limiter, or one key of a keyed one.

use std::fmt;

/// Where a [`Reservation`](crate::Reservation) or a wait was made: `&Limiter`, a key of a `&KeyedLimiter`, or
/// one of those in an `Arc`, to live in a task.
///
/// The trait is sealed: it is there to be named, not to be implemented.
pub trait Home: Clone + fmt::Debug + sealed::Lends {}

impl<H: Clone + fmt::Debug + sealed::Lends> Home for H {}

pub(crate) mod sealed {
    use std::time::Duration;

    use tollgate_core::{Decision, Outcome, Timestamp};

    use crate::Refused;
    use crate::cell::{Ticket, Undo};
    use crate::sync::{Ordering, fence};
    use crate::wait_queue::meter::{Meter, QueueRequest};
    use crate::wait_queue::single::{Entered, Single};
    use crate::wait_queue::waiting::Waiting;
    use crate::wait_queue::{Post, QueuePointer, State};

    /// A limit, or a shared pointer to one.
    pub trait Lends {
        type Limit<'a>: Home
        where
            Self: 'a;

        fn limit(&self) -> Self::Limit<'_>;

        /// Sleeps by the limit's clock, without a look at the limit itself where that costs something.
        fn nap_until(&self, at: Timestamp) {
            self.limit().clock().nap_until(at);
        }
    }

    impl<H: Lends> QueuePointer for H {
        type Post<'a>
            = H::Limit<'a>
        where
            Self: 'a;

        fn post(&self) -> H::Limit<'_> {
            self.limit()
        }

        fn nap_until(&self, at: Timestamp) {
            Lends::nap_until(self, at);
        }
    }

    /// A limit with its line: requests that come here are decided after those that wait.
    pub trait Home: Meter + Post<Waits = Single<<Self as Meter>::Terms>> {
        /// The rate that this caller asks at.
        fn terms(&self) -> Self::Terms;

        fn waiting(&self) -> &Waiting;

        /// Visits the line if a waiter may be in it.
        fn visit_if_any<T>(
            &self,
            change: impl FnOnce(&mut State<Single<Self::Terms>>) -> T,
        ) -> Option<T>;

        fn now(&self) -> Timestamp {
            self.clock().now()
        }

        /// Keeps what is out from draining until now, where the limit doesn't do that by itself.
        fn keep_out(&self, waits: &mut Single<Self::Terms>, now: Timestamp) {
            let _ = (waits, now);
        }

        /// What a request that comes now is told, if others wait.
        #[cold]
        #[inline(never)]
        fn behind(&self, now: Timestamp, cost: u64) -> Option<Decision> {
            // A look at a later time must not let waiters pass before the clock shows it.
            let by = match cost {
                0 => now.min(self.now()),
                _ => now,
            };
            self.visit_if_any(|state| {
                state.waits.advance(self, by);
                self.keep_out(&mut state.waits, by);
                state
                    .waits
                    .behind(&QueueRequest::new(self, &self.terms(), now, cost))
            })?
        }

        /// Decides without charging, and without any effect, past the line.
        fn see(&self, now: Timestamp, cost: u64) -> Decision;

        /// Decides without charging.
        fn peek_in_order(&self, now: Timestamp, cost: u64) -> Decision {
            let behind = self.behind(now, cost);
            behind.unwrap_or_else(|| self.see(now, cost))
        }

        /// Reserves if the wait is within `patience`. Those who wait are charged first.
        fn book_in_order(
            &self,
            now: Timestamp,
            cost: u64,
            patience: Duration,
        ) -> Result<Ticket, Refused> {
            let terms = self.terms();
            let request = QueueRequest::new(self, &terms, now, cost);
            let behind = self.visit_if_any(|state| {
                state.waits.advance(self, now);
                self.keep_out(&mut state.waits, now);
                let told = match state.waits.behind(&request) {
                    Some(told) => told,
                    // What is booked behind a reservation that the line keeps, the line keeps too.
                    None if !state.waits.is_free() && !patience.is_zero() => self.see(now, cost),
                    None => return None,
                };
                if told.outcome == Outcome::Never {
                    return Some(Err(Refused::Never(told)));
                }
                if told.wait() > patience.min(self.longest_booking()) {
                    return Some(Err(Refused::TooLate(told)));
                }
                if cost == 0 {
                    return Some(Ok(Ticket::Free(now + told.wait())));
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
        fn reserve_in_turn(&self, now: Timestamp, cost: u64) -> Result<Ticket, Refused> {
            let booked = self.book_in_order(now, cost, Duration::MAX);
            // No deadline was given, so it can't be missed.
            booked.map_err(|refused| match refused {
                Refused::TooLate(decision) if self.is_blocked(now) => Refused::Blocked(decision),
                // It isn't for how far ahead it would be: there is no room for the state of a new key.
                Refused::TooLate(decision) if decision.wait() <= self.longest_booking() => {
                    Refused::QueueFull(decision)
                }
                Refused::TooLate(decision) => Refused::TooFarAhead(decision),
                refused => refused,
            })
        }

        /// Gives back what nobody else relies on; that may let a waiter pass.
        fn cancel_in_order(&self, now: Timestamp, ticket: &Ticket) {
            if let Ticket::InLine { number, at } = *ticket {
                self.visit_if_any(|state| {
                    state.waits.advance(self, now);
                    state.waits.cancel(self, now, number, at);
                });
                return;
            }
            self.improve(now, || {
                self.give_back(&self.terms(), now, ticket, Undo::Rest);
            });
        }

        /// Gives back tokens that no ticket is for. What was booked before can't be taken back after that, so it is taken back
        /// first: nobody who waits is booked any more, and whoever is first gets them.
        fn refund_in_order(&self, now: Timestamp, refund: impl Fn()) {
            self.visit_if_any(|state| {
                state.waits.advance(self, now);
                state.waits.unbook_all(self, now);
            });
            self.improve(now, refund);
        }

        /// A reservation isn't cancelled any more.
        fn end_in_turn(&self, number: u64, at: Timestamp) {
            self.visit_if_any(|state| state.waits.end_reservation(number, at));
        }

        /// Forgets what was spent and booked, so that waiters pass by what there is then.
        fn reset_in_order(&self, now: Timestamp, reset: impl Fn()) {
            self.improve(now, reset);
            self.visit_if_any(|state| {
                state.waits.forget_bookings();
                state.waits.improved(self);
            });
        }

        /// Whether one that comes now to wait might pass by this time, by what was booked and nobody needs any more.
        #[cold]
        fn may_pass_before(&self, now: Timestamp, cost: u64, deadline: Timestamp) -> bool {
            let visited = self.visit_if_any(|state| {
                state.waits.advance(self, now);
                let terms = self.terms();
                let request = QueueRequest::new(self, &terms, now, cost);
                state.waits.may_pass_before(&request, deadline)
            });
            visited.unwrap_or(false)
        }

        /// Makes a change that may let waiters pass sooner.
        fn improve(&self, now: Timestamp, change: impl Fn()) {
            let visited = self.visit_if_any(|state| {
                // Waiters whose turn has come by now pass as things stood before.
                state.waits.advance(self, now);
                change();
                self.keep_out(&mut state.waits, now);
                state.waits.improved(self);
            });
            if visited.is_none() {
                change();
                // A waiter sets the mark, then a fence, then looks: so either it sees the change, or its mark
                // is seen here.
                fence(Ordering::SeqCst);
                self.visit_if_any(|state| state.waits.improved(self));
            }
        }

        /// Passes, or takes a place in line.
        fn enter(
            &self,
            now: Timestamp,
            cost: u64,
            deadline: Option<Timestamp>,
        ) -> Result<Entered, Refused> {
            self.visit(None, |state| {
                let terms = self.terms();
                let request = QueueRequest::new(self, &terms, now, cost);
                state.waits.enter(&request, deadline)
            })
        }
    }
}
