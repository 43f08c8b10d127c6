//! A single `Limiter` in a composite limiter.

use std::sync::Arc;
use std::time::Duration;

use tollgate_core::{BookingError, Decision, Timestamp};

use crate::Limiter;
use crate::cell::LimitCell;
use crate::clock::Clock;
use crate::queued_limit::sealed::QueuedLimit;
use crate::stack::LimitKind;
use crate::stack::level::{LimitPointer, LimitRef, SettlesExactly};
use crate::stack::limit::{ClockReading, ComposableLimit, FastCharge, LevelCharge, LimitScope};
use crate::wait_queue::WaitQueue;
use crate::wait_queue::queue_limit::QueueRequest;

impl<C: Clock> ComposableLimit for Limiter<C> {
    fn kind_and_scope(&self) -> (LimitKind, LimitScope) {
        (LimitKind::Rate, LimitScope::Shared)
    }

    fn now(&self, seen: &mut ClockReading) -> Timestamp {
        seen.read(&self.clock)
    }

    fn look(&self, now: Timestamp, cost: u64) -> Decision {
        self.peek_in_order(now, cost)
    }

    fn fits(&self, seen: &mut ClockReading, cost: u64) -> bool {
        let now = seen.read(&self.clock);
        if self.line.is_marked()
            && let Some(behind) = self.decision_behind_waiters(now, cost)
        {
            return behind.is_allowed();
        }
        self.cell.would_pass(now, cost)
    }

    fn take(&self, now: Timestamp, cost: u64) -> Result<LevelCharge, Decision> {
        let ticket = self.book_in_order(now, cost, Duration::ZERO);
        ticket
            .map(LevelCharge::Charge)
            .map_err(|refused| *refused.decision())
    }

    fn charge(&self, seen: &mut ClockReading, cost: u64) -> Option<FastCharge> {
        let LimitCell::Word(word) = &self.cell else {
            return None;
        };
        if self.line.is_marked() {
            return None;
        }
        let (pace, after) = word.charge(seen.read(&self.clock), cost)?;
        FastCharge::new(after, pace, cost)
    }

    fn hold(&self, now: Timestamp, cost: u64, until: Timestamp) -> Result<LevelCharge, Decision> {
        let limiter = &self;
        let held = limiter.visit(None, |state| {
            // Callers that haven't seen the mark read the clock before it was set, so none of them has
            // a later time than this reading.
            let now = now.max(self.clock.now());
            state.waits.advance(limiter, now);
            if let Some(behind) =
                state
                    .waits
                    .decision_behind_waiters(&QueueRequest::new(limiter, &(), now, cost))
                && !behind.is_allowed()
            {
                return Err(behind);
            }
            let held = self.cell.hold(now, cost, until);
            state.waits.is_held = self.cell.expire_holds(now);
            held.map_err(BookingError::decision)
        });
        held.map(LevelCharge::Charge)
    }

    fn settle(&self, now: Timestamp, taken: LevelCharge, spent: u64) {
        if let LevelCharge::Charge(ticket) = taken {
            self.change_and_notify(now, || self.cell.settle(now, &ticket, spent));
        }
    }
}

impl<'a, C: Clock> From<&'a Arc<Limiter<C>>> for LimitRef<'a> {
    fn from(limiter: &'a Arc<Limiter<C>>) -> Self {
        (&**limiter).into()
    }
}

impl<'a, C: Clock + 'a> From<Arc<Limiter<C>>> for LimitRef<'a> {
    fn from(limiter: Arc<Limiter<C>>) -> Self {
        Self(LimitPointer::Owned(limiter))
    }
}

impl<C: Clock> SettlesExactly for &Limiter<C> {}
impl<C: Clock> SettlesExactly for &Arc<Limiter<C>> {}
impl<C: Clock> SettlesExactly for Arc<Limiter<C>> {}
