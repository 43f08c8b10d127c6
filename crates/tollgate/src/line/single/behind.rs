//! What a request is told that comes while others wait: when a place at the end of the line passes, and what is
//! left then.

use std::fmt;
use std::time::Duration;

use tollgate_core::{Decision, Outcome, Timestamp};

use super::super::meter::AnyMeter;
use super::Single;

impl<T: Clone + fmt::Debug> Single<T> {
    /// What a request is told that has to stand behind all waiters, after an [`advance`](Self::advance) to this
    /// time. None if there are no waiters.
    pub(crate) fn behind(
        &self,
        meter: &AnyMeter<'_, T>,
        terms: &T,
        now: Timestamp,
        cost: u64,
    ) -> Option<Decision> {
        if self.is_empty() {
            return None;
        }
        let raw = meter.look(terms, now, cost);
        if raw.outcome == Outcome::Never {
            return Some(raw);
        }
        let at = self.place_at_the_end(meter, terms, now, cost);
        // A look at a later time hasn't let any waiter pass, though some will have passed by then.
        if at <= now {
            return Some(self.left_behind(meter, terms, now));
        }
        Some(self.refusal(meter, terms, now, at))
    }

    /// What will be left at least at a time when all waiters have passed.
    fn left_behind(&self, meter: &AnyMeter<'_, T>, terms: &T, now: Timestamp) -> Decision {
        let left = meter.look(terms, now, 0);
        let (cost, last) = (self.unbooked(), self.after_the_last(meter, terms, now, 0));
        // What was there before they came, without what they take …
        let kept = u128::from(left.remaining).saturating_sub(cost);
        // … or what comes back after the last has taken all there was, where it does so bit by bit.
        let come_back = match meter.takes(terms, 1) {
            Duration::ZERO => 0,
            interval => last.map_or(0, |last| (now - last).as_nanos() / interval.as_nanos()),
        };
        let remaining = u64::try_from(kept.max(come_back)).unwrap_or(u64::MAX);
        let reset_after = left.reset_after.max(meter.takes(terms, cost));
        Decision::new(
            Outcome::Allowed,
            left.limit,
            remaining.min(left.remaining),
            Duration::ZERO,
            reset_after,
        )
    }

    /// When a waiter at the end passes, or as near as is known: by what is booked and nobody else needs, or by what is
    /// left. After an advance to this time.
    pub(super) fn turn_at_the_end(
        &self,
        meter: &AnyMeter<'_, T>,
        terms: &T,
        now: Timestamp,
        cost: u64,
    ) -> Timestamp {
        let last = self.place_at_the_end(meter, terms, now, cost);
        let spare = self.spare_booking(cost);
        let spare = spare.filter(|_| meter.books_ahead(terms));
        spare.map_or(last, |spare| last.min(spare))
    }

    /// Whether one that comes now to wait might pass by this time.
    pub(crate) fn may_pass_by(
        &self,
        meter: &AnyMeter<'_, T>,
        terms: &T,
        now: Timestamp,
        cost: u64,
        deadline: Timestamp,
    ) -> bool {
        self.turn_at_the_end(meter, terms, now, cost) <= deadline
    }

    /// What waiters ask for beyond what is booked for them.
    fn unbooked(&self) -> u128 {
        self.line.cost().saturating_sub(self.open())
    }

    /// When a request at the end passes by what is left, or as near as is known. After an advance to this time.
    pub(super) fn place_at_the_end(
        &self,
        meter: &AnyMeter<'_, T>,
        terms: &T,
        now: Timestamp,
        cost: u64,
    ) -> Timestamp {
        let own = now + meter.look(terms, now, cost).wait();
        let behind = self.after_the_last(meter, terms, now, cost);
        behind.map_or(own, |behind| own.max(behind))
    }

    /// When so much more passes than everybody in line asks for, or as near as is known.
    fn after_the_last(
        &self,
        meter: &AnyMeter<'_, T>,
        terms: &T,
        now: Timestamp,
        cost: u64,
    ) -> Option<Timestamp> {
        let (_, first) = self.first_place()?;
        if self.is_booked_ahead() {
            // Behind all that is booked, and then those that nothing is booked for.
            let ahead = self.unbooked() + u128::from(cost);
            let first = now + meter.look(terms, now, 1).wait();
            let last = first + meter.takes(terms, ahead.saturating_sub(1));
            return Some(last.max(self.due));
        }
        let after_first = self.line.cost() - u128::from(first.cost);
        let ahead = after_first + u128::from(cost);
        Some(self.due + meter.takes(terms, ahead))
    }

    /// A refusal to one who may come again at this time.
    pub(super) fn refusal(
        &self,
        meter: &AnyMeter<'_, T>,
        terms: &T,
        now: Timestamp,
        at: Timestamp,
    ) -> Decision {
        let left = meter.look(terms, now, 0);
        let wait = at - now;
        let remaining = if self.is_empty() { left.remaining } else { 0 };
        let reset_after = left.reset_after.max(wait);
        Decision::new(Outcome::Denied, left.limit, remaining, wait, reset_after)
    }
}
