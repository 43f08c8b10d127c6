//! What a request has of a lease while it isn't known what becomes of it: all of its limits are charged or none, and some
//! requests tell only in the end what they cost.

use std::sync::Arc;

use tollgate::{Clock, Timestamp};
use tollgate_engine::policy::Counting;

use super::book::SpendStamp;
use super::{Lease, Leases};

/// A charge that is corrected when it is known what the request cost.
pub(crate) trait AdjustableCharge: Send + Sync {
    /// The request cost so much of what was estimated, or more. False if the estimate was spent before, so that nothing
    /// came back.
    fn correct(&mut self, spent: u64) -> bool;

    /// The request cost so much more, and its estimate has ended.
    fn charge_after_expiry(&mut self, more: u64);

    /// Its time is so long.
    fn extend(&mut self, until: Timestamp);
}

/// What a request has of a lease, until it is [spent](Self::spend) or [corrected](AdjustableCharge::correct). Dropped, all of it
/// comes back, whatever the store was told meanwhile.
pub(crate) struct LeaseHold {
    pub(super) leases: Arc<Leases>,
    pub(super) lease: Arc<Lease>,
    pub(super) cost: u64,
    /// None once it has ended.
    pub(super) claim: Option<HoldKind>,
}

/// How a request has what it has.
#[derive(Clone, Copy)]
pub(super) enum HoldKind {
    /// By this number in the book: the store takes it for held.
    Held(u64),
    /// It was spent after this.
    Spent(SpendStamp),
}

impl LeaseHold {
    /// All limits of the request have passed.
    pub(crate) fn spend(mut self) {
        match self.claim {
            Some(HoldKind::Held(_)) => drop(self.correct(self.cost)),
            _ => self.claim = None,
        }
    }

    /// Tokens of a lease are spent here by the next request. Those of a limit that isn't leased, or of a key that isn't kept,
    /// are returned for others.
    fn report_if_needed(&self, is_news: bool) {
        let (leases, lease) = (&self.leases, &self.lease);
        let has_leased_tokens =
            lease.limit.counting() == Counting::Leased && leases.is_registered(lease);
        if is_news && !has_leased_tokens {
            leases.report_in_background(lease);
        }
    }
}

impl AdjustableCharge for LeaseHold {
    fn correct(&mut self, spent: u64) -> bool {
        let Some(HoldKind::Held(number)) = self.claim.take() else {
            return false;
        };
        let (now, book) = (self.leases.clock.now(), &self.lease.book);
        let is_out = book.holds_estimate(now, number);
        let is_news = book.settle_estimate(now, number, spent, self.lease.numbers.max_burst);
        self.report_if_needed(is_news);
        is_out
    }

    fn charge_after_expiry(&mut self, more: u64) {
        let (now, most) = (self.leases.clock.now(), self.lease.numbers.max_burst);
        let is_news = self.lease.book.charge_late(now, more, most);
        self.report_if_needed(is_news);
    }

    fn extend(&mut self, until: Timestamp) {
        if let Some(HoldKind::Held(number)) = self.claim {
            self.lease.book.prolong(number, until);
        }
    }
}

impl Drop for LeaseHold {
    fn drop(&mut self) {
        match self.claim {
            Some(HoldKind::Held(_)) => drop(self.correct(0)),
            Some(HoldKind::Spent(stamp)) if self.cost > 0 => {
                if self.leases.is_registered(&self.lease) {
                    let now = self.leases.clock.now();
                    self.lease.book.restore(now, self.cost, stamp);
                } else {
                    self.leases.return_transient_tokens(&self.lease, self.cost);
                }
            }
            _ => {}
        }
    }
}
