//! A line whose clock was set back: it counts from where the clock is, and keeps its order.

use std::fmt;
use std::mem;

use tollgate_core::Timestamp;

use super::super::meter::AnyMeter;
use super::Single;
use crate::steps::SLACK;

impl<T: Clone + fmt::Debug> Single<T> {
    /// A request came with a time far behind: the clock was set back, unless the thread was stopped between
    /// reading it and coming here.
    #[cold]
    pub(super) fn keep_pace(&mut self, meter: &AnyMeter<'_, T>, now: Timestamp) {
        let now = meter.shows().max(now);
        if self.seen - now > SLACK {
            self.set_back(meter, now);
        }
    }

    /// The clock was set back to this time: no waiter waits until it has caught up.
    fn set_back(&mut self, meter: &AnyMeter<'_, T>, now: Timestamp) {
        let from = mem::replace(&mut self.seen, now);
        self.refused_until = Timestamp::ZERO;
        self.places.shift_deadlines(&mut self.deadlines, from, now);
        // What was booked acts at a time of the clock as it was, so waiters ask again.
        self.unbook_all(meter, now);
        let mut next = self.line.first();
        while let Some(place) = next.and_then(|id| self.places.get_mut(id)) {
            next = place.next();
            place.arrived = place.arrived.min(now);
            let waiter = &mut place.extra;
            waiter.told = waiter.told.shifted(from, now);
            // What was charged ahead acts at a time of the clock as it was, so it asks again.
            if let Some(ticket) = waiter.charged.take() {
                meter.give_back(&waiter.terms, now, &ticket);
                place.cost = ticket.cost();
                self.line.asks_again(place.cost);
            }
        }
    }
}
