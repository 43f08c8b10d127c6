//! The keys that an operator's target names: of one rule, of one limit of a tree, or of all rules whose keys its
//! facts make.

use tollgate::Timestamp;

use super::active::OverrideMatch;
use super::override_table::Limiter;
use super::target_resolution::{KeyContext, check_key_facts, in_one_network};
use crate::address::ClientBits;
use crate::engine::descriptors::LeafKey;
use crate::engine::rules::CompiledRule;
use crate::facts::{Descriptor, Facts};
use crate::limits::{Check, Limit, RequestKey};
use crate::overrides::{FactPattern, OverrideError, Target, TargetKey, as_str_pairs};
use crate::policy::Mode;

/// A key with its limits, before its counters are read.
pub(in crate::engine) struct TargetedKey<'a> {
    pub(in crate::engine) limiter: Limiter,
    pub(in crate::engine) rule: String,
    pub(in crate::engine) mode: Mode,
    pub(in crate::engine) key: RequestKey<'a>,
    pub(in crate::engine) shown: String,
    limits: &'a [Limit],
    gates: &'a [Limit],
    cost: u64,
}

impl<'a> TargetedKey<'a> {
    /// The key with the limits of its override.
    pub(in crate::engine) fn with_overrides(self, rulings: &OverrideMatch<'a>) -> Self {
        match rulings.limits {
            Some(changed) => Self {
                limits: &changed.limits,
                gates: &[],
                ..self
            },
            None => self,
        }
    }

    pub(in crate::engine) fn checks(&self) -> Vec<Check<'a>> {
        let (key, cost) = (self.key, self.cost);
        let limits = self.limits.iter().chain(self.gates);
        limits.map(|limit| Check { limit, key, cost }).collect()
    }
}

/// The facts of a target, to be borrowed from.
pub(in crate::engine) struct TargetFacts<'a> {
    target: &'a Target,
    context: KeyContext<'a>,
    now: Timestamp,
    pub(in crate::engine) facts: Facts<'a>,
    /// The facts with networks as text, for keys that don't count by networks.
    pub(in crate::engine) literal: Facts<'a>,
}

/// Texts that the facts of a target borrow.
#[derive(Default)]
pub(in crate::engine) struct TargetTexts<'t> {
    /// The entries of a descriptor.
    entries: Vec<(&'t str, &'t str)>,
    /// The facts of a target with networks, each replaced by one address of it. A glob stands only for a key with its
    /// text.
    addresses: Vec<(String, String)>,
}

impl<'t> TargetTexts<'t> {
    pub(in crate::engine) fn new(target: &'t Target) -> Self {
        let mut texts = Self::default();
        match &target.key {
            TargetKey::Descriptor { entries, .. } => {
                texts.entries = as_str_pairs(entries).collect()
            }
            TargetKey::Patterns(facts) => {
                let facts = facts.iter().map(|(fact, pattern)| {
                    let address = match pattern {
                        FactPattern::Network(text) => in_one_network(text, ClientBits::both(0)),
                        _ => None,
                    };
                    let text = address.unwrap_or_else(|| pattern.text().to_owned());
                    (fact.clone(), text)
                });
                texts.addresses = facts.collect();
            }
            TargetKey::AllRequests | TargetKey::Facts(_) => {}
        }
        texts
    }
}

/// The first network that contains several keys of a rule: its fact and its text.
fn ambiguous_network<'t>(rule: &CompiledRule, target: &'t Target) -> Option<(&'t str, &'t str)> {
    let TargetKey::Patterns(facts) = &target.key else {
        return None;
    };
    facts.iter().find_map(|(fact, pattern)| {
        let FactPattern::Network(text) = pattern else {
            return None;
        };
        let (_, bits) = rule.key.parts().find(|(own, _)| own == fact)?;
        let is_one = in_one_network(text, bits?).is_some();
        (!is_one).then_some((fact.as_str(), text.as_str()))
    })
}

impl<'a> TargetFacts<'a> {
    pub(in crate::engine) fn of(
        target: &'a Target,
        texts: &'a TargetTexts<'a>,
        context: KeyContext<'a>,
        now: Timestamp,
    ) -> Self {
        let literal: Facts<'_> = target.key.facts().collect();
        let facts = match &target.key {
            TargetKey::AllRequests | TargetKey::Facts(_) => literal.clone(),
            TargetKey::Patterns(_) => as_str_pairs(&texts.addresses).collect(),
            TargetKey::Descriptor { domain, .. } => {
                let (own, trees) = (Descriptor::new(&texts.entries), &context.rules.trees);
                trees.key_facts(domain, &own, &trees.lookup(domain, &own), None)
            }
        };
        Self {
            target,
            context,
            now,
            facts,
            literal,
        }
    }

    /// All keys that the target names.
    pub(in crate::engine) fn keys(&'a self) -> Result<Vec<TargetedKey<'a>>, OverrideError> {
        match (&self.target.rule, &self.target.key) {
            (_, TargetKey::Descriptor { .. }) => Ok(vec![self.descriptor_key()?]),
            (Some(name), _) => {
                let (number, rule) = self.context.rule_named(name)?;
                let fingerprint = self.fingerprint(rule)?;
                check_key_facts(rule, self.facts_for(rule))?;
                Ok(vec![self.key_of_rule(number, rule, fingerprint)])
            }
            (None, _) => self.keys_of_all_rules(),
        }
    }

    /// The key of the limit of a tree that matches a descriptor.
    fn descriptor_key(&'a self) -> Result<TargetedKey<'a>, OverrideError> {
        let trees = &self.context.rules.trees;
        let placed = self.context.resolve_target(self.target)?;
        let fingerprint = placed.place.fingerprint.unwrap_or_default();
        let found = match placed.place.limiter {
            Limiter::Leaf(number) if !placed.limits.is_empty() => {
                let key = trees.key(&self.facts, fingerprint);
                key.map(|key| (trees.leaf(number).0, key))
            }
            _ => None,
        };
        let (leaf, key) = found.ok_or(OverrideError::NoSuchLimit {
            rule: placed.name.clone(),
            sort: "limit",
        })?;
        Ok(TargetedKey {
            limiter: placed.place.limiter,
            rule: placed.name,
            mode: placed.mode,
            shown: LeafKey(leaf, key).to_string(),
            key,
            limits: placed.limits,
            gates: &[],
            cost: 1,
        })
    }

    /// The keys of all rules for which these facts make one. An error if there is none.
    fn keys_of_all_rules(&'a self) -> Result<Vec<TargetedKey<'a>>, OverrideError> {
        let (mut keys, mut error) = (Vec::new(), OverrideError::NoKey);
        for (number, rule) in (0..).zip(self.context.rules.rules.iter()) {
            match self.fingerprint(rule) {
                Ok(fingerprint) if rule.key.facts().next().is_some() => {
                    keys.push(self.key_of_rule(number, rule, fingerprint));
                }
                // The first such error helps most: it states what to name instead.
                Err(many @ OverrideError::ManyKeys { .. }) if error == OverrideError::NoKey => {
                    error = many
                }
                _ => {}
            }
        }
        if keys.is_empty() {
            Err(error)
        } else {
            Ok(keys)
        }
    }

    fn key_of_rule(
        &'a self,
        number: u32,
        rule: &'a CompiledRule,
        fingerprint: [u64; 2],
    ) -> TargetedKey<'a> {
        let key = RequestKey::new(&rule.key, self.facts_for(rule), fingerprint);
        TargetedKey {
            limiter: Limiter::Applied(number),
            rule: rule.name.to_string(),
            mode: rule.mode_for(&key),
            shown: key.to_string(),
            key,
            limits: rule.limits.as_slice(),
            gates: rule.warm_up_limits(Some(self.now)),
            cost: rule.default_cost,
        }
    }

    /// The fingerprint of the one key that these facts make for a rule.
    fn fingerprint(&self, rule: &CompiledRule) -> Result<[u64; 2], OverrideError> {
        if let Some((fact, value)) = ambiguous_network(rule, self.target) {
            return Err(OverrideError::ManyKeys {
                rule: rule.name.to_string(),
                fact: fact.to_owned(),
                value: value.to_owned(),
            });
        }
        self.context.fingerprint(rule, self.facts_for(rule))
    }

    /// The facts that make the rule's key: with addresses if it counts networks, otherwise as text.
    fn facts_for(&self, rule: &CompiledRule) -> &Facts<'a> {
        let has_networks = rule.key.parts().any(|(_, bits)| bits.is_some());
        if has_networks {
            &self.facts
        } else {
            &self.literal
        }
    }
}
