//! Concurrency limits in a composite limiter: permits that a request holds while it runs.

use std::borrow::Borrow;
use std::fmt;
use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

use tollgate_core::{Decision, Outcome, Timestamp};

use crate::cell::ChargeTicket;
use crate::clock::Clock;
use crate::concurrency::{
    ConcurrencyLimiter, Key, KeyedConcurrencyLimiter, Occupancy, Permit, PermitDenied,
    PermitOutcome, PermitSource, SharedSource,
};
use crate::stack::LimitKind;
use crate::stack::level::LimitRef;
use crate::stack::limit::{ClockReading, ComposableLimit, LevelCharge, LimitScope};
use crate::stack::{HeldResource, PermitPointer};

/// The decision about a cost, by how many permits are in use.
fn occupancy_decision(look: &Occupancy, cost: u64) -> Decision {
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

/// Acquires a permit, or returns the denial. A cost of 0 needs no permit, even if the limit is
/// exceeded.
#[inline]
fn try_charge(
    now: Timestamp,
    cost: u64,
    enter: impl FnOnce(u32) -> Result<PermitPointer, PermitDenied>,
) -> Result<LevelCharge, Decision> {
    if cost == 0 {
        return Ok(LevelCharge::Charge(ChargeTicket::Free(now)));
    }
    enter(u32::try_from(cost).unwrap_or(u32::MAX))
        .map(LevelCharge::Permit)
        .map_err(|denied| {
            let mut decision = occupancy_decision(denied.occupancy(), cost);
            if decision.is_allowed() {
                // A permit was released between the denial and this peek. The request stays denied.
                decision.outcome = Outcome::Denied;
            }
            decision
        })
}

/// Cancels the permit of a request that another limit denied.
fn settle_permit(taken: LevelCharge, spent: u64) {
    if let (LevelCharge::Permit(permit), 0) = (taken, spent) {
        permit.cancel();
    }
}

impl<C: Clock + 'static> ComposableLimit for Arc<ConcurrencyLimiter<C>> {
    fn kind_and_scope(&self) -> (LimitKind, LimitScope) {
        (LimitKind::Concurrency, LimitScope::Permits)
    }

    fn now(&self, seen: &mut ClockReading) -> Timestamp {
        seen.read(self.clock())
    }

    fn look(&self, _now: Timestamp, cost: u64) -> Decision {
        occupancy_decision(&self.peek(), cost)
    }

    fn fits(&self, _seen: &mut ClockReading, cost: u64) -> bool {
        cost == 0 || u32::try_from(cost).is_ok_and(|weight| self.gate.fits(weight))
    }

    fn take(&self, now: Timestamp, cost: u64) -> Result<LevelCharge, Decision> {
        try_charge(now, cost, |weight| {
            let home: SharedSource = Arc::<ConcurrencyLimiter<C>>::clone(self);
            Permit::try_new(home, weight).map(PermitPointer::Concurrency)
        })
    }

    fn settle(&self, _now: Timestamp, taken: LevelCharge, spent: u64) {
        settle_permit(taken, spent);
    }
}

impl<K, C, Q> ComposableLimit for Key<'_, Arc<KeyedConcurrencyLimiter<K, C>>, Q>
where
    K: Borrow<Q> + Send + Sync + 'static,
    C: Clock + 'static,
    Q: Hash + Eq + ToOwned<Owned = K> + fmt::Debug + Sync + ?Sized,
{
    fn kind_and_scope(&self) -> (LimitKind, LimitScope) {
        (LimitKind::Concurrency, LimitScope::Permits)
    }

    fn now(&self, seen: &mut ClockReading) -> Timestamp {
        seen.read(self.limiter().clock())
    }

    fn look(&self, _now: Timestamp, cost: u64) -> Decision {
        occupancy_decision(&self.peek(), cost)
    }

    fn take(&self, now: Timestamp, cost: u64) -> Result<LevelCharge, Decision> {
        try_charge(now, cost, |weight| {
            let permit = self.try_acquire_n(weight)?;
            Ok(PermitPointer::Boxed(Box::new(permit)))
        })
    }

    fn settle(&self, _now: Timestamp, taken: LevelCharge, spent: u64) {
        settle_permit(taken, spent);
    }
}

impl<H: PermitSource + Send + Sync> HeldResource for Permit<H> {
    fn end(self: Box<Self>, ending: PermitOutcome) {
        Permit::end(*self, ending);
    }

    fn cancel(self: Box<Self>) {
        Permit::cancel(*self);
    }

    fn report(&mut self, ending: PermitOutcome) {
        Permit::report(self, ending);
    }
}

impl<C: Clock + 'static> From<Arc<ConcurrencyLimiter<C>>> for LimitRef<'_> {
    fn from(limiter: Arc<ConcurrencyLimiter<C>>) -> Self {
        Self::owned(limiter)
    }
}
