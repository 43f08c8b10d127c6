//! What is booked ahead while somebody waits: a reservation is made behind the waiters, so their turns are booked first.
//!
//! A booking isn't a certain waiter's. The line has the bookings in the order of their times and the waiters in the order
//! in which they came, and when the time of a booking comes, the first waiters that it suffices for pass. So a waiter that
//! leaves, or a reservation that is cancelled, leaves a gap that the next one takes, and nothing has to be moved. What is
//! booked behind the last reservation that is still wanted is taken back, the latest first, as if it had never been booked.

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

/// How many waiters are looked at for one that a booking suffices for.
const MAX_LOOKAHEAD: usize = 64;

/// The bookings of one line.
#[derive(Debug)]
pub(super) struct Bookings<T> {
    /// In the order in which they were charged, which is the order of their times. All lie ahead.
    upcoming: VecDeque<Booking<T>>,
    /// Reservations whose time has come and that nobody has used, kept or cancelled yet.
    past: Vec<Booking<T>>,
    /// What is booked for waiters, in sum.
    open_cost: u128,
}

#[derive(Debug)]
struct Booking<T> {
    ticket: ChargeTicket,
    cost: u64,
    terms: T,
    holder: BookingHolder,
}

/// Whom a booking is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BookingHolder {
    /// Whoever waits.
    Waiters,
    /// The reservation of this number.
    Reservation(u64),
    /// Somebody who keeps its time by other means, and doesn't come back.
    UsedReservation,
}

/// Which bookings serve which waiters, if nobody comes or leaves.
struct BookingPlan {
    /// Waiters that no booking is left for, first come first.
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

    /// The first reservation's time has come.
    fn retire_first(&mut self) {
        let over = self.upcoming.pop_front();
        self.past
            .extend(over.filter(|it| it.holder != BookingHolder::UsedReservation));
    }

    /// Takes out the first booking for waiters. The times of reservations before it have come, too.
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

    /// Where the booking of a reservation is.
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

/// A number that no other reservation of this process has, so that a handle finds its own booking or none.
fn next_number() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

impl<T: Clone + fmt::Debug> FifoQueue<T> {
    /// What is booked for waiters, in sum.
    pub(super) fn open_cost_total(&self) -> u128 {
        self.bookings
            .as_ref()
            .map_or(0, |bookings| bookings.open_cost)
    }

    /// Whether anything is booked ahead.
    pub(super) fn is_booked_ahead(&self) -> bool {
        let bookings = self.bookings.as_ref();
        bookings.is_some_and(|bookings| !bookings.upcoming.is_empty())
    }

    /// When the first booking that is for waiters comes up.
    pub(super) fn next_booking(&self) -> Option<Timestamp> {
        let mut ahead = self.bookings.as_ref()?.upcoming.iter();
        let first = ahead.find(|it| it.holder == BookingHolder::Waiters)?;
        Some(first.ticket.at())
    }

    /// When a booking comes up that nobody in line needs and that suffices for this cost, as near as is known.
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

    /// Makes a reservation behind all waiters, whose turns are booked first; or takes a booking that none of them needs.
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

    /// Books the turns of waiters that no booking serves, in order.
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

    /// Plays the bookings that lie ahead as if their times came.
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

    /// The time of the first booking for waiters has come: the first waiters that it suffices for pass.
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
                // What several share can't be given back by one of them.
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
            // Nobody wanted it; what nothing was built on comes back.
            meter.cancel(&booking.terms, now, &booking.ticket, CancelScope::Unused);
        }
        self.drop_if_unused();
    }

    /// What was booked until now isn't ahead any more: reservations may still be cancelled, and what nobody waits for is
    /// over.
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

    /// Cancels a reservation: its booking is for waiters from now on, and all that is booked behind the last
    /// reservation that is still wanted is taken back.
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

    /// A reservation was used, or is kept by other means: it isn't cancelled any more.
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

    /// Takes back what is booked for waiters behind the last reservation, the latest first.
    pub(super) fn cancel_trailing_bookings(
        &mut self,
        meter: &DynQueueLimit<'_, T>,
        now: Timestamp,
    ) {
        while let Some(bookings) = &mut self.bookings
            && let Some(last) = bookings.upcoming.back()
            && last.holder == BookingHolder::Waiters
        {
            // Something else was charged since, so waiters take it when its time comes.
            if !meter.cancel(&last.terms, now, &last.ticket, CancelScope::Whole) {
                break;
            }
            bookings.pop_back();
        }
        self.drop_if_unused();
    }

    /// The limit is about to change: no waiter is booked any more, so that all of them pass by the new limit.
    /// Reservations keep their times, and what they were charged stays charged.
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
            // It passed further ahead before, so it passes now.
            let _ = meter.book(&booking.terms, now, booking.cost, Duration::MAX);
        }
    }

    /// What was booked is forgotten with all else that the limit had counted.
    pub(crate) fn forget_bookings(&mut self) {
        self.bookings = None;
    }

    /// Bookings are kept only while somebody waits, or may cancel a reservation.
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

/// Whether a waiter can pass by what is booked.
fn can_use_booking<T: Clone + fmt::Debug>(
    meter: &DynQueueLimit<'_, T>,
    place: &WaiterPlace<WaitResult, FifoWaiter<T>>,
) -> bool {
    place.data.ticket.is_none() && meter.can_book_ahead(&place.data.terms)
}
