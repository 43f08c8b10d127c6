//! What a request has of a lease: spent for it, or held until it is known what it cost.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tollgate::{Clock, Decision, Outcome, Timestamp};
use tollgate_engine::policy::Counting;

use super::{Inner, Lease, Stamp};

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

    /// The request cost so much. False if all of it was spent before, because its time or that of the lease was over.
    pub(crate) fn settle(&mut self, spent: u64) -> bool {
        let Some(number) = self.number.take() else {
            return false;
        };
        let now = self.leases.clock.now();
        let is_out = self.lease.book.is_out(now, number);
        let most = self.lease.numbers.limit;
        let is_news = self.lease.book.settle_estimate(now, number, spent, most);
        self.tell(is_news);
        is_out
    }

    /// The request cost so much more than was charged when its estimate ended.
    pub(crate) fn charge_late(&self, more: u64) {
        let (now, most) = (self.leases.clock.now(), self.lease.numbers.limit);
        let is_news = self.lease.book.charge_late(now, more, most);
        self.tell(is_news);
    }

    /// It is spent by itself then, and not before.
    pub(crate) fn prolong(&self, until: Timestamp) {
        if let Some(number) = self.number {
            self.lease.book.prolong(number, until);
        }
    }

    /// Tokens of a lease are spent here by the next request. Those of a limit that isn't leased, or of a key that isn't kept,
    /// are returned for others.
    fn tell(&self, is_news: bool) {
        let (leases, lease) = (&self.leases, &self.lease);
        let is_here = lease.limit.counting() == Counting::Leased && leases.keeps(lease);
        if is_news && !is_here {
            leases.tell(lease);
        }
    }
}

impl Drop for Estimate {
    fn drop(&mut self) {
        self.settle(0);
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
    pub(super) stamp: Stamp,
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
        } else if self.cost > 0 && !self.leases.keeps(&self.lease) {
            self.leases.return_passing(&self.lease, self.cost);
        } else if self.cost > 0 {
            self.leases.put_back(&self.lease, self.cost, self.stamp);
        }
    }
}
