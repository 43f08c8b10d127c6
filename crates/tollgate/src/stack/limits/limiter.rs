//! One limiter as a level.

use std::sync::Arc;
use std::time::Duration;

use tollgate_core::{Decision, Timestamp, Unbooked};

use crate::Limiter;
use crate::cell::Cell;
use crate::clock::Clock;
use crate::home::sealed::Home;
use crate::stack::Kind;
use crate::stack::level::{AnyLimit, Exactly, LimitPointer};
use crate::stack::limit::{Breadth, FastCharge, Limit, Seen, Taken};
use crate::wait_queue::Post;
use crate::wait_queue::meter::QueueRequest;

impl<C: Clock> Limit for Limiter<C> {
    fn class(&self) -> (Kind, Breadth) {
        (Kind::Rate, Breadth::Shared)
    }

    fn now(&self, seen: &mut Seen) -> Timestamp {
        seen.read(&self.clock)
    }

    fn look(&self, now: Timestamp, cost: u64) -> Decision {
        self.peek_in_order(now, cost)
    }

    fn fits(&self, seen: &mut Seen, cost: u64) -> bool {
        let now = seen.read(&self.clock);
        if self.line.is_marked()
            && let Some(behind) = self.behind(now, cost)
        {
            return behind.is_allowed();
        }
        self.cell.fits(now, cost)
    }

    fn take(&self, now: Timestamp, cost: u64) -> Result<Taken, Decision> {
        let ticket = self.book_in_order(now, cost, Duration::ZERO);
        ticket
            .map(Taken::Charge)
            .map_err(|refused| *refused.decision())
    }

    fn charge(&self, seen: &mut Seen, cost: u64) -> Option<FastCharge> {
        let Cell::Word(word) = &self.cell else {
            return None;
        };
        if self.line.is_marked() {
            return None;
        }
        let (pace, after) = word.charge(seen.read(&self.clock), cost)?;
        FastCharge::new(after, pace, cost)
    }

    fn hold(&self, now: Timestamp, cost: u64, until: Timestamp) -> Result<Taken, Decision> {
        let limiter = &self;
        let held = limiter.visit(None, |state| {
            // Callers that haven't seen the mark read the clock before it was set: none of them has a later
            // time than this.
            let now = now.max(self.clock.now());
            state.waits.advance(limiter, now);
            if let Some(behind) = state
                .waits
                .behind(&QueueRequest::new(limiter, &(), now, cost))
                && !behind.is_allowed()
            {
                return Err(behind);
            }
            let held = self.cell.hold(now, cost, until);
            state.waits.is_held = self.cell.pass_time(now);
            held.map_err(Unbooked::decision)
        });
        held.map(Taken::Charge)
    }

    fn settle(&self, now: Timestamp, taken: Taken, spent: u64) {
        if let Taken::Charge(ticket) = taken {
            self.improve(now, || self.cell.settle(now, &ticket, spent));
        }
    }
}

impl<'a, C: Clock> From<&'a Arc<Limiter<C>>> for AnyLimit<'a> {
    fn from(limiter: &'a Arc<Limiter<C>>) -> Self {
        (&**limiter).into()
    }
}

impl<'a, C: Clock + 'a> From<Arc<Limiter<C>>> for AnyLimit<'a> {
    fn from(limiter: Arc<Limiter<C>>) -> Self {
        Self(LimitPointer::Owned(limiter))
    }
}

impl<C: Clock> Exactly for &Limiter<C> {}
impl<C: Clock> Exactly for &Arc<Limiter<C>> {}
impl<C: Clock> Exactly for Arc<Limiter<C>> {}
