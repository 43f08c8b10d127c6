//! Concurrency limits as levels: by slots, which a request holds while it runs.

use std::borrow::Borrow;
use std::fmt;
use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

use tollgate_core::{Decision, Outcome, Timestamp};

use crate::cell::Ticket;
use crate::clock::Clock;
use crate::concurrency::{
    ConcurrencyLimiter, Ending, Key, KeyedConcurrency, NoPermit, Occupancy, Permit, PermitHome,
    SharedSource,
};
use crate::stack::Kind;
use crate::stack::level::AnyLimit;
use crate::stack::limit::{Breadth, Limit, Seen, Taken};
use crate::stack::{PermitPointer, Slot};

/// How full a limit is, as a decision about so much more.
fn decision(look: &Occupancy, cost: u64) -> Decision {
    let fits = u32::try_from(cost).is_ok_and(|weight| look.fits(weight));
    let outcome = match cost {
        // A cost of 0 peeks.
        0 => Outcome::Allowed,
        _ if fits => Outcome::Allowed,
        _ if cost > u64::from(look.limit) => Outcome::Never,
        _ => Outcome::Denied,
    };
    let retry_after = match outcome {
        Outcome::Never => Duration::MAX,
        _ => Duration::ZERO,
    };
    Decision::new(
        outcome,
        u64::from(look.limit),
        u64::from(look.available()),
        retry_after,
        Duration::ZERO,
    )
}

/// A slot, or why not. A cost of 0 needs none, even if more is in use than there is room for.
#[inline]
fn taken(
    now: Timestamp,
    cost: u64,
    enter: impl FnOnce(u32) -> Result<PermitPointer, NoPermit>,
) -> Result<Taken, Decision> {
    if cost == 0 {
        return Ok(Taken::Charge(Ticket::Free(now)));
    }
    enter(u32::try_from(cost).unwrap_or(u32::MAX))
        .map(Taken::Slot)
        .map_err(|refused| {
            let mut told = decision(refused.occupancy(), cost);
            if told.is_allowed() {
                // One was given back after it was refused, and before it was looked why.
                told.outcome = Outcome::Denied;
            }
            told
        })
}

/// Ends a slot whose request came to nothing.
fn settle(taken: Taken, spent: u64) {
    if let (Taken::Slot(permit), 0) = (taken, spent) {
        permit.cancel();
    }
}

impl<C: Clock + 'static> Limit for Arc<ConcurrencyLimiter<C>> {
    fn class(&self) -> (Kind, Breadth) {
        (Kind::Concurrency, Breadth::Slots)
    }

    fn now(&self, seen: &mut Seen) -> Timestamp {
        seen.read(self.clock())
    }

    fn look(&self, _now: Timestamp, cost: u64) -> Decision {
        decision(&self.peek(), cost)
    }

    fn fits(&self, _seen: &mut Seen, cost: u64) -> bool {
        cost == 0 || u32::try_from(cost).is_ok_and(|weight| self.gate.fits(weight))
    }

    fn take(&self, now: Timestamp, cost: u64) -> Result<Taken, Decision> {
        taken(now, cost, |weight| {
            let home: SharedSource = Arc::<ConcurrencyLimiter<C>>::clone(self);
            Permit::try_new(home, weight).map(PermitPointer::Shared)
        })
    }

    fn settle(&self, _now: Timestamp, taken: Taken, spent: u64) {
        settle(taken, spent);
    }
}

impl<K, C, Q> Limit for Key<'_, Arc<KeyedConcurrency<K, C>>, Q>
where
    K: Borrow<Q> + Send + Sync + 'static,
    C: Clock + 'static,
    Q: Hash + Eq + ToOwned<Owned = K> + fmt::Debug + Sync + ?Sized,
{
    fn class(&self) -> (Kind, Breadth) {
        (Kind::Concurrency, Breadth::Slots)
    }

    fn now(&self, seen: &mut Seen) -> Timestamp {
        seen.read(self.keyed().clock())
    }

    fn look(&self, _now: Timestamp, cost: u64) -> Decision {
        decision(&self.peek(), cost)
    }

    fn take(&self, now: Timestamp, cost: u64) -> Result<Taken, Decision> {
        taken(now, cost, |weight| {
            let permit = self.try_acquire_n(weight)?;
            Ok(PermitPointer::Keyed(Box::new(permit)))
        })
    }

    fn settle(&self, _now: Timestamp, taken: Taken, spent: u64) {
        settle(taken, spent);
    }
}

impl<H: PermitHome + Send + Sync> Slot for Permit<H> {
    fn end(self: Box<Self>, ending: Ending) {
        Permit::end(*self, ending);
    }

    fn cancel(self: Box<Self>) {
        Permit::cancel(*self);
    }

    fn tell(&mut self, ending: Ending) {
        Permit::tell(self, ending);
    }
}

impl<C: Clock + 'static> From<Arc<ConcurrencyLimiter<C>>> for AnyLimit<'_> {
    fn from(limiter: Arc<ConcurrencyLimiter<C>>) -> Self {
        Self::owned(limiter)
    }
}
