//! Costs that are estimates: held of a lease, or charged and put right when the request is over.

use std::sync::Arc;
use std::time::Duration;

use tollgate::{
    Clock, Decision,
    stack::{Pass, Settled},
};
use tollgate_engine::backend::Check;
use tollgate_engine::policy::{Settle, Unsettled};

use super::{Compiled, Direct};
use crate::error::StoreError;
use crate::lease::{Estimate, LeaseKey, Leased};
use crate::question::{Op, Question};
use crate::store::Patience;

/// Whether a check's cost is an estimate.
pub(super) fn is_held(check: &Check<'_>) -> bool {
    check.cost > 0 && check.limit.is_estimated()
}

/// What a request is charged in the end of an estimate.
fn spent(settled: Settled, unsettled: Unsettled, estimate: u64) -> u64 {
    match (settled, unsettled) {
        (Settled::Spent(spent), _) => spent,
        (Settled::Unsaid, Unsettled::Charge) => estimate,
        (Settled::Unsaid, Unsettled::Refund) | (Settled::Cancelled, _) => 0,
    }
}

/// Holds an estimate of a lease for as long as the request runs.
pub(super) fn hold_estimate(check: &Check<'_>, estimate: Estimate, pass: &mut Pass) {
    let (cost, unsettled) = (check.cost, unsettled(check));
    pass.hold_estimate(move |settled| estimate.settle(spent(settled, unsettled, cost)));
}

fn unsettled(check: &Check<'_>) -> Unsettled {
    check
        .limit
        .settle()
        .map_or_else(Unsettled::default, |settle| settle.unsettled)
}

fn within(check: &Check<'_>) -> Duration {
    let settle = |settle: Settle| settle.within;
    check.limit.settle().map_or(Duration::ZERO, settle)
}

impl Direct {
    /// Holds the cost of a check of a level: one record of this node and key in the store, however many requests
    /// hold some.
    pub(super) async fn hold_lease(
        &self,
        check: &Check<'_>,
        compiled: &Compiled,
        leased: &Leased,
        patience: &mut Patience,
    ) -> Result<(Decision, Option<Estimate>), StoreError> {
        let place = LeaseKey::of(leased, check);
        let key = || compiled.key(check).into();
        let held = self
            .leases
            .hold((place, check), leased, key, (within(check), patience));
        held.await
    }

    /// Puts right what was charged, of windows, logs and quotas, when it is known what the request cost: the rest
    /// is given back to the window or period that was charged, and what it cost beyond is charged as far as there
    /// is room. What can't be said to the store stays charged.
    pub(super) fn hold_charge(
        &self,
        check: &Check<'_>,
        (question, since): (Question, u64),
        pass: &mut Pass,
    ) {
        let (estimate, unsettled) = (question.cost, unsettled(check));
        let (store, at) = (Arc::clone(&self.store), self.at());
        let (host, clock) = (self.host.clone(), self.clock.clone());
        let until = clock.now() + within(check);
        pass.hold_estimate(move |settled| {
            if clock.now() >= until && settled != Settled::Cancelled {
                return;
            }
            let spent = spent(settled, unsettled, estimate);
            let (op, cost) = match spent > estimate {
                true => (Op::AtMost, spent - estimate),
                false => (Op::GiveBack(since), estimate - spent),
            };
            if cost > 0 {
                let question = Question {
                    op,
                    cost,
                    ..question
                };
                host.spawn(async move {
                    let _ = store.ask(vec![question], at).await;
                });
            }
        });
    }
}
