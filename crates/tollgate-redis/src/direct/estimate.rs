//! The last step of a request whose costs were estimates: what it did cost is put right when it is over.

use std::sync::Arc;

use tollgate::{
    Clock,
    stack::{Pass, Settled},
};
use tollgate_engine::backend::Check;
use tollgate_engine::policy::Unsettled;

use super::Direct;
use crate::lease::Estimate;
use crate::question::{Op, Question};

/// Whether a check's cost is an estimate.
pub(super) fn is_held(check: &Check<'_>) -> bool {
    check.cost > 0 && check.limit.is_estimated()
}

/// What a request is charged in the end, where its cost was estimated.
fn spent(settled: Settled, unsettled: Unsettled, estimate: u64) -> u64 {
    match (settled, unsettled) {
        (Settled::Spent(spent), _) => spent,
        (Settled::Charged, _) | (Settled::Unsaid, Unsettled::Charge) => estimate,
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

impl Direct {
    /// Puts right what was charged, of windows, logs and quotas, when it is known what the request cost: the rest
    /// is given back to the window or period that was charged, and what it cost beyond is charged as far as there
    /// is room. If the store can't be told, it stays charged.
    pub(super) fn hold_charge(
        &self,
        check: &Check<'_>,
        (question, since): (Question, u64),
        pass: &mut Pass,
    ) {
        let (estimate, unsettled) = (question.cost, unsettled(check));
        let (store, at) = (Arc::clone(&self.store), self.at());
        let (host, clock) = (self.host.clone(), self.clock.clone());
        let within = check.limit.settle().map(|settle| settle.within);
        let until = clock.now() + within.unwrap_or_default();
        pass.hold_estimate(move |settled| {
            if clock.now() >= until && settled != Settled::Cancelled {
                return;
            }
            let spent = spent(settled, unsettled, estimate);
            let (op, cost) = if spent > estimate {
                (Op::AtMost, spent - estimate)
            } else {
                (Op::GiveBack(since), estimate - spent)
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
