//! The queue of one limit, first in, first out. A waiter is charged only when it is served, so one that
//! leaves frees its place at no cost to the others, wherever it stood.
//!
//! The queue reads no clock, wakes no waiter, and doesn't own the limit's state: each call gets the
//! limit (`meter`).

use std::fmt;
use std::mem;
use std::time::Duration;

use tollgate_core::{Decision, Outcome, Timestamp};

mod bookings;

use super::queue_limit::{DynQueueLimit, QueueRequest};
use super::waiter_places::{Fifo, WaiterId, WaiterPlace, WaiterPlaces};
use super::{WaitOutcome, Waiters};
use crate::RateDenied;
use crate::cell::{CancelScope, ChargeTicket};
use crate::clock_steps::CLOCK_SLACK;
use bookings::Bookings;

/// How long after its expected due time a waiter polls again if the waiters before it took longer.
const RETRY_DELAY: Duration = Duration::from_millis(1);

/// All waiters for one limit.
#[derive(Debug)]
pub struct FifoQueue<T> {
    places: WaiterPlaces<WaitResult, FifoWaiter<T>>,
    queue: Fifo,
    /// The latest visit or service: no waiter passes at an earlier time, unless the clock was set back.
    latest_time: Timestamp,
    /// When the next waiter passes, as of the latest update.
    next_due: Timestamp,
    /// Bookings made in advance, because reservations were made behind waiters. Boxed, because they are
    /// rare and large.
    bookings: Option<Box<Bookings<T>>>,
    /// When the head may retry, if it was denied when it was due.
    denied_until: Timestamp,
    /// The latest new waiter found no room in the table for its key.
    has_no_slot: bool,
    /// Whether a reservation was held at the latest visit, in a limit that doesn't keep it from
    /// draining by itself.
    pub(crate) is_held: bool,
}

/// When a waiter was served, or its denial, which is boxed because it is rare and large.
type WaitResult = Result<Timestamp, Box<RateDenied>>;

/// The data of a waiter.
#[derive(Debug)]
struct FifoWaiter<T> {
    terms: T,
    /// When it was promised to pass: it polls then, whatever happens to the waiters before it.
    promised_at: Timestamp,
    /// Its charge: made when it passed, or in advance because the table has no room for its key.
    ticket: Option<ChargeTicket>,
}

/// The result of a request that may wait.
#[derive(Debug)]
pub enum JoinOutcome {
    /// It passed immediately with this charge.
    Passed(ChargeTicket),
    /// It joined the queue.
    Waiting(WaiterId),
}

impl<T: Clone + fmt::Debug> FifoQueue<T> {
    pub(crate) const fn new() -> Self {
        Self {
            places: WaiterPlaces::new(),
            queue: Fifo::EMPTY,
            latest_time: Timestamp::ZERO,
            next_due: Timestamp::MAX,
            bookings: None,
            denied_until: Timestamp::ZERO,
            has_no_slot: false,
            is_held: false,
        }
    }

    /// Whether nobody waits.
    pub(crate) const fn is_empty(&self) -> bool {
        self.queue.len() == 0
    }

    /// Whether there is no waiter, none that has passed without polling since, and no reservation that
    /// was made behind one.
    pub(crate) const fn is_unused(&self) -> bool {
        self.places.used() == 0 && self.bookings.is_none()
    }

    /// Whether nobody waits, and no upcoming reservation was made behind a waiter.
    pub(crate) const fn has_no_claims(&self) -> bool {
        self.is_empty() && self.bookings.is_none()
    }

    /// Serves every waiter that is due by `now`, in order and each as of its own due time, and drops
    /// those whose deadline came first.
    pub(crate) fn advance(&mut self, meter: &DynQueueLimit<'_, T>, now: Timestamp) {
        if self.latest_time - now > CLOCK_SLACK {
            self.follow_clock(meter, now);
        }
        self.update_due(meter);
        while self.serve_next(meter, now) {
            self.update_due(meter);
        }
        self.note_time(meter, now);
        self.retire_past_bookings(meter, now);
    }

    /// From now on no waiter passes at an earlier time.
    fn note_time(&mut self, meter: &DynQueueLimit<'_, T>, now: Timestamp) {
        if self.latest_time < now {
            self.latest_time = now;
            self.update_due(meter);
        }
    }

    fn serve_next(&mut self, meter: &DynQueueLimit<'_, T>, now: Timestamp) -> bool {
        let Some((id, place)) = self.first_place() else {
            return false;
        };
        if meter.is_blocked(now) {
            let decision = meter.peek(&place.data.terms, now, place.cost);
            self.deny_waiter(meter, now, id, RateDenied::Blocked(decision));
            return true;
        }
        let over = self.places.first_deadline();
        // A waiter that is due before that deadline is served first, as of its due time.
        if let Some((deadline, late)) = over.filter(|(deadline, _)| *deadline < now)
            && deadline < self.next_due
        {
            let late_place = self.places.get(late).map(|place| &place.data.terms);
            let request = |terms| QueueRequest::new(meter, terms, now, 0);
            let decision = late_place.map(|terms| self.denial_at(&request(terms), self.next_due));
            let decision = decision.unwrap_or(Decision::UNLIMITED);
            self.deny_waiter(meter, now, late, RateDenied::DeadlineExceeded(decision));
            // The waiters behind it move up at that time, not before.
            self.latest_time = self.latest_time.max(deadline.plus_nanos(1));
            return true;
        }
        if self.next_due > now {
            return false;
        }
        if self.next_booking() == Some(self.next_due) {
            self.serve_booking(meter, now);
            return true;
        }
        let request = QueueRequest::new(meter, &place.data.terms, now, place.cost);
        let charged = match place.data.ticket {
            Some(ticket) => Ok((ticket, self.next_due)),
            // Charged as of its due time, so that a late wake-up loses no rate.
            None => request.charge(self.next_due),
        };
        match charged {
            Ok((ticket, at)) => {
                self.latest_time = self.latest_time.max(at);
                if let Some(place) = self.places.get_mut(id) {
                    place.data.ticket = Some(ticket);
                }
                self.finish(id, Ok(at));
                true
            }
            Err(refused @ RateDenied::ExceedsBurst(_)) => {
                // A waiter that can never pass would block the queue.
                self.deny_waiter(meter, now, id, refused);
                true
            }
            // A check that began earlier took the tokens, or there is no room for a new key.
            Err(refused) => {
                self.latest_time = self.latest_time.max(now);
                let wait = refused.decision().wait_or_max().max(RETRY_DELAY);
                self.denied_until = now + wait;
                self.update_due(meter);
                false
            }
        }
    }

    /// The limit's remaining tokens have changed, so the head may be due sooner.
    pub(crate) fn recheck_first(&mut self, meter: &DynQueueLimit<'_, T>) {
        self.denied_until = Timestamp::ZERO;
        self.update_due(meter);
    }

    /// Updates when the next waiter passes: by the bookings, or else the head by the remaining tokens.
    fn update_due(&mut self, meter: &DynQueueLimit<'_, T>) {
        let first = match self.first_place() {
            None => Timestamp::MAX,
            Some((_, place)) => match &place.data.ticket {
                Some(ticket) => ticket.at(),
                None => {
                    let from = self.latest_time.max(place.arrived);
                    let decision = meter.peek(&place.data.terms, from, place.cost);
                    let due = match decision.outcome {
                        // A request that can never pass is denied immediately.
                        Outcome::Allowed | Outcome::Never => from,
                        Outcome::Denied => from + decision.wait_or_max(),
                    };
                    due.max(self.denied_until)
                }
            },
        };
        self.next_due = match self.next_booking() {
            Some(booked) if !self.is_empty() => first.min(booked),
            _ => first,
        };
    }

    fn first_place(&self) -> Option<(WaiterId, &WaiterPlace<WaitResult, FifoWaiter<T>>)> {
        let id = self.queue.first()?;
        Some((id, self.places.get(id)?))
    }

    /// Passes immediately, joins the queue, or returns why it can do neither.
    pub(crate) fn join(
        &mut self,
        request: &QueueRequest<'_, T>,
        deadline: Option<Timestamp>,
    ) -> Result<JoinOutcome, RateDenied> {
        let QueueRequest { meter, now, .. } = *request;
        self.advance(meter, now);
        if self.is_empty() {
            match request.book(Duration::ZERO) {
                Ok(ticket) => return Ok(JoinOutcome::Passed(ticket)),
                Err(RateDenied::DeadlineExceeded(decision)) if meter.is_blocked(now) => {
                    return Err(RateDenied::Blocked(decision));
                }
                // It doesn't pass without waiting, so it queues.
                Err(RateDenied::DeadlineExceeded(_)) => {}
                Err(refused) => return Err(refused),
            }
        }
        let alone = request.peek();
        if alone.outcome == Outcome::Never {
            return Err(RateDenied::ExceedsBurst(alone));
        }
        // It would pass alone and was still denied, so the table has no room for its key.
        self.has_no_slot = alone.is_allowed() && (self.is_empty() || self.has_no_slot);
        if self.has_no_slot {
            return self.join_booked(request, deadline);
        }
        let told = self.earliest_turn_for(request);
        if deadline.is_some_and(|deadline| deadline < told) {
            return Err(RateDenied::DeadlineExceeded(self.denial_at(request, told)));
        }
        let waiter = FifoWaiter {
            terms: request.terms.clone(),
            promised_at: told,
            ticket: None,
        };
        let place = WaiterPlace::new(now, request.cost, deadline, waiter);
        Ok(self.append_waiter(meter, place))
    }

    /// Joins the queue with a charge in advance: the table has no room for its key, and the bucket that
    /// such keys share has one order for all of them.
    fn join_booked(
        &mut self,
        request: &QueueRequest<'_, T>,
        deadline: Option<Timestamp>,
    ) -> Result<JoinOutcome, RateDenied> {
        let patience = deadline.map_or(Duration::MAX, |deadline| deadline - request.now);
        let ticket = match request.book(patience) {
            Ok(ticket) => ticket,
            // Its deadline isn't the reason for the denial.
            Err(RateDenied::DeadlineExceeded(decision)) if decision.wait_or_max() <= patience => {
                return Err(RateDenied::QueueFull(decision));
            }
            Err(RateDenied::TooFarAhead(decision)) => return Err(RateDenied::QueueFull(decision)),
            Err(refused) => return Err(refused),
        };
        let waiter = FifoWaiter {
            terms: request.terms.clone(),
            promised_at: ticket.at(),
            ticket: Some(ticket),
        };
        // Cost 0, because it is charged already and the queue's sum is of uncharged costs.
        let place = WaiterPlace::new(request.now, 0, deadline, waiter);
        Ok(self.append_waiter(request.meter, place))
    }

    fn append_waiter(
        &mut self,
        meter: &DynQueueLimit<'_, T>,
        place: WaiterPlace<WaitResult, FifoWaiter<T>>,
    ) -> JoinOutcome {
        let id = self.places.insert(place);
        self.places.push(&mut self.queue, id);
        self.update_due(meter);
        JoinOutcome::Waiting(id)
    }

    /// Removes this waiter. Leaving costs nothing: if it was charged without having polled since, the
    /// charge is refunded, unless others rely on it.
    pub(crate) fn leave(&mut self, meter: &DynQueueLimit<'_, T>, now: Timestamp, id: WaiterId) {
        // Waiters that were due before now are charged as if this one had stayed. Those that are due
        // right now aren't yet, because they may leave as well.
        if let Some(before) = now.as_nanos().checked_sub(1) {
            self.advance(meter, Timestamp::from_nanos(before));
        }
        self.note_time(meter, now);
        self.retry_if_first_leaves(id);
        self.places.unlink(&mut self.queue, id);
        if let Some(place) = self.places.remove(id)
            && let Some(ticket) = place.data.ticket
        {
            meter.cancel(&place.data.terms, now, &ticket, CancelScope::Unused);
        }
        self.cancel_trailing_bookings(meter, now);
        self.update_due(meter);
    }

    /// Rechecks after a change of the limit: waiters that can never pass any more are denied. Bookings
    /// that were made before, and not [cancelled](Self::cancel_all_bookings), used another rate: no
    /// waiter passes by them.
    pub(crate) fn recheck_all(&mut self, meter: &DynQueueLimit<'_, T>, now: Timestamp) {
        self.forget_bookings();
        let mut next = self.queue.first();
        while let Some((id, place)) = next.and_then(|id| Some((id, self.places.get(id)?))) {
            // Read before a denial unlinks the place.
            next = place.next();
            let decision = meter.peek(&place.data.terms, now, place.cost);
            if decision.outcome == Outcome::Never {
                self.deny_waiter(meter, now, id, RateDenied::ExceedsBurst(decision));
            }
        }
        self.recheck_first(meter);
    }

    /// Denies a waiter; a charge that was made in advance is refunded.
    fn deny_waiter(
        &mut self,
        meter: &DynQueueLimit<'_, T>,
        now: Timestamp,
        id: WaiterId,
        refused: RateDenied,
    ) {
        let waiter = self.places.get_mut(id).map(|place| &mut place.data);
        if let Some(waiter) = waiter
            && let Some(ticket) = waiter.ticket.take()
        {
            meter.cancel(&waiter.terms, now, &ticket, CancelScope::Unused);
        }
        self.finish(id, Err(Box::new(refused)));
        self.cancel_trailing_bookings(meter, now);
    }

    /// Removes a waiter from the queue and stores its result.
    fn finish(&mut self, id: WaiterId, result: WaitResult) {
        self.retry_if_first_leaves(id);
        self.places.finish(&mut self.queue, id, result);
    }

    /// A denial of the head doesn't apply to the next waiter.
    fn retry_if_first_leaves(&mut self, id: WaiterId) {
        if self.queue.first() == Some(id) {
            self.denied_until = Timestamp::ZERO;
        }
    }

    // Decisions for requests that come while others wait.

    /// The decision for a request that would queue behind all waiters, after an
    /// [`advance`](Self::advance) to this time. None if nobody waits.
    pub(crate) fn decision_behind_waiters(
        &self,
        request: &QueueRequest<'_, T>,
    ) -> Option<Decision> {
        if self.is_empty() {
            return None;
        }
        let raw = request.peek();
        if raw.outcome == Outcome::Never {
            return Some(raw);
        }
        let at = self.turn_at_end(request);
        // A peek at a later time hasn't served any waiter, though some will have been served by then.
        if at <= request.now {
            return Some(self.remaining_behind_waiters(request));
        }
        Some(self.denial_at(request, at))
    }

    /// The least that remains once all waiters have passed.
    fn remaining_behind_waiters(&self, request: &QueueRequest<'_, T>) -> Decision {
        let QueueRequest {
            meter, terms, now, ..
        } = *request;
        let left = request.peek_remaining();
        let cost = self.unbooked();
        let last = self.time_after_last(&QueueRequest {
            cost: 0,
            ..*request
        });
        // What was there before they came, minus what they take …
        let kept = u128::from(left.remaining).saturating_sub(cost);
        // … or what comes back after the last has taken everything, where tokens come back one by one.
        let reopen = match meter.drain_time(terms, 1) {
            Duration::ZERO => 0,
            interval => last.map_or(0, |last| (now - last).as_nanos() / interval.as_nanos()),
        };
        let remaining = u64::try_from(kept.max(reopen)).unwrap_or(u64::MAX);
        let reset_after = left.reset_after.max(meter.drain_time(terms, cost));
        let (limit, remaining) = (left.limit, remaining.min(left.remaining));
        Decision::new(
            Outcome::Allowed,
            limit,
            remaining,
            Duration::ZERO,
            reset_after,
        )
    }

    /// The estimated time when a waiter at the end passes: by a booking that no other waiter needs, or
    /// by the remaining tokens. After an advance to this time.
    fn earliest_turn_for(&self, request: &QueueRequest<'_, T>) -> Timestamp {
        let last = self.turn_at_end(request);
        let spare = self.spare_booking(request.cost);
        let spare = spare.filter(|_| request.meter.can_book_ahead(request.terms));
        spare.map_or(last, |spare| last.min(spare))
    }

    /// Whether a new waiter might pass by this time.
    pub(crate) fn may_pass_before(
        &self,
        request: &QueueRequest<'_, T>,
        deadline: Timestamp,
    ) -> bool {
        self.earliest_turn_for(request) <= deadline
    }

    /// The waiters' cost beyond their bookings.
    fn unbooked(&self) -> u128 {
        self.queue.cost().saturating_sub(self.open_cost_total())
    }

    /// The estimated time when a request at the end passes by the remaining tokens. After an advance to
    /// this time.
    fn turn_at_end(&self, request: &QueueRequest<'_, T>) -> Timestamp {
        let own = request.now + request.peek().wait_or_max();
        let behind = self.time_after_last(request);
        behind.map_or(own, |behind| own.max(behind))
    }

    /// The estimated time when this cost passes after all waiters.
    fn time_after_last(&self, request: &QueueRequest<'_, T>) -> Option<Timestamp> {
        let QueueRequest {
            meter, terms, now, ..
        } = *request;
        let (_, first) = self.first_place()?;
        if self.is_booked_ahead() {
            // Behind all bookings, and then behind the waiters without one.
            let ahead = self.unbooked() + u128::from(request.cost);
            let first = now + meter.peek(terms, now, 1).wait_or_max();
            let last = first + meter.drain_time(terms, ahead.saturating_sub(1));
            return Some(last.max(self.next_due));
        }
        let after_first = self.queue.cost() - u128::from(first.cost);
        let ahead = after_first + u128::from(request.cost);
        Some(self.next_due + meter.drain_time(terms, ahead))
    }

    /// A denial with a retry at this time.
    fn denial_at(&self, request: &QueueRequest<'_, T>, at: Timestamp) -> Decision {
        let left = request.peek_remaining();
        let wait = at - request.now;
        let remaining = if self.is_empty() { left.remaining } else { 0 };
        let reset_after = left.reset_after.max(wait);
        Decision::new(Outcome::Denied, left.limit, remaining, wait, reset_after)
    }

    // A clock that was set back.

    /// Detects a clock that was set back: a request came with a time far in the past. (Or the thread
    /// was suspended between reading the clock and coming here.)
    #[cold]
    fn follow_clock(&mut self, meter: &DynQueueLimit<'_, T>, now: Timestamp) {
        let now = meter.clock_time().max(now);
        if self.latest_time - now > CLOCK_SLACK {
            self.follow_clock_back(meter, now);
        }
    }

    /// The clock was set back to this time: no waiter waits until it has caught up.
    fn follow_clock_back(&mut self, meter: &DynQueueLimit<'_, T>, now: Timestamp) {
        let from = mem::replace(&mut self.latest_time, now);
        self.denied_until = Timestamp::ZERO;
        self.places.shift_deadlines(from, now);
        // Bookings take effect at times of the earlier clock, so waiters are booked again.
        self.cancel_all_bookings(meter, now);
        let mut next = self.queue.first();
        while let Some(place) = next.and_then(|id| self.places.get_mut(id)) {
            next = place.next();
            place.arrived = place.arrived.min(now);
            let waiter = &mut place.data;
            waiter.promised_at = waiter.promised_at.shifted(from, now);
            // A charge in advance takes effect at a time of the earlier clock, so it is made again.
            if let Some(ticket) = waiter.ticket.take() {
                meter.cancel(&waiter.terms, now, &ticket, CancelScope::Unused);
                place.cost = ticket.cost();
                self.queue.add_cost(place.cost);
            }
        }
    }
}

impl<T: Clone + fmt::Debug> Waiters for FifoQueue<T> {
    fn first(&self) -> Option<(WaiterId, Timestamp)> {
        Some((self.queue.first()?, self.next_due))
    }

    fn next_poll_at(&mut self, now: Timestamp, id: WaiterId) -> Option<Timestamp> {
        let (first, due) = (self.queue.first(), self.next_due);
        let place = self.places.get_mut(id)?;
        let turn = if first == Some(id) {
            due
        } else {
            if place.data.promised_at <= now {
                place.data.promised_at = due.max(now) + RETRY_DELAY;
            }
            place.data.promised_at
        };
        let over = place.deadline().map(|deadline| deadline.plus_nanos(1));
        Some(over.map_or(turn, |over| turn.min(over)))
    }

    fn take_finished(&mut self) -> Vec<WaiterId> {
        self.places.take_done()
    }

    fn collect(&mut self, id: WaiterId, now: Timestamp) -> Option<Result<WaitOutcome, RateDenied>> {
        let place = self.places.get(id)?;
        let (waited, ticket) = (now - place.arrived, place.data.ticket);
        let result = self.places.collect(id)?;
        let passed = result.map(|at| WaitOutcome { at, waited, ticket });
        Some(passed.map_err(|refused| *refused))
    }

    fn free_memory(&mut self) -> bool {
        let is_clean = self.is_unused();
        if is_clean {
            *self = Self {
                latest_time: self.latest_time,
                is_held: self.is_held,
                ..Self::new()
            };
        }
        is_clean
    }
}
