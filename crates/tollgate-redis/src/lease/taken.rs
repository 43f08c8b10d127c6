//! What a request takes of a lease while its other limits are asked: all are charged, or none.

use std::fmt;
use std::sync::Arc;

use tollgate::{Clock, Decision, Timestamp};

use super::asks::Wants;
use super::book::{Spent, Stamp};
use super::estimate::Estimate;
use super::said::Lessee;
use super::{Inner, Lease, Leases};
use crate::error::StoreError;
use crate::store::Patience;
use crate::stored::{LeaseCheck, LeaseKey};

/// What is known here of a cost, which isn't spent by looking.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Here {
    /// It is denied, and that still holds.
    Denied(Decision),
    /// It is here.
    Enough,
    /// The store has to be asked.
    Unknown,
}

/// What came of a cost: tokens that were spent or taken, or a denial.
pub(crate) struct Had {
    pub(crate) decision: Decision,
    /// Whether what is held here said it all.
    pub(crate) is_known: bool,
    /// What comes back if another limit denies the request; none if this one does, or if there is no other.
    pub(crate) taken: Option<Taken>,
}

impl Had {
    pub(super) fn known(decision: Decision, taken: Option<Taken>) -> Self {
        Self {
            decision,
            is_known: true,
            taken,
        }
    }

    pub(super) fn asked(decision: Decision, taken: Option<Taken>) -> Self {
        Self {
            is_known: false,
            ..Self::known(decision, taken)
        }
    }
}

/// What a request has taken of a lease. The store takes it for held until it is [spent](Self::spend); dropped, it
/// comes back, whatever the store was told meanwhile.
pub(crate) struct Taken(What);

enum What {
    /// Of tokens that are kept here.
    Kept(Option<Estimate>, u64),
    /// Of those that the store gave for this request alone.
    Passing(Arc<Inner>, Arc<Lease>, u64),
}

impl Taken {
    /// All limits of the request have passed.
    pub(crate) fn spend(mut self) {
        match &mut self.0 {
            What::Kept(held, cost) => {
                if let Some(mut held) = held.take() {
                    held.settle(*cost);
                }
            }
            What::Passing(_, _, cost) => *cost = 0,
        }
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        // What is kept here comes back when what holds it is dropped.
        if let What::Passing(leases, lease, cost) = &self.0
            && *cost > 0
        {
            leases.return_passing(lease, *cost);
        }
    }
}

impl fmt::Debug for Taken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Taken").finish_non_exhaustive()
    }
}

impl Leases {
    /// What is known here of a cost, without spending it.
    pub(crate) fn look_here(&self, place: LeaseKey, cost: u64) -> Here {
        let (inner, shard) = (&self.inner, self.inner.shard(place).load());
        let Some(lease) = shard.get(&place) else {
            return Here::Unknown;
        };
        if let Some(never) = inner.never(lease, cost) {
            return Here::Denied(never);
        }
        let now = inner.clock.now();
        match lease.book.look(now, cost) {
            Spent::Passed { .. } => Here::Enough,
            denied @ Spent::Refused { .. } => {
                let said = inner.said(lease, now, denied);
                said.map_or(Here::Unknown, Here::Denied)
            }
            Spent::Unknown => Here::Unknown,
        }
    }

    /// Spends a cost that is here, to be [put back](Self::put_back) if another limit denies it at the same moment.
    pub(crate) fn try_spend_for_now(
        &self,
        place: LeaseKey,
        cost: u64,
    ) -> Option<(Decision, Stamp)> {
        let shard = self.inner.shard(place).load();
        let lease = shard.get(&place)?;
        let stamp = lease.book.stamp(self.inner.clock.now());
        let said = self.inner.try_spend(lease, cost)?;
        said.is_allowed().then_some((said, stamp))
    }

    /// Puts back what was spent of a lease.
    pub(crate) fn put_back(&self, place: LeaseKey, cost: u64, stamp: Stamp) {
        if let Some(lease) = self.inner.shard(place).load().get(&place) {
            self.inner.put_back(lease, cost, stamp);
        }
    }

    /// Puts back what a request has spent that was given up after all of its limits had passed.
    pub(crate) fn put_back_late(&self, place: LeaseKey, cost: u64) {
        if let Some(lease) = self.inner.shard(place).load().get(&place) {
            lease.book.put_back_late(cost, self.inner.clock.now());
        }
    }

    /// Takes what one check of several costs, after asking the store for more if need be.
    pub(crate) async fn take(
        &self,
        check: LeaseCheck<'_>,
        patience: &mut Patience,
    ) -> Result<Had, StoreError> {
        let (cost, until) = (check.check.cost, Some(Timestamp::MAX));
        let kept = |held: Option<Estimate>| held.map(|held| Taken(What::Kept(Some(held), cost)));
        let place = check.lease_key();
        // The shard isn't kept while the store is asked.
        let had = {
            let here = self.inner.shard(place).load();
            let lease = here.get(&place);
            lease.and_then(|lease| self.inner.try_have(lease, cost, until))
        };
        if let Some((decision, held)) = had {
            return Ok(Had::known(decision, kept(held)));
        }
        let (lease, is_kept) = self.inner.find_or_make(check);
        if is_kept {
            let had = self.have(lease, cost, Wants::More(cost), until, patience);
            let (decision, held) = had.await?;
            return Ok(Had::asked(decision, kept(held)));
        }
        let had = self.have(Arc::clone(&lease), cost, Wants::Just(cost), None, patience);
        let (decision, _) = had.await?;
        let taken = Taken(What::Passing(Arc::clone(&self.inner), lease, cost));
        Ok(Had::asked(decision, decision.is_allowed().then_some(taken)))
    }
}

impl Inner {
    /// Returns what the store gave for one request alone, which didn't run.
    pub(super) fn return_passing(self: &Arc<Self>, lease: &Arc<Lease>, cost: u64) {
        let question = Lessee {
            holder: self.holder(&self.passing),
            returns: cost,
            ..Lessee::of_nobody(self.terms.life)
        };
        let (asker, lease) = (Arc::clone(self), Arc::clone(lease));
        self.host.spawn(async move {
            let record = question.record(&lease.numbers);
            // If the store can't be told, it runs out by itself.
            let _ = asker.store.lease(lease.key.clone(), record, None).await;
        });
    }
}
