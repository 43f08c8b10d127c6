//! The tiers of a policy, compiled: the limits of each, and which one a tenant is in.

use std::collections::HashMap;

use foldhash::fast::FixedState;

use super::{Applied, Draft, OwnLimits, PolicyError, TENANT, Way, estimates, of, patience};
use crate::engine::counters::Sharing;
use crate::limits::KeyPlan;
use crate::policy::{Cost, KeyPart, Mode, Policy};
use crate::tally::UNCOUNTED;

/// The state that all tiers count in.
pub(crate) const TIERS: &str = "tier";

/// Which tier a tenant is in.
#[derive(Debug, Default)]
pub(crate) struct Tiers {
    pub(crate) tenant: Option<u32>,
    fact: Option<u32>,
    by_tenant: HashMap<Box<str>, u32, FixedState>,
    by_name: HashMap<Box<str>, u32, FixedState>,
    default: Option<u32>,
}

impl Tiers {
    /// The number of the tier in force for a tenant, if any.
    #[inline]
    pub(crate) fn number<'f>(
        &self,
        tenant: &str,
        text: impl FnOnce(u32) -> Option<&'f str>,
    ) -> Option<u32> {
        let by_fact = || self.by_name.get(text(self.fact?)?).copied();
        let known = self.by_tenant.get(tenant).copied().or_else(by_fact);
        known.or(self.default)
    }
}

impl Draft<'_> {
    /// Compiles the tiers, and adds each to what can be applied.
    pub(super) fn tiers(
        &mut self,
        policy: &Policy,
        applied: &mut Vec<Applied>,
    ) -> Result<Tiers, PolicyError> {
        if policy.tiers.is_empty() || policy.mode == Mode::Off {
            return no_tiers(policy);
        }
        let settled_elsewhere = policy.tiers.values().any(|tier| tier.cost.settle.is_some());
        let mut by_name: HashMap<Box<str>, u32, FixedState> = HashMap::default();
        for (name, tier) in &policy.tiers {
            by_name.insert(
                name.as_str().into(),
                u32::try_from(applied.len()).unwrap_or(u32::MAX),
            );
            // A tenant's counters are the same in every tier, so that it takes along what it spent.
            let place = (TIERS, Sharing::Shared);
            let limits = self.limits(&tier.limits, tier.algorithm, place, name)?;
            let kept = Way {
                failure: tier.on_store_failure,
                counting: tier.counting,
                slot: None,
                estimates: estimates(&tier.cost, settled_elsewhere),
            };
            let Cost { fact, default, .. } = &tier.cost;
            applied.push(Applied {
                name: name.as_str().into(),
                key: KeyPlan::new(&[KeyPart::Fact(TENANT.to_owned())], &mut self.slots),
                limits: OwnLimits::new(kept.mark(limits).map_err(of(name))?),
                waits: patience(tier.over),
                cost: fact.as_ref().map(|fact| self.slots.number(fact)),
                default_cost: *default,
                mode: policy.mode,
                replaces: Box::default(),
                holds: tier.limits.concurrency.is_some() || tier.cost.settle.is_some(),
                is_estimated: tier.cost.settle.is_some(),
                is_tier: true,
                shares: false,
                rollout: None,
                has_more: false,
                warm: None,
                overload: None,
                tally: UNCOUNTED,
            });
        }
        let number = |tier: &String| {
            let unknown = || PolicyError::UnknownTier { tier: tier.clone() };
            by_name.get(tier.as_str()).copied().ok_or_else(unknown)
        };
        let mut by_tenant: HashMap<Box<str>, u32, FixedState> = HashMap::default();
        for (tenant, tier) in &policy.tenants {
            by_tenant.insert(tenant.as_str().into(), number(tier)?);
        }
        let default = policy.default_tier.as_ref().map(number).transpose()?;
        Ok(Tiers {
            tenant: Some(self.slots.number(TENANT)),
            fact: policy
                .tier_fact
                .as_ref()
                .map(|fact| self.slots.number(fact)),
            by_tenant,
            by_name,
            default,
        })
    }
}

/// A policy without tiers, or that is off: an error if it puts tenants into tiers that aren't there.
fn no_tiers(policy: &Policy) -> Result<Tiers, PolicyError> {
    let mut named = policy.default_tier.iter().chain(policy.tenants.values());
    match named.next() {
        Some(tier) if policy.tiers.is_empty() => {
            Err(PolicyError::UnknownTier { tier: tier.clone() })
        }
        _ => Ok(Tiers::default()),
    }
}
