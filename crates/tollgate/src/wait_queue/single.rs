//! The line of one limit, first come first served. Waiters are charged only at their turn, so one that leaves
//! frees its place at no cost to anybody, wherever it stood.
//!
//! It reads no clock, wakes nobody, and doesn't keep the limit's state: each call is handed the meter.

use std::fmt;
use std::mem;
use std::time::Duration;

use tollgate_core::{Decision, Outcome, Timestamp};

mod bookings;

use super::meter::{DynQueueLimit, QueueRequest};
use super::places::{Fifo, Id, Places, WaiterPlace};
use super::{Passed, Waits};
use crate::Refused;
use crate::cell::{Ticket, Undo};
use crate::clock_steps::SLACK;
use bookings::Bookings;

/// How long after its expected turn a waiter looks again if those before it took longer.
const BACKSTOP: Duration = Duration::from_millis(1);

/// All waiters for one limit.
#[derive(Debug)]
pub struct Single<T> {
    places: Places<WaitResult, FifoWaiter<T>>,
    line: Fifo,
    /// The latest visit or turn: no waiter passes at an earlier time, unless the clock was set back.
    seen: Timestamp,
    /// When the next waiter passes, as of the latest look.
    due: Timestamp,
    /// What is booked ahead, because reservations were made behind waiters. Rare, and large.
    bookings: Option<Box<Bookings<T>>>,
    /// When the first in line may ask again, if it was refused at its turn.
    refused_until: Timestamp,
    /// The latest newcomer found no room in the table for its key.
    lacks_room: bool,
    /// Whether something was out at the latest visit, and the limit doesn't keep it from draining by itself.
    pub(crate) is_held: bool,
}

/// When a waiter's turn came, or why it was refused, which is rare and large.
type WaitResult = Result<Timestamp, Box<Refused>>;

/// What is kept of a waiter.
#[derive(Debug)]
struct FifoWaiter<T> {
    terms: T,
    /// When it was told that it would pass: it looks then, whatever happens to those before it.
    told: Timestamp,
    /// What it was charged: when it passed, or ahead of its turn, because the table has no room for its key.
    charged: Option<Ticket>,
}

/// What became of a request that may wait.
#[derive(Debug)]
pub enum Entered {
    /// It passed immediately, and was charged this.
    Passed(Ticket),
    /// It stands in line.
    Waiting(Id),
}

impl<T: Clone + fmt::Debug> Single<T> {
    pub(crate) const fn new() -> Self {
        Self {
            places: Places::new(),
            line: Fifo::EMPTY,
            seen: Timestamp::ZERO,
            due: Timestamp::MAX,
            bookings: None,
            refused_until: Timestamp::ZERO,
            lacks_room: false,
            is_held: false,
        }
    }

    /// Nobody waits.
    pub(crate) const fn is_empty(&self) -> bool {
        self.line.len() == 0
    }

    /// There is no waiter, none that has passed without having noticed, and no reservation that was made behind one.
    pub(crate) const fn is_clean(&self) -> bool {
        self.places.used() == 0 && self.bookings.is_none()
    }

    /// Nobody waits, and no reservation is ahead that was made behind a waiter.
    pub(crate) const fn is_free(&self) -> bool {
        self.is_empty() && self.bookings.is_none()
    }

    /// Lets every waiter pass whose turn has come by `now`, in order, each as of its own time, and drops those
    /// whose deadline came first.
    pub(crate) fn advance(&mut self, meter: &DynQueueLimit<'_, T>, now: Timestamp) {
        if self.seen - now > SLACK {
            self.keep_pace(meter, now);
        }
        self.update_due(meter);
        while self.step(meter, now) {
            self.update_due(meter);
        }
        self.seen_at(meter, now);
        self.retire(meter, now);
    }

    /// From now on no waiter passes at an earlier time.
    fn seen_at(&mut self, meter: &DynQueueLimit<'_, T>, now: Timestamp) {
        if self.seen < now {
            self.seen = now;
            self.update_due(meter);
        }
    }

    fn step(&mut self, meter: &DynQueueLimit<'_, T>, now: Timestamp) -> bool {
        let Some((id, place)) = self.first_place() else {
            return false;
        };
        if meter.is_blocked(now) {
            let decision = meter.look(&place.extra.terms, now, place.cost);
            self.refuse(meter, now, id, Refused::Blocked(decision));
            return true;
        }
        let over = self.places.first_deadline();
        if let Some((deadline, late)) = over.filter(|(deadline, _)| *deadline < now)
            && deadline < self.due
        {
            let late_place = self.places.get(late).map(|place| &place.extra.terms);
            let request = |terms| QueueRequest::new(meter, terms, now, 0);
            let decision = late_place.map(|terms| self.refusal(&request(terms), self.due));
            let decision = decision.unwrap_or(Decision::UNLIMITED);
            self.refuse(meter, now, late, Refused::TooLate(decision));
            // Those behind it move up then, not before.
            self.seen = self.seen.max(deadline.plus_nanos(1));
            return true;
        }
        if self.due > now {
            return false;
        }
        if self.next_booking() == Some(self.due) {
            self.pass_booked(meter, now);
            return true;
        }
        let request = QueueRequest::new(meter, &place.extra.terms, now, place.cost);
        let charged = match place.extra.charged {
            Some(ticket) => Ok((ticket, self.due)),
            // At its own time, so that a late wake-up loses no rate.
            None => request.charge(self.due),
        };
        match charged {
            Ok((ticket, at)) => {
                self.seen = self.seen.max(at);
                if let Some(place) = self.places.get_mut(id) {
                    place.extra.charged = Some(ticket);
                }
                self.finish(id, Ok(at));
                true
            }
            Err(refused @ Refused::Never(_)) => {
                // A waiter that can never pass would stop the line.
                self.refuse(meter, now, id, refused);
                true
            }
            // A check that began earlier took the tokens, or there is no room for a new key.
            Err(refused) => {
                self.seen = self.seen.max(now);
                let wait = refused.decision().wait().max(BACKSTOP);
                self.refused_until = now + wait;
                self.update_due(meter);
                false
            }
        }
    }

    /// What the limit has left has changed, so a turn may come sooner.
    pub(crate) fn improved(&mut self, meter: &DynQueueLimit<'_, T>) {
        self.refused_until = Timestamp::ZERO;
        self.update_due(meter);
    }

    /// When the next waiter passes: by what is booked, or else the first in line by what is left.
    fn update_due(&mut self, meter: &DynQueueLimit<'_, T>) {
        let first = match self.first_place() {
            None => Timestamp::MAX,
            Some((_, place)) => match &place.extra.charged {
                Some(ticket) => ticket.at(),
                None => {
                    let from = self.seen.max(place.arrived);
                    let decision = meter.look(&place.extra.terms, from, place.cost);
                    let due = match decision.outcome {
                        // One that never passes goes at once.
                        Outcome::Allowed | Outcome::Never => from,
                        Outcome::Denied => from + decision.wait(),
                    };
                    due.max(self.refused_until)
                }
            },
        };
        self.due = match self.next_booking() {
            Some(booked) if !self.is_empty() => first.min(booked),
            _ => first,
        };
    }

    fn first_place(&self) -> Option<(Id, &WaiterPlace<WaitResult, FifoWaiter<T>>)> {
        let id = self.line.first()?;
        Some((id, self.places.get(id)?))
    }

    /// Passes at once, takes a place in line, or says why it can do neither.
    pub(crate) fn enter(
        &mut self,
        request: &QueueRequest<'_, T>,
        deadline: Option<Timestamp>,
    ) -> Result<Entered, Refused> {
        let QueueRequest { meter, now, .. } = *request;
        self.advance(meter, now);
        if self.is_empty() {
            match request.book(Duration::ZERO) {
                Ok(ticket) => return Ok(Entered::Passed(ticket)),
                Err(Refused::TooLate(decision)) if meter.is_blocked(now) => {
                    return Err(Refused::Blocked(decision));
                }
                Err(Refused::TooLate(_)) => {}
                Err(refused) => return Err(refused),
            }
        }
        let alone = request.look();
        if alone.outcome == Outcome::Never {
            return Err(Refused::Never(alone));
        }
        // It was refused though it would pass alone, so the table has no room for its key.
        self.lacks_room = alone.is_allowed() && (self.is_empty() || self.lacks_room);
        if self.lacks_room {
            return self.join_booked(request, deadline);
        }
        let told = self.earliest_turn_for(request);
        if deadline.is_some_and(|deadline| deadline < told) {
            return Err(Refused::TooLate(self.refusal(request, told)));
        }
        let waiter = FifoWaiter {
            terms: request.terms.clone(),
            told,
            charged: None,
        };
        let place = WaiterPlace::new(now, request.cost, deadline, waiter);
        Ok(self.stand(meter, place))
    }

    /// Takes a place in line, charged ahead: the table has no room for its key, and the bucket that such keys
    /// share has one order for all of them.
    fn join_booked(
        &mut self,
        request: &QueueRequest<'_, T>,
        deadline: Option<Timestamp>,
    ) -> Result<Entered, Refused> {
        let patience = deadline.map_or(Duration::MAX, |deadline| deadline - request.now);
        let ticket = match request.book(patience) {
            Ok(ticket) => ticket,
            // It wasn't refused for its deadline.
            Err(Refused::TooLate(decision)) if decision.wait() <= patience => {
                return Err(Refused::QueueFull(decision));
            }
            Err(Refused::TooFarAhead(decision)) => return Err(Refused::QueueFull(decision)),
            Err(refused) => return Err(refused),
        };
        let waiter = FifoWaiter {
            terms: request.terms.clone(),
            told: ticket.at(),
            charged: Some(ticket),
        };
        let place = WaiterPlace::new(request.now, 0, deadline, waiter);
        Ok(self.stand(request.meter, place))
    }

    fn stand(
        &mut self,
        meter: &DynQueueLimit<'_, T>,
        place: WaiterPlace<WaitResult, FifoWaiter<T>>,
    ) -> Entered {
        let id = self.places.insert(place);
        self.places.push(&mut self.line, id);
        self.update_due(meter);
        Entered::Waiting(id)
    }

    /// This waiter leaves. It costs nothing, and if it was charged without having noticed, that is given back
    /// unless others rely on it.
    pub(crate) fn leave(&mut self, meter: &DynQueueLimit<'_, T>, now: Timestamp, id: Id) {
        // Waiters whose turn came before now are charged as if this one had stayed; those whose turn is right
        // now aren't yet, as they may leave as well.
        if let Some(before) = now.as_nanos().checked_sub(1) {
            self.advance(meter, Timestamp::from_nanos(before));
        }
        self.seen_at(meter, now);
        self.retry_if_first_leaves(id);
        self.places.unlink(&mut self.line, id);
        if let Some(place) = self.places.remove(id)
            && let Some(ticket) = place.extra.charged
        {
            meter.give_back(&place.extra.terms, now, &ticket, Undo::Rest);
        }
        self.cancel_trailing_bookings(meter, now);
        self.update_due(meter);
    }

    /// The limit has changed: waiters that can never pass any more are refused. What was booked before, and not
    /// [taken back](Self::unbook_all), was booked at another rate: nobody passes by it.
    pub(crate) fn changed(&mut self, meter: &DynQueueLimit<'_, T>, now: Timestamp) {
        self.forget_bookings();
        let mut next = self.line.first();
        while let Some((id, place)) = next.and_then(|id| Some((id, self.places.get(id)?))) {
            next = place.next();
            let decision = meter.look(&place.extra.terms, now, place.cost);
            if decision.outcome == Outcome::Never {
                self.refuse(meter, now, id, Refused::Never(decision));
            }
        }
        self.improved(meter);
    }

    /// This waiter needn't wait any more; what was charged ahead for it is given back.
    fn refuse(&mut self, meter: &DynQueueLimit<'_, T>, now: Timestamp, id: Id, refused: Refused) {
        let waiter = self.places.get_mut(id).map(|place| &mut place.extra);
        if let Some(waiter) = waiter
            && let Some(ticket) = waiter.charged.take()
        {
            meter.give_back(&waiter.terms, now, &ticket, Undo::Rest);
        }
        self.finish(id, Err(Box::new(refused)));
        self.cancel_trailing_bookings(meter, now);
    }

    /// Takes a waiter out of the line and notes its result.
    fn finish(&mut self, id: Id, result: WaitResult) {
        self.retry_if_first_leaves(id);
        self.places.finish(&mut self.line, id, result);
    }

    /// What the limit has refused to the first waiter says nothing of the next one.
    fn retry_if_first_leaves(&mut self, id: Id) {
        if self.line.first() == Some(id) {
            self.refused_until = Timestamp::ZERO;
        }
    }

    // What a request is told that comes while others wait.

    /// What a request is told that has to stand behind all waiters, after an [`advance`](Self::advance) to this
    /// time. None if there are no waiters.
    pub(crate) fn behind(&self, request: &QueueRequest<'_, T>) -> Option<Decision> {
        if self.is_empty() {
            return None;
        }
        let raw = request.look();
        if raw.outcome == Outcome::Never {
            return Some(raw);
        }
        let at = self.turn_at_end(request);
        // A look at a later time hasn't let any waiter pass, though some will have passed by then.
        if at <= request.now {
            return Some(self.remaining_behind_waiters(request));
        }
        Some(self.refusal(request, at))
    }

    /// What will be left at least at a time when all waiters have passed.
    fn remaining_behind_waiters(&self, request: &QueueRequest<'_, T>) -> Decision {
        let QueueRequest {
            meter, terms, now, ..
        } = *request;
        let left = request.left();
        let cost = self.unbooked();
        let last = self.time_after_last(&QueueRequest {
            cost: 0,
            ..*request
        });
        // What was there before they came, without what they take …
        let kept = u128::from(left.remaining).saturating_sub(cost);
        // … or what comes back after the last has taken all there was, where it does so bit by bit.
        let reopen = match meter.takes(terms, 1) {
            Duration::ZERO => 0,
            interval => last.map_or(0, |last| (now - last).as_nanos() / interval.as_nanos()),
        };
        let remaining = u64::try_from(kept.max(reopen)).unwrap_or(u64::MAX);
        let reset_after = left.reset_after.max(meter.takes(terms, cost));
        let (limit, remaining) = (left.limit, remaining.min(left.remaining));
        Decision::new(
            Outcome::Allowed,
            limit,
            remaining,
            Duration::ZERO,
            reset_after,
        )
    }

    /// When a waiter at the end passes, or as near as is known: by what is booked and nobody else needs, or by what is
    /// left. After an advance to this time.
    fn earliest_turn_for(&self, request: &QueueRequest<'_, T>) -> Timestamp {
        let last = self.turn_at_end(request);
        let spare = self.spare_booking(request.cost);
        let spare = spare.filter(|_| request.meter.books_ahead(request.terms));
        spare.map_or(last, |spare| last.min(spare))
    }

    /// Whether one that comes now to wait might pass by this time.
    pub(crate) fn may_pass_before(
        &self,
        request: &QueueRequest<'_, T>,
        deadline: Timestamp,
    ) -> bool {
        self.earliest_turn_for(request) <= deadline
    }

    /// What waiters ask for beyond what is booked for them.
    fn unbooked(&self) -> u128 {
        self.line.cost().saturating_sub(self.open())
    }

    /// When a request at the end passes by what is left, or as near as is known. After an advance to this time.
    fn turn_at_end(&self, request: &QueueRequest<'_, T>) -> Timestamp {
        let own = request.now + request.look().wait();
        let behind = self.time_after_last(request);
        behind.map_or(own, |behind| own.max(behind))
    }

    /// When so much more passes than everybody in line asks for, or as near as is known.
    fn time_after_last(&self, request: &QueueRequest<'_, T>) -> Option<Timestamp> {
        let QueueRequest {
            meter, terms, now, ..
        } = *request;
        let (_, first) = self.first_place()?;
        if self.is_booked_ahead() {
            // Behind all that is booked, and then those that nothing is booked for.
            let ahead = self.unbooked() + u128::from(request.cost);
            let first = now + meter.look(terms, now, 1).wait();
            let last = first + meter.takes(terms, ahead.saturating_sub(1));
            return Some(last.max(self.due));
        }
        let after_first = self.line.cost() - u128::from(first.cost);
        let ahead = after_first + u128::from(request.cost);
        Some(self.due + meter.takes(terms, ahead))
    }

    /// A refusal to one who may come again at this time.
    fn refusal(&self, request: &QueueRequest<'_, T>, at: Timestamp) -> Decision {
        let left = request.left();
        let wait = at - request.now;
        let remaining = if self.is_empty() { left.remaining } else { 0 };
        let reset_after = left.reset_after.max(wait);
        Decision::new(Outcome::Denied, left.limit, remaining, wait, reset_after)
    }

    // A clock that was set back.

    /// A request came with a time far behind: the clock was set back, unless the thread was stopped between
    /// reading it and coming here.
    #[cold]
    fn keep_pace(&mut self, meter: &DynQueueLimit<'_, T>, now: Timestamp) {
        let now = meter.shows().max(now);
        if self.seen - now > SLACK {
            self.set_back(meter, now);
        }
    }

    /// The clock was set back to this time: no waiter waits until it has caught up.
    fn set_back(&mut self, meter: &DynQueueLimit<'_, T>, now: Timestamp) {
        let from = mem::replace(&mut self.seen, now);
        self.refused_until = Timestamp::ZERO;
        self.places.shift_deadlines(from, now);
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
                meter.give_back(&waiter.terms, now, &ticket, Undo::Rest);
                place.cost = ticket.cost();
                self.line.asks_again(place.cost);
            }
        }
    }
}

impl<T: Clone + fmt::Debug> Waits for Single<T> {
    fn first(&self) -> Option<(Id, Timestamp)> {
        Some((self.line.first()?, self.due))
    }

    fn look_again(&mut self, now: Timestamp, id: Id) -> Option<Timestamp> {
        let (first, due) = (self.line.first(), self.due);
        let place = self.places.get_mut(id)?;
        let turn = if first == Some(id) {
            due
        } else {
            if place.extra.told <= now {
                place.extra.told = due.max(now) + BACKSTOP;
            }
            place.extra.told
        };
        let over = place.deadline().map(|deadline| deadline.plus_nanos(1));
        Some(over.map_or(turn, |over| turn.min(over)))
    }

    fn take_done(&mut self) -> Vec<Id> {
        self.places.take_done()
    }

    fn collect(&mut self, id: Id, now: Timestamp) -> Option<Result<Passed, Refused>> {
        let place = self.places.get(id)?;
        let (waited, ticket) = (now - place.arrived, place.extra.charged);
        let result = self.places.collect(id)?;
        let passed = result.map(|at| Passed { at, waited, ticket });
        Some(passed.map_err(|refused| *refused))
    }

    fn rest(&mut self) -> bool {
        let is_clean = self.is_clean();
        if is_clean {
            *self = Self {
                seen: self.seen,
                is_held: self.is_held,
                ..Self::new()
            };
        }
        is_clean
    }
}
