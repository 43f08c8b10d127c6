//! Bookings in advance while somebody waits: a reservation is made behind the waiters, so their charges
//! are booked first.
//!
//! A booking doesn't belong to a certain waiter. The queue keeps the bookings in the order of their
//! times and the waiters in the order in which they came. When a booking is due, the first waiters
//! whose cost it covers pass. So a waiter that leaves, or a cancelled reservation, leaves a gap that
//! the next waiter takes, and nothing has to be moved. Bookings behind the last active reservation are
//! cancelled, the latest first, as if they had never been made.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tollgate_core::Timestamp;

use super::super::queue_limit::{DynQueueLimit, QueueRequest};
use super::super::waiter_places::{WaiterId, WaiterPlace};
use super::{FifoQueue, FifoWaiter, WaitResult};
use crate::RateDenied;
use crate::cell::{CancelScope, ChargeTicket};

/// How many waiters are checked for one whose cost a booking covers.
const MAX_LOOKAHEAD: usize = 64;

/// The bookings of one queue.
#[derive(Debug)]
pub(super) struct Bookings<T> {
    /// In the order in which they were charged, which is the order of their times. All lie in the
    /// future.
    upcoming: VecDeque<Booking<T>>,
    /// Reservations that are due and were not used, kept or cancelled yet.
    past: Vec<Booking<T>>,
    /// The sum of the bookings for waiters.
    open_cost: u128,
}

#[derive(Debug)]
struct Booking<T> {
    ticket: ChargeTicket,
    cost: u64,
    terms: T,
    holder: BookingHolder,
}

/// The holder of a booking.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BookingHolder {
    /// The waiters.
    Waiters,
    /// The reservation of this number.
    Reservation(u64),
    /// A reservation that was used, or whose holder waits until its time by other means. It isn't
    /// cancelled any more.
    UsedReservation,
}

/// Which bookings serve which waiters, if nobody comes or leaves.
struct BookingPlan {
    /// Waiters without a booking, first in, first out.
    unserved: VecDeque<(WaiterId, u64)>,
    /// A booking that no waiter needs.
    free: Option<usize>,
}

impl<T> Default for Bookings<T> {
    fn default() -> Self {
        Self {
            upcoming: VecDeque::new(),
            past: Vec::new(),
            open_cost: 0,
        }
    }
}

impl<T> Bookings<T> {
    fn push(&mut self, booking: Booking<T>) {
        self.open_cost += waiters_cost(&booking);
        self.upcoming.push_back(booking);
    }

    fn pop_back(&mut self) -> Option<Booking<T>> {
        let booking = self.upcoming.pop_back()?;
        self.open_cost -= waiters_cost(&booking);
        Some(booking)
    }

    /// The first reservation is due.
    fn retire_first(&mut self) {
        let over = self.upcoming.pop_front();
        self.past
            .extend(over.filter(|it| it.holder != BookingHolder::UsedReservation));
    }

    /// Takes out the first booking for waiters. Reservations before it are due, too.
    fn take_next(&mut self) -> Option<Booking<T>> {
        while self.upcoming.front()?.holder != BookingHolder::Waiters {
            self.retire_first();
        }
        let next = self.upcoming.pop_front()?;
        self.open_cost -= waiters_cost(&next);
        Some(next)
    }

    fn set_holder(&mut self, index: usize, holder: BookingHolder) {
        if let Some(booking) = self.upcoming.get_mut(index) {
            let before = waiters_cost(booking);
            booking.holder = holder;
            self.open_cost = self.open_cost - before + waiters_cost(booking);
        }
    }

    /// The position of a reservation's booking.
    fn find(&self, number: u64, at: Timestamp) -> Option<usize> {
        let start = self.upcoming.partition_point(|it| it.ticket.at() < at);
        let same = self
            .upcoming
            .range(start..)
            .take_while(|it| it.ticket.at() == at);
        let mut same = same.enumerate();
        same.find(|(_, it)| it.holder == BookingHolder::Reservation(number))
            .map(|(offset, _)| start + offset)
    }

    fn remove_past(&mut self, number: u64) -> Option<Booking<T>> {
        let mut past = self.past.iter();
        let index = past.position(|it| it.holder == BookingHolder::Reservation(number))?;
        Some(self.past.swap_remove(index))
    }

    fn has_reservations(&self) -> bool {
        let mut all = self.upcoming.iter().chain(&self.past);
        all.any(|it| matches!(it.holder, BookingHolder::Reservation(_)))
    }
}

fn waiters_cost<T>(booking: &Booking<T>) -> u128 {
    match booking.holder {
        BookingHolder::Waiters => u128::from(booking.cost),
        BookingHolder::Reservation(_) | BookingHolder::UsedReservation => 0,
    }
}

/// A number that no other reservation of this process has, so that a handle finds its own booking or
/// none.
fn next_number() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

impl<T: Clone + fmt::Debug> FifoQueue<T> {
    /// The sum of the bookings for waiters.
    pub(super) fn open_cost_total(&self) -> u128 {
        self.bookings
            .as_ref()
            .map_or(0, |bookings| bookings.open_cost)
    }

    /// Whether there are upcoming bookings.
    pub(super) fn is_booked_ahead(&self) -> bool {
        let bookings = self.bookings.as_ref();
        bookings.is_some_and(|bookings| !bookings.upcoming.is_empty())
    }

    /// When the first booking for waiters is due.
    pub(super) fn next_booking(&self) -> Option<Timestamp> {
        let mut ahead = self.bookings.as_ref()?.upcoming.iter();
        let first = ahead.find(|it| it.holder == BookingHolder::Waiters)?;
        Some(first.ticket.at())
    }

    /// The estimated time of a booking that no waiter needs and that covers this cost.
    pub(super) fn spare_booking(&self, cost: u64) -> Option<Timestamp> {
        let bookings = self.bookings.as_ref()?;
        let spare = bookings.open_cost.checked_sub(self.queue.cost())?;
        let (mut first, mut behind) = (bookings.upcoming.len(), 0);
        while behind < spare && first > 0 {
            first -= 1;
            behind += waiters_cost(&bookings.upcoming[first]);
        }
        let mut spare = bookings.upcoming.range(first..);
        let found = spare.find(|it| it.holder == BookingHolder::Waiters && it.cost >= cost)?;
        Some(found.ticket.at())
    }

    /// Makes a reservation behind all waiters, after booking their charges; or takes a booking that no
    /// waiter needs.
    ///
    /// After an [`advance`](Self::advance) to this time.
    pub(crate) fn reserve(
        &mut self,
        request: &QueueRequest<'_, T>,
    ) -> Result<ChargeTicket, RateDenied> {
        let QueueRequest {
            meter, now, cost, ..
        } = *request;
        let number = next_number();
        let plan = self.plan(meter, cost);
        let bookings = self.bookings.get_or_insert_default();
        let ticket = if let Some(free) = plan.free {
            bookings.set_holder(free, BookingHolder::Reservation(number));
            Ok(bookings.upcoming[free].ticket)
        } else {
            self.book_for_waiters(meter, now, plan.unserved)
                .and_then(|()| request.book(Duration::MAX))
                .inspect(|ticket| {
                    let bookings = self.bookings.get_or_insert_default();
                    bookings.push(Booking {
                        ticket: *ticket,
                        cost,
                        terms: request.terms.clone(),
                        holder: BookingHolder::Reservation(number),
                    });
                })
        };
        self.cancel_trailing_bookings(meter, now);
        self.update_due(meter);
        ticket.map(|ticket| ChargeTicket::InLine {
            number,
            at: ticket.at(),
        })
    }

    /// Books charges for waiters that no booking serves, in order.
    fn book_for_waiters(
        &mut self,
        meter: &DynQueueLimit<'_, T>,
        now: Timestamp,
        unserved: VecDeque<(WaiterId, u64)>,
    ) -> Result<(), RateDenied> {
        let bookings = self.bookings.get_or_insert_default();
        for (id, cost) in unserved {
            let Some(place) = self.places.get(id) else {
                continue;
            };
            let terms = &place.data.terms;
            if !meter.can_book_ahead(terms) {
                return Err(RateDenied::DeadlineExceeded(meter.peek(terms, now, cost)));
            }
            let ticket = meter.book(terms, now, cost, Duration::MAX)?;
            bookings.push(Booking {
                ticket,
                cost,
                terms: terms.clone(),
                holder: BookingHolder::Waiters,
            });
        }
        Ok(())
    }

    /// Simulates which waiters the upcoming bookings serve.
    fn plan(&self, meter: &DynQueueLimit<'_, T>, cost: u64) -> BookingPlan {
        let mut unserved = VecDeque::with_capacity(self.queue.len());
        let mut next = self.queue.first();
        while let Some((id, place)) = next.and_then(|id| Some((id, self.places.get(id)?))) {
            next = place.next();
            if place.data.ticket.is_none() && place.cost > 0 {
                unserved.push_back((id, place.cost));
            }
        }
        let mut free = None;
        let bookings = self.bookings.iter().flat_map(|it| it.upcoming.iter());
        let open = bookings.enumerate();
        for (index, booking) in open.filter(|(_, it)| it.holder == BookingHolder::Waiters) {
            let (mut left, mut looked_at, all) = (booking.cost, 0, unserved.len());
            while looked_at < unserved.len().min(MAX_LOOKAHEAD) {
                let (id, cost) = unserved[looked_at];
                if cost <= left && self.can_use_bookings(meter, id) {
                    left -= cost;
                    unserved.remove(looked_at);
                } else {
                    looked_at += 1;
                }
            }
            if unserved.len() == all && booking.cost >= cost && free.is_none() {
                free = Some(index);
            }
        }
        BookingPlan { unserved, free }
    }

    fn can_use_bookings(&self, meter: &DynQueueLimit<'_, T>, id: WaiterId) -> bool {
        let place = self.places.get(id);
        place.is_some_and(|place| can_use_booking(meter, place))
    }

    /// Serves the first booking for waiters, which is due: the first waiters whose cost it covers pass.
    pub(super) fn serve_booking(&mut self, meter: &DynQueueLimit<'_, T>, now: Timestamp) {
        let next = self.bookings.as_mut().and_then(|it| it.take_next());
        let Some(booking) = next else { return };
        let at = booking.ticket.at();
        self.latest_time = self.latest_time.max(at);
        let (mut left, mut looked_at, mut next) = (booking.cost, 0, self.queue.first());
        while let Some((id, place)) = next.and_then(|id| Some((id, self.places.get_mut(id)?))) {
            next = place.next();
            if place.cost <= left && can_use_booking(meter, place) {
                left -= place.cost;
                // One of several waiters that share a booking can't refund it.
                place.data.ticket = (place.cost == booking.cost).then_some(booking.ticket);
                self.finish(id, Ok(at));
            } else {
                looked_at += 1;
            }
            if looked_at >= MAX_LOOKAHEAD {
                break;
            }
        }
        if left == booking.cost {
            // No waiter used it; the part that no later decision relies on is refunded.
            meter.cancel(&booking.terms, now, &booking.ticket, CancelScope::Unused);
        }
        self.drop_if_unused();
    }

    /// Retires the bookings up to now: their reservations may still be cancelled, and those that no
    /// waiter needs end.
    pub(super) fn retire_past_bookings(&mut self, meter: &DynQueueLimit<'_, T>, now: Timestamp) {
        while let Some(bookings) = &mut self.bookings
            && let Some(first) = bookings.upcoming.front()
            && first.ticket.at() <= now
        {
            match first.holder {
                BookingHolder::Waiters => self.serve_booking(meter, now),
                BookingHolder::Reservation(_) | BookingHolder::UsedReservation => {
                    bookings.retire_first()
                }
            }
            self.drop_if_unused();
        }
    }

    /// Cancels a reservation: waiters get its booking, and all bookings behind the last active
    /// reservation are cancelled.
    pub(crate) fn cancel(
        &mut self,
        meter: &DynQueueLimit<'_, T>,
        now: Timestamp,
        number: u64,
        at: Timestamp,
    ) {
        let Some(bookings) = &mut self.bookings else {
            return;
        };
        if let Some(index) = bookings.find(number, at) {
            bookings.set_holder(index, BookingHolder::Waiters);
            self.cancel_trailing_bookings(meter, now);
        } else if let Some(past) = bookings.remove_past(number) {
            meter.cancel(&past.terms, now, &past.ticket, CancelScope::Unused);
            self.drop_if_unused();
        }
        self.denied_until = Timestamp::ZERO;
        self.update_due(meter);
    }

    /// A reservation was used, or is kept by other means: it can't be cancelled any more.
    pub(crate) fn end_reservation(&mut self, number: u64, at: Timestamp) {
        let Some(bookings) = &mut self.bookings else {
            return;
        };
        if let Some(index) = bookings.find(number, at) {
            bookings.set_holder(index, BookingHolder::UsedReservation);
        } else {
            bookings.remove_past(number);
        }
        self.drop_if_unused();
    }

    /// Cancels the bookings for waiters behind the last reservation, the latest first.
    pub(super) fn cancel_trailing_bookings(
        &mut self,
        meter: &DynQueueLimit<'_, T>,
        now: Timestamp,
    ) {
        while let Some(bookings) = &mut self.bookings
            && let Some(last) = bookings.upcoming.back()
            && last.holder == BookingHolder::Waiters
        {
            // Another charge was made since, so waiters get the booking when it is due.
            if !meter.cancel(&last.terms, now, &last.ticket, CancelScope::Whole) {
                break;
            }
            bookings.pop_back();
        }
        self.drop_if_unused();
    }

    /// Cancels all bookings of waiters before a change of the limit, so that they pass by the new
    /// limit. Reservations keep their times, and their charges stay charged.
    pub(crate) fn cancel_all_bookings(&mut self, meter: &DynQueueLimit<'_, T>, now: Timestamp) {
        let Some(mut bookings) = self.bookings.take() else {
            return;
        };
        let mut reserved = Vec::new();
        while let Some(booking) = bookings.pop_back() {
            if !meter.cancel(&booking.terms, now, &booking.ticket, CancelScope::Whole) {
                break;
            }
            if booking.holder != BookingHolder::Waiters {
                reserved.push(booking);
            }
        }
        for booking in reserved.iter().rev() {
            // It passed further in advance before, so it passes now.
            let _ = meter.book(&booking.terms, now, booking.cost, Duration::MAX);
        }
    }

    /// Drops all bookings, together with everything else that the limit had counted.
    pub(crate) fn forget_bookings(&mut self) {
        self.bookings = None;
    }

    /// Drops the bookings if nobody waits or may cancel a reservation.
    pub(super) fn drop_if_unused(&mut self) {
        let is_over = self.bookings.as_ref().is_some_and(|bookings| {
            let is_empty = bookings.upcoming.is_empty() && bookings.past.is_empty();
            is_empty || (self.queue.len() == 0 && !bookings.has_reservations())
        });
        if is_over {
            self.bookings = None;
        }
    }
}

/// Whether a booking covers the cost of a waiter.
fn can_use_booking<T: Clone + fmt::Debug>(
    meter: &DynQueueLimit<'_, T>,
    place: &WaiterPlace<WaitResult, FifoWaiter<T>>,
) -> bool {
    place.data.ticket.is_none() && meter.can_book_ahead(&place.data.terms)
}
