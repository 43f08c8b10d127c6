//! Tokens of leased limits: every request that takes some starts here.

use std::time::Duration;

use tollgate::Decision;
use tollgate_engine::backend::{Answer, Check, Source};
use tollgate_engine::policy::{Counting, Settle};

use super::estimate::is_held;
use super::{Direct, StoredLimit};
use crate::error::StoreError;
use crate::lease::{Estimate, LeaseKey, Leased};
use crate::store::Patience;

/// Tokens that were spent, or a refusal.
pub(super) struct Spent {
    pub(super) decision: Decision,
    /// Whether what is held here said it all.
    pub(super) is_known: bool,
    pub(super) key: LeaseKey,
    /// How often the lease had been planned before: for what may be put back.
    pub(super) plans: u64,
}

impl Direct {
    /// The answer to the only check of a request, at once, if its limit is leased and what is held here says it all.
    #[inline]
    pub(crate) fn spend_at_once(&self, check: &Check<'_>) -> Option<Answer> {
        if check.limit.counting() != Counting::Leased || is_held(check) {
            return None;
        }
        let leased = self.stored.get(check.limit)?.leased.as_ref()?;
        let decision = self.spend_here(check, LeaseKey::of(leased, check))?;
        let mut answer = Answer::new(Some(0), decision);
        answer.source = self.source_ahead();
        Some(answer)
    }

    /// Spends what is held here, if that says it all.
    #[inline]
    fn spend_here(&self, check: &Check<'_>, key: LeaseKey) -> Option<Decision> {
        self.leases.try_spend(key, check.cost)
    }

    /// Spends what a check costs, after asking the store for more if need be.
    pub(super) async fn spend(
        &self,
        check: &Check<'_>,
        (stored, leased): (&StoredLimit, &Leased),
        patience: &mut Patience,
    ) -> Result<Spent, StoreError> {
        let key = LeaseKey::of(leased, check);
        let plans = self.leases.plans(key);
        let (decision, is_known) = match self.spend_here(check, key) {
            Some(decision) => (decision, true),
            None => {
                let name = || stored.key(check).into();
                let asked = self.leases.spend((key, check), leased, name, patience);
                (asked.await?, false)
            }
        };
        Ok(Spent {
            decision,
            is_known,
            key,
            plans,
        })
    }

    /// Holds what a check is estimated to cost: one record of this node and key in the store, however many requests
    /// hold some.
    pub(super) async fn hold(
        &self,
        check: &Check<'_>,
        (stored, leased): (&StoredLimit, &Leased),
        patience: &mut Patience,
    ) -> Result<(Decision, Option<Estimate>), StoreError> {
        let within = check.limit.settle();
        let within = within.map_or(Duration::ZERO, |settle: Settle| settle.within);
        let name = || stored.key(check).into();
        let key = LeaseKey::of(leased, check);
        let held = self
            .leases
            .hold((key, check), leased, name, (within, patience));
        held.await
    }

    /// Nothing was asked just now. That the store works is true as long as the latest call did.
    pub(super) fn source_ahead(&self) -> Source {
        if self.store.is_failing() {
            Source::Known
        } else {
            Source::Ahead
        }
    }
}
