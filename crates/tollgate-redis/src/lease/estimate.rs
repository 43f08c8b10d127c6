//! What a request has of a lease: spent for it, or held until it is known what it cost.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tollgate::{Clock, Decision, Outcome};
use tollgate_engine::policy::Counting;

use super::{Inner, Lease};

/// What a request holds of a lease until it is known what it cost. Dropped, all of it comes back.
pub(crate) struct Estimate {
    leases: Arc<Inner>,
    lease: Arc<Lease>,
    /// None once it has ended.
    number: Option<u64>,
}

impl Estimate {
    pub(super) fn new(leases: &Arc<Inner>, lease: &Arc<Lease>, number: u64) -> Self {
        Self {
            leases: Arc::clone(leases),
            lease: Arc::clone(lease),
            number: Some(number),
        }
    }

    /// The request cost so much.
    pub(crate) fn settle(mut self, spent: u64) {
        self.end(spent);
    }

    fn end(&mut self, spent: u64) {
        let Some(number) = self.number.take() else {
            return;
        };
        let (leases, lease) = (&self.leases, &self.lease);
        let most = lease.numbers.limit;
        let now = leases.clock.now();
        let is_news = lease.book.settle_estimate(now, (number, spent), most);
        // Tokens of a lease are spent here by the next request. Those of a limit that isn't leased, or of a key that isn't kept,
        // are returned for others.
        let is_here = lease.limit.counting() == Counting::Leased && leases.keeps(lease);
        if is_news && !is_here {
            leases.tell(lease);
        }
    }
}

impl Drop for Estimate {
    fn drop(&mut self) {
        self.end(0);
    }
}

impl fmt::Debug for Estimate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Estimate")
            .field("number", &self.number)
            .finish_non_exhaustive()
    }
}

/// What was spent for a request, until the request is told: if it has been dropped meanwhile, it is put back.
pub(super) struct Spoken {
    pub(super) leases: Arc<Inner>,
    pub(super) lease: Arc<Lease>,
    pub(super) cost: u64,
    pub(super) plans: u64,
    pub(super) left: u64,
    /// What it is held by, if it is an estimate.
    pub(super) estimate: Option<u64>,
}

impl Spoken {
    pub(super) fn heard(mut self) -> (Decision, Option<Estimate>) {
        self.cost = 0;
        let zero = Duration::ZERO;
        let decision = self.lease.decision(Outcome::Allowed, self.left, zero);
        (decision, self.held())
    }

    fn held(&mut self) -> Option<Estimate> {
        let number = self.estimate.take()?;
        Some(Estimate::new(&self.leases, &self.lease, number))
    }
}

impl Drop for Spoken {
    fn drop(&mut self) {
        if let Some(estimate) = self.held() {
            drop(estimate);
        } else if self.cost > 0 {
            self.leases.put_back(&self.lease, self.cost, self.plans);
        }
    }
}
