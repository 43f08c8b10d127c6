//! The last step of a request whose costs were estimates: the charge is corrected to the actual cost, or the
//! excess is charged if the estimate has expired before.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;
use tollgate::stack::{EstimateOutcome, ExpireScope, HeldEstimate, HeldPermits, SettlementTiming};
use tollgate::{Clock, Timestamp};
use tollgate_engine::backend::Check;
use tollgate_engine::policy::UnsettledAction;

use super::StoreClient;
use super::execute::Charge;
use crate::host::{Host, HostClock};
use crate::lease::{AdjustableCharge, LeaseHold};
use crate::query::{StoreOp, StoreQuery};
use crate::store::Store;

/// Whether a check's cost is an estimate.
pub(super) fn is_estimate(check: &Check<'_>) -> bool {
    check.cost > 0 && check.limit.is_estimated()
}

/// The final charge of a request whose cost was estimated.
fn final_charge(settled: EstimateOutcome, unsettled: UnsettledAction, estimate: u64) -> u64 {
    match (settled, unsettled) {
        (EstimateOutcome::Spent(spent), _) => spent,
        (EstimateOutcome::Charged, _) | (EstimateOutcome::NotReported, UnsettledAction::Charge) => {
            estimate
        }
        (EstimateOutcome::NotReported, UnsettledAction::Refund)
        | (EstimateOutcome::Cancelled, _) => 0,
    }
}

/// An estimate and its deadline, wherever it is charged.
struct TimedCharge<C> {
    charged: C,
    cost: u64,
    unsettled: UnsettledAction,
    within: Duration,
    expires_at: Timestamp,
    clock: HostClock,
    /// The charge that stays, once the estimate expired before the request reported its actual cost.
    final_charge: Option<u64>,
}

impl<C: AdjustableCharge> TimedCharge<C> {
    fn new(charged: C, check: &Check<'_>, clock: HostClock) -> Self {
        let (unsettled, within) = settle_terms(check);
        Self {
            charged,
            cost: check.cost,
            unsettled,
            within,
            expires_at: clock.now() + within,
            clock,
            final_charge: None,
        }
    }

    fn is_late(&self) -> bool {
        self.clock.now() >= self.expires_at
    }

    fn finish(&mut self, charged: u64) {
        let is_corrected = self.charged.correct(charged);
        self.final_charge = Some(if is_corrected { charged } else { self.cost });
    }
}

impl<C: AdjustableCharge> HeldEstimate for TimedCharge<C> {
    fn settle(&mut self, settled: EstimateOutcome) -> SettlementTiming {
        let is_late = self.final_charge.is_some() || self.is_late();
        if is_late && self.final_charge.is_none() && settled != EstimateOutcome::Cancelled {
            self.expire(ExpireScope::All);
        }
        match (self.final_charge, settled) {
            (None, settled) => {
                let spent = final_charge(settled, self.unsettled, self.cost);
                self.finish(spent);
                SettlementTiming::InTime
            }
            (Some(charged), EstimateOutcome::Spent(spent)) => {
                if spent > charged {
                    self.charged.charge_after_expiry(spent - charged);
                }
                SettlementTiming::Late
            }
            (Some(_), _) => SettlementTiming::InTime,
        }
    }

    fn time_left(&self) -> Option<Duration> {
        let is_held = self.final_charge.is_none();
        is_held.then(|| self.expires_at - self.clock.now())
    }

    fn expire(&mut self, which: ExpireScope) {
        if self.final_charge.is_none() && (which == ExpireScope::All || self.is_late()) {
            self.finish(final_charge(
                EstimateOutcome::NotReported,
                self.unsettled,
                self.cost,
            ));
        }
    }

    fn renew(&mut self) {
        if self.final_charge.is_none() && !self.is_late() {
            self.expires_at = self.clock.now() + self.within;
            self.charged.extend(self.expires_at);
        }
    }
}

/// A charge in a window, a log or a quota.
struct StoredCharge {
    question: StoreQuery,
    /// The operation that refunds it.
    back: StoreOp,
    store: Arc<Store>,
    at: Option<u64>,
    host: Host,
    /// The latest correction. The next one waits for it: a refund makes the room for a later charge, whichever
    /// task runs first.
    last_report: Option<JoinHandle<()>>,
}

impl StoredCharge {
    fn send_correction(&mut self, op: StoreOp, cost: u64) {
        if cost == 0 {
            return;
        }
        let question = StoreQuery {
            op,
            cost,
            ..self.question.clone()
        };
        let (store, at, before) = (Arc::clone(&self.store), self.at, self.last_report.take());
        self.last_report = Some(self.host.spawn(async move {
            if let Some(before) = before {
                let _ = before.await;
            }
            let _ = store.ask(vec![question], at).await;
        }));
    }
}

impl AdjustableCharge for StoredCharge {
    fn correct(&mut self, spent: u64) -> bool {
        let estimate = self.question.cost;
        if spent > estimate {
            self.send_correction(StoreOp::AtMost, spent - estimate);
        } else {
            self.send_correction(self.back, estimate - spent);
        }
        true
    }

    fn charge_after_expiry(&mut self, more: u64) {
        self.send_correction(StoreOp::AtMost, more);
    }

    fn extend(&mut self, _: Timestamp) {}
}

fn settle_terms(check: &Check<'_>) -> (UnsettledAction, Duration) {
    let settle = check.limit.settle();
    settle.map_or_else(Default::default, |settle| (settle.unsettled, settle.within))
}

/// How long a lease holds an estimate before it counts as spent. If an expired estimate is to be refunded, the
/// lease holds it without an end, because the request refunds it itself.
pub(super) fn lease_hold_time(check: &Check<'_>) -> Duration {
    match settle_terms(check) {
        (UnsettledAction::Refund, _) => Duration::MAX,
        (_, within) => within,
    }
}

impl StoreClient {
    /// Holds an estimate of a lease for as long as the request runs.
    pub(super) fn hold_leased_estimate(
        &self,
        check: &Check<'_>,
        estimate: LeaseHold,
        pass: &mut HeldPermits,
    ) {
        pass.hold_estimate(TimedCharge::new(estimate, check, self.clock.clone()));
    }

    /// Corrects a charge in a window, a log or a quota once the actual cost is known. What is left is refunded
    /// to the window or period that was charged. Cost beyond the estimate is charged as far as there is room.
    /// If the store is unreachable, the charge stays as it is.
    pub(super) fn hold_stored_charge(
        &self,
        check: &Check<'_>,
        Charge {
            question,
            refund_op: back,
            ..
        }: Charge,
        pass: &mut HeldPermits,
    ) {
        let charge = StoredCharge {
            question,
            back,
            store: Arc::clone(&self.store),
            at: self.caller_time(),
            host: self.host.clone(),
            last_report: None,
        };
        pass.hold_estimate(TimedCharge::new(charge, check, self.clock.clone()));
    }
}
