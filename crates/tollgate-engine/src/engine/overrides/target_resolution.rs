//! Resolves a target by the policy in force, to the rule's number and the key's fingerprint.

use std::borrow::Cow;

use super::fact_pattern::FactConditions;
use super::override_table::Limiter;
use crate::address::{ClientBits, Network};
use crate::engine::rules::{CompiledPolicy, CompiledRule};
use crate::facts::{Descriptor, Facts};
use crate::limits::{KeyHashers, KeyPlan, Limit};
use crate::overrides::{FactPattern, OverrideError, Target, TargetKey, as_str_pairs};
use crate::policy::{Mode, OnMissingKey};
use crate::suggestions::closest;

/// A rule and its key, or the whole rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct TargetKeyId {
    pub(super) limiter: Limiter,
    pub(super) fingerprint: Option<[u64; 2]>,
}

/// A target that exists.
pub(super) struct ResolvedTarget<'r> {
    pub(super) place: TargetKeyId,
    pub(super) name: String,
    pub(super) limits: &'r [Limit],
    pub(super) mode: Mode,
    /// The conditions on a request's facts, if the target is some keys of the rule.
    pub(super) conditions: Option<FactConditions>,
}

/// The rules in force, and the hashers of their keys.
#[derive(Clone, Copy)]
pub(in crate::engine) struct KeyContext<'r> {
    pub(in crate::engine) rules: &'r CompiledPolicy,
    pub(in crate::engine) hashers: &'r KeyHashers,
}

impl<'r> KeyContext<'r> {
    /// Resolves a target that names a rule or a descriptor.
    pub(super) fn resolve_target(
        self,
        target: &Target,
    ) -> Result<ResolvedTarget<'r>, OverrideError> {
        match (&target.rule, &target.key) {
            (rule, TargetKey::Descriptor { domain, entries }) => {
                self.resolve_descriptor(rule.as_deref(), domain, entries)
            }
            (Some(rule), TargetKey::AllRequests) => Ok(self.placed(self.limiter(rule)?, None)),
            (Some(rule), TargetKey::Facts(facts)) => self.key(rule, &as_str_pairs(facts).collect()),
            (Some(rule), TargetKey::Patterns(facts)) => self.patterns(rule, facts),
            (None, _) => Err(OverrideError::MissingTarget),
        }
    }

    /// One key of a limiter, or all of it.
    fn placed(self, limiter: Limiter, fingerprint: Option<[u64; 2]>) -> ResolvedTarget<'r> {
        let rules = self.rules;
        let (name, limits, mode) = match limiter {
            Limiter::Applied(number) => {
                let rule = &rules.rules[number as usize];
                (rule.name.to_string(), rule.limits.as_slice(), rule.mode)
            }
            Limiter::Leaf(number) => {
                let (leaf, limits) = rules.trees.leaf(number);
                (leaf.to_string(), limits, rules.mode.max(leaf.mode()))
            }
        };
        let place = TargetKeyId {
            limiter,
            fingerprint,
        };
        ResolvedTarget {
            place,
            name,
            limits,
            mode,
            conditions: None,
        }
    }

    /// One key, or several by globs and networks.
    fn patterns(
        self,
        name: &str,
        facts: &[(String, FactPattern)],
    ) -> Result<ResolvedTarget<'r>, OverrideError> {
        let (number, rule) = self.rule_named(name)?;
        if let Some(one) = single_key(rule, facts) {
            return self.key(name, &as_str_pairs(&one).collect());
        }
        let texts = facts.iter().map(|(fact, own)| (fact.as_str(), own.text()));
        // Reports missing or extra facts in the same way as for one key.
        self.key(name, &texts.collect())?;
        Ok(ResolvedTarget {
            conditions: Some(FactConditions::new(facts)?),
            ..self.placed(Limiter::Applied(number), None)
        })
    }

    /// The limiter with this name in force.
    fn limiter(self, name: &str) -> Result<Limiter, OverrideError> {
        let found = self.rules.overrides.limiter(self.rules, name);
        found.ok_or_else(|| unknown_limiter(self.rules, name))
    }

    /// The rule or tier with this name, and its number. A rule precedes a tier.
    pub(super) fn rule_named(self, name: &str) -> Result<(u32, &'r CompiledRule), OverrideError> {
        match self.limiter(name)? {
            Limiter::Applied(number) => Ok((number, &self.rules.rules[number as usize])),
            Limiter::Leaf(_) => Err(OverrideError::WantsDescriptor {
                rule: name.to_owned(),
            }),
        }
    }

    /// A key by facts: exactly those that make it.
    fn key(self, name: &str, facts: &Facts<'_>) -> Result<ResolvedTarget<'r>, OverrideError> {
        let (number, rule) = self.rule_named(name)?;
        let fingerprint = self.fingerprint(rule, facts)?;
        check_key_facts(rule, facts)?;
        Ok(self.placed(Limiter::Applied(number), Some(fingerprint)))
    }

    /// The fingerprint of a rule's key, as a request with these facts has it.
    pub(super) fn fingerprint(
        self,
        rule: &CompiledRule,
        facts: &Facts<'_>,
    ) -> Result<[u64; 2], OverrideError> {
        let known = self.rules.look_up_facts(facts);
        // A target without facts names the counter that requests without a key share.
        let is_for_all =
            rule.on_missing_key == OnMissingKey::OneCounter && facts.iter().next().is_none();
        let missing = || is_for_all.then(|| KeyPlan::missing(self.hashers));
        let found = rule.key.fingerprint(&known, self.hashers).or_else(missing);
        found.ok_or_else(|| {
            let mut own = rule.key.facts();
            let fact = own.find(|fact| facts.get(fact).is_none());
            OverrideError::LacksFact {
                rule: rule.name.to_string(),
                fact: fact.unwrap_or_default().to_owned(),
            }
        })
    }

    fn resolve_descriptor(
        self,
        rule: Option<&str>,
        domain: &str,
        entries: &[(String, String)],
    ) -> Result<ResolvedTarget<'r>, OverrideError> {
        let is_network = |value: &str| value.contains('/') && Network::parse(value).is_some();
        if let Some((key, value)) = entries.iter().find(|(_, value)| is_network(value)) {
            return Err(OverrideError::NetworkInDescriptor {
                key: key.clone(),
                value: value.clone(),
            });
        }
        let entries: Vec<_> = as_str_pairs(entries).collect();
        let trees = &self.rules.trees;
        let met = trees.leaf_of(self.hashers, domain, &Descriptor::new(&entries));
        let placed = met.map(|(leaf, key)| self.placed(Limiter::Leaf(leaf.id), Some(key)));
        match placed {
            Some(placed) if rule.is_none_or(|rule| rule == placed.name) => Ok(placed),
            placed => Err(OverrideError::OtherLimit {
                rule: rule.map(str::to_owned),
                met: placed.map(|placed| placed.name),
            }),
        }
    }
}

/// The target, with the descriptor in place of the name and key of a tree's limit, as lists show them.
pub(in crate::engine) fn as_descriptor<'t>(
    rules: &CompiledPolicy,
    target: &'t Target,
) -> Result<Cow<'t, Target>, OverrideError> {
    let leaf = target.rule.as_deref().and_then(|name| {
        let Limiter::Leaf(number) = rules.overrides.limiter(rules, name)? else {
            return None;
        };
        Some(rules.trees.leaf(number).0)
    });
    let (Some(leaf), TargetKey::Facts(_) | TargetKey::Patterns(_)) = (leaf, &target.key) else {
        return Ok(Cow::Borrowed(target));
    };
    let value_of = |key: &str| {
        let own = target.key.facts().find(|(name, _)| *name == key);
        own.map(|(_, value)| value.to_owned())
    };
    let rule = leaf.to_string();
    let mut entries: Vec<(String, String)> = Vec::new();
    for step in &leaf.steps {
        // If two entries have the same key, facts can only state one value.
        if entries.iter().any(|(key, _)| **key == *step.key) {
            return Err(OverrideError::WantsDescriptor { rule });
        }
        let own = step.value.as_deref().map(str::to_owned);
        let value = value_of(&step.key)
            .or(own)
            .ok_or(OverrideError::LacksFact {
                rule: rule.clone(),
                fact: step.key.to_string(),
            })?;
        entries.push((step.key.to_string(), value));
    }
    let mut target = Target::descriptor(&*leaf.domain, entries);
    target.rule = Some(rule);
    Ok(Cow::Owned(target))
}

/// The facts of the only key that patterns can mean. `None` if they match several keys.
fn single_key(
    rule: &CompiledRule,
    facts: &[(String, FactPattern)],
) -> Option<Vec<(String, String)>> {
    let one = facts.iter().map(|(fact, pattern)| {
        let value = match pattern {
            FactPattern::Exact(text) => text.clone(),
            FactPattern::Glob(_) => return None,
            FactPattern::Network(text) => {
                let (_, bits) = rule.key.parts().find(|(own, _)| own == fact)?;
                in_one_network(text, bits?)?
            }
        };
        Some((fact.clone(), value))
    });
    one.collect()
}

/// An address of a network that is a single key when this many bits of an address count.
pub(super) fn in_one_network(text: &str, bits: ClientBits) -> Option<String> {
    let address = Network::parse(text)?.single_client(bits);
    address.map(|address| address.to_string())
}

/// Checks that a rule's key is made of all of these facts.
pub(super) fn check_key_facts(rule: &CompiledRule, facts: &Facts<'_>) -> Result<(), OverrideError> {
    let own = rule.key.facts_for(facts);
    let own: Vec<&str> = own.map_or_else(Vec::new, Iterator::collect);
    let mut others = facts.iter().map(|(fact, _)| fact);
    match others.find(|fact| !own.contains(fact)) {
        Some(fact) => Err(OverrideError::NotOfKey {
            rule: rule.name.to_string(),
            fact: fact.to_owned(),
        }),
        None => Ok(()),
    }
}

/// The error for a name that isn't in force.
fn unknown_limiter(rules: &CompiledPolicy, name: &str) -> OverrideError {
    let policy = &rules.policy;
    let mut off = policy.rules.iter().map(|rule| rule.name.as_str());
    if off.any(|own| own == name) || policy.tiers.contains_key(name) {
        return OverrideError::Off {
            rule: name.to_owned(),
        };
    }
    let applied = rules.rules.iter().map(|rule| &*rule.name);
    OverrideError::UnknownRule {
        rule: name.to_owned(),
        near: closest(name, applied).map(str::to_owned),
    }
}
