//! Tokens of leased limits: every request that takes some starts here.

use tollgate::Decision;
use tollgate_engine::backend::{Answer, Check, Source};
use tollgate_engine::policy::Counting;

use super::estimate::{held_within, is_held};
use super::{Direct, StoredLimit};
use crate::error::StoreError;
use crate::lease::{Estimate, LeaseKey, Leased, Taken};
use crate::store::Patience;

/// Tokens that were taken, or a refusal.
pub(super) struct Had {
    pub(super) decision: Decision,
    /// Whether what is held here said it all.
    pub(super) is_known: bool,
    /// What comes back if another limit denies the request; none if this one does, or if there is no other.
    pub(super) taken: Option<Taken>,
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

    /// Spends what the only check of a request costs, after asking the store for more if need be.
    pub(super) async fn spend(
        &self,
        check: &Check<'_>,
        (stored, leased): (&StoredLimit, &Leased),
        patience: &mut Patience,
    ) -> Result<Had, StoreError> {
        let key = LeaseKey::of(leased, check);
        let (decision, is_known) = match self.spend_here(check, key) {
            Some(decision) => (decision, true),
            None => {
                let name = || stored.key(check).into();
                let asked = self.leases.spend((key, check), leased, name, patience);
                (asked.await?, false)
            }
        };
        Ok(Had {
            decision,
            is_known,
            taken: None,
        })
    }

    /// Takes what a check costs, one of several, after asking the store for more if need be.
    pub(super) async fn take(
        &self,
        check: &Check<'_>,
        (stored, leased): (&StoredLimit, &Leased),
        patience: &mut Patience,
    ) -> Result<Had, StoreError> {
        let key = LeaseKey::of(leased, check);
        let ((decision, taken), is_known) = match self.leases.try_take(key, check.cost) {
            Some(had) => (had, true),
            None => {
                let name = || stored.key(check).into();
                let asked = self.leases.take((key, check), leased, name, patience);
                (asked.await?, false)
            }
        };
        Ok(Had {
            decision,
            is_known,
            taken,
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
        let within = held_within(check);
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
