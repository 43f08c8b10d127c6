//! Tokens that a request holds of a lease before its outcome is known: all of its limits are charged or none,
//! and some requests report their actual cost only at the end.

use std::sync::Arc;

use tollgate::{Clock, Timestamp};
use tollgate_engine::policy::Counting;

use super::book::SpendStamp;
use super::{Lease, Leases};

/// A charge that is corrected once the actual cost is known.
pub(crate) trait AdjustableCharge: Send + Sync {
    /// Corrects the charge to the actual cost, more or less than the estimate. Returns false if the estimate
    /// was spent before, so that nothing was refunded.
    fn correct(&mut self, spent: u64) -> bool;

    /// Charges this much more, after the estimate has expired.
    fn charge_after_expiry(&mut self, more: u64);

    /// Extends the estimate's deadline.
    fn extend(&mut self, until: Timestamp);
}

/// Tokens that a request holds of a lease, until they are [spent](Self::spend) or
/// [corrected](AdjustableCharge::correct). If it is dropped, all tokens come back, whatever was reported to the
/// store in the meantime.
pub(crate) struct LeaseHold {
    pub(super) leases: Arc<Leases>,
    pub(super) lease: Arc<Lease>,
    pub(super) cost: u64,
    /// `None` once it has ended.
    pub(super) claim: Option<HoldKind>,
}

/// How a request holds its tokens.
#[derive(Clone, Copy)]
pub(super) enum HoldKind {
    /// By this number in the book: the store counts the tokens as held.
    Held(u64),
    /// Spent, with the stamp from before.
    Spent(SpendStamp),
}

impl LeaseHold {
    /// Spends the tokens: all limits of the request have allowed it.
    pub(crate) fn spend(mut self) {
        match self.claim {
            Some(HoldKind::Held(_)) => drop(self.correct(self.cost)),
            _ => self.claim = None,
        }
    }

    /// Reports released tokens to the store if no later request would. Tokens of a lease are spent here by the
    /// next request. Those of a limit that isn't leased, or of a lease that isn't registered, are returned for
    /// other nodes.
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
