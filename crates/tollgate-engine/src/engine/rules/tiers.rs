//! The compiled tiers of a policy: the limits of each, and the tier of each tenant.

use std::collections::HashMap;

use foldhash::fast::FixedState;

use super::{CompiledRule, LimitPlacement, PolicyCompiler, PolicyError};
use crate::engine::counters::Sharing;
use crate::engine::presence::FactPresence;
use crate::facts::TENANT;
use crate::policy::{KeyPart, Mode, Policy, Rule};

/// The counter that all tiers share.
pub(crate) const TIERS: &str = "tier";

/// The tier of each tenant.
#[derive(Debug, Default)]
pub(crate) struct Tiers {
    pub(crate) tenant: Option<u32>,
    /// The fact that carries a tenant's tier.
    pub(crate) fact: Option<u32>,
    by_tenant: HashMap<Box<str>, u32, FixedState>,
    by_name: HashMap<Box<str>, u32, FixedState>,
    default: Option<u32>,
    /// Whether any request had a tenant.
    pub(crate) tenant_presence: FactPresence,
    /// Whether any tenant's tier was known.
    pub(crate) tier_presence: FactPresence,
}

/// The tier of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TierMatch {
    /// The policy has no tiers.
    NoTiers,
    /// The request has no tenant.
    NoTenant,
    /// The request is in the tier with this number.
    In(u32),
    /// The tenant isn't listed, and its tier is unknown or missing: it is in the default tier, if there is one.
    Unknown(Option<u32>),
}

impl Tiers {
    /// The tier of a request. A tenant that isn't listed and states no tier belongs to the default tier.
    #[inline]
    pub(crate) fn match_tier<'f>(&self, text: impl Fn(u32) -> Option<&'f str>) -> TierMatch {
        let Some(slot) = self.tenant else {
            return TierMatch::NoTiers;
        };
        let Some(tenant) = text(slot) else {
            return TierMatch::NoTenant;
        };
        if let Some(number) = self.by_tenant.get(tenant) {
            return TierMatch::In(*number);
        }
        match (self.fact.and_then(text), self.default) {
            (None, Some(default)) => TierMatch::In(default),
            (None, None) => TierMatch::Unknown(None),
            (Some(name), default) => match self.by_name.get(name) {
                Some(number) => TierMatch::In(*number),
                None => TierMatch::Unknown(default),
            },
        }
    }

    /// The names of all tiers, sorted.
    pub(crate) fn names(&self) -> Vec<&str> {
        let mut names: Vec<&str> = self.by_name.keys().map(|name| &**name).collect();
        names.sort_unstable();
        names
    }
}

impl PolicyCompiler<'_> {
    /// Compiles the tiers, and adds each to the rules that can apply.
    pub(super) fn compile_tiers(
        &mut self,
        policy: &Policy,
        applied: &mut Vec<CompiledRule>,
    ) -> Result<Tiers, PolicyError> {
        if policy.tiers.is_empty() || policy.mode == Mode::Off {
            return no_tiers(policy);
        }
        let mut rules = policy.rules.iter();
        if let Some(rule) = rules.find(|rule| policy.tiers.contains_key(&rule.name)) {
            let name = rule.name.clone();
            return Err(PolicyError::RuleAndTier { name });
        }
        let is_settled_elsewhere = policy.tiers.values().any(|tier| tier.cost.settle.is_some());
        let mut by_name: HashMap<Box<str>, u32, FixedState> = HashMap::default();
        for (name, tier) in &policy.tiers {
            by_name.insert(
                name.as_str().into(),
                u32::try_from(applied.len()).unwrap_or(u32::MAX),
            );
            let rule = Rule {
                key: vec![KeyPart::Fact(TENANT.to_owned())],
                algorithm: tier.algorithm,
                cost: tier.cost.clone(),
                counting: tier.counting,
                over: tier.over,
                on_store_failure: tier.on_store_failure,
                ..Rule::new(name, tier.limits.clone())
            };
            // A tenant has the same counters in every tier, so that it keeps what it spent when its tier changes.
            let place = LimitPlacement {
                sharing: Sharing::Shared,
                ..LimitPlacement::of(&rule, TIERS, is_settled_elsewhere)
            };
            let compiled = self.compile_limits(&rule, &place, policy.mode)?;
            applied.push(CompiledRule {
                is_tier: true,
                ..compiled
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
            tenant_presence: FactPresence::default(),
            tier_presence: FactPresence::default(),
        })
    }
}

/// The tiers of a policy without tiers, or that is off. An error if it puts tenants in tiers that don't exist.
fn no_tiers(policy: &Policy) -> Result<Tiers, PolicyError> {
    let mut named = policy.default_tier.iter().chain(policy.tenants.values());
    match named.next() {
        Some(tier) if policy.tiers.is_empty() => {
            Err(PolicyError::UnknownTier { tier: tier.clone() })
        }
        _ => Ok(Tiers::default()),
    }
}
