//! The last step of a request whose costs were estimates: what it did cost is put right when it is over, and charged if it
//! is said too late for that.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;
use tollgate::stack::{Expire, Pass, Settled, Settlement, TimedEstimate};
use tollgate::{Clock, Timestamp};
use tollgate_engine::backend::Check;
use tollgate_engine::policy::Unsettled;

use super::Direct;
use super::execute::Charge;
use crate::host::{Host, HostClock};
use crate::lease::{Charged, LeaseHold};
use crate::query::{StoreOp, StoreQuery};
use crate::store::Store;

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

/// An estimate and its time, wherever it is charged.
struct TimedCharge<C> {
    charged: C,
    cost: u64,
    unsettled: Unsettled,
    within: Duration,
    until: Timestamp,
    clock: HostClock,
    /// What stays charged, once it has ended before the request said what it cost.
    ended: Option<u64>,
}

impl<C: Charged> TimedCharge<C> {
    fn new(charged: C, check: &Check<'_>, clock: HostClock) -> Self {
        let (unsettled, within) = terms(check);
        Self {
            charged,
            cost: check.cost,
            unsettled,
            within,
            until: clock.now() + within,
            clock,
            ended: None,
        }
    }

    fn is_late(&self) -> bool {
        self.clock.now() >= self.until
    }

    fn end(&mut self, charged: u64) {
        let is_corrected = self.charged.correct(charged);
        self.ended = Some(if is_corrected { charged } else { self.cost });
    }
}

impl<C: Charged> TimedEstimate for TimedCharge<C> {
    fn settle(&mut self, settled: Settled) -> Settlement {
        let is_late = self.ended.is_some() || self.is_late();
        if is_late && self.ended.is_none() && settled != Settled::Cancelled {
            self.expire(Expire::All);
        }
        match (self.ended, settled) {
            (None, settled) => {
                let spent = spent(settled, self.unsettled, self.cost);
                self.end(spent);
                Settlement::InTime
            }
            (Some(charged), Settled::Spent(spent)) => {
                if spent > charged {
                    self.charged.charge_late(spent - charged);
                }
                Settlement::Late
            }
            (Some(_), _) => Settlement::InTime,
        }
    }

    fn time_left(&self) -> Option<Duration> {
        let is_held = self.ended.is_none();
        is_held.then(|| self.until - self.clock.now())
    }

    fn expire(&mut self, which: Expire) {
        if self.ended.is_none() && (which == Expire::All || self.is_late()) {
            self.end(spent(Settled::Unsaid, self.unsettled, self.cost));
        }
    }

    fn renew(&mut self) {
        if self.ended.is_none() && !self.is_late() {
            self.until = self.clock.now() + self.within;
            self.charged.prolong(self.until);
        }
    }
}

/// What was charged of a window, a log or a quota.
struct StoredCharge {
    question: StoreQuery,
    /// What gives it back.
    back: StoreOp,
    store: Arc<Store>,
    at: Option<u64>,
    host: Host,
    /// What was told last: a charge that was given back makes the room for the next, whichever task runs first.
    telling: Option<JoinHandle<()>>,
}

impl StoredCharge {
    fn tell(&mut self, op: StoreOp, cost: u64) {
        if cost == 0 {
            return;
        }
        let question = StoreQuery {
            op,
            cost,
            ..self.question.clone()
        };
        let (store, at, before) = (Arc::clone(&self.store), self.at, self.telling.take());
        self.telling = Some(self.host.spawn(async move {
            if let Some(before) = before {
                let _ = before.await;
            }
            let _ = store.ask(vec![question], at).await;
        }));
    }
}

impl Charged for StoredCharge {
    fn correct(&mut self, spent: u64) -> bool {
        let estimate = self.question.cost;
        if spent > estimate {
            self.tell(StoreOp::AtMost, spent - estimate);
        } else {
            self.tell(self.back, estimate - spent);
        }
        true
    }

    fn charge_late(&mut self, more: u64) {
        self.tell(StoreOp::AtMost, more);
    }

    fn prolong(&mut self, _: Timestamp) {}
}

fn terms(check: &Check<'_>) -> (Unsettled, Duration) {
    let settle = check.limit.settle();
    settle.map_or_else(Default::default, |settle| (settle.unsettled, settle.within))
}

/// For how long a lease holds an estimate by itself. One that is given back in the end is held until somebody does that:
/// a lease would count it as spent.
pub(super) fn lease_hold_time(check: &Check<'_>) -> Duration {
    match terms(check) {
        (Unsettled::Refund, _) => Duration::MAX,
        (_, within) => within,
    }
}

impl Direct {
    /// Holds an estimate of a lease for as long as the request runs.
    pub(super) fn hold_leased_estimate(
        &self,
        check: &Check<'_>,
        estimate: LeaseHold,
        pass: &mut Pass,
    ) {
        pass.hold_timed_estimate(TimedCharge::new(estimate, check, self.clock.clone()));
    }

    /// Puts right what was charged, of windows, logs and quotas, when it is known what the request cost: the rest
    /// is given back to the window or period that was charged, and what it cost beyond is charged as far as there
    /// is room. If the store can't be told, it stays charged.
    pub(super) fn hold_stored_charge(
        &self,
        check: &Check<'_>,
        Charge { question, back, .. }: Charge,
        pass: &mut Pass,
    ) {
        let charge = StoredCharge {
            question,
            back,
            store: Arc::clone(&self.store),
            at: self.at(),
            host: self.host.clone(),
            telling: None,
        };
        pass.hold_timed_estimate(TimedCharge::new(charge, check, self.clock.clone()));
    }
}
