//! The keys that a target of operators names: of one rule, of one limit of a tree, or of all rules whose keys its facts make.

use tollgate::Timestamp;

use super::overlay::Rulings;
use super::place::{borrowed, in_one_network, key_of, named, not_of_key, place};
use super::table::Limiter;
use crate::address::ClientBits;
use crate::engine::descriptors::LeafKey;
use crate::engine::rules::{Applied, Rules};
use crate::facts::{Descriptor, Facts};
use crate::limits::{Check, KeyHashers, Limit, RequestKey};
use crate::orders::{FactPattern, OrderError, Target, TargetKey};
use crate::policy::Mode;

/// Where a key's counters are, before they are looked at.
pub(in crate::engine) struct Key<'a> {
    pub(in crate::engine) limiter: Limiter,
    pub(in crate::engine) rule: String,
    pub(in crate::engine) mode: Mode,
    pub(in crate::engine) key: RequestKey<'a>,
    pub(in crate::engine) shown: String,
    limits: &'a [Limit],
    gates: &'a [Limit],
    cost: u64,
}

impl<'a> Key<'a> {
    fn of_rule(
        number: u32,
        rule: &'a Applied,
        facts: &'a Facts<'a>,
        fingerprint: [u64; 2],
        now: Timestamp,
    ) -> Self {
        let key = RequestKey::new(&rule.key, facts, fingerprint);
        Self {
            limiter: Limiter::Applied(number),
            rule: rule.name.to_string(),
            mode: rule.mode_for(&key),
            shown: key.to_string(),
            key,
            limits: rule.limits.as_slice(),
            gates: rule.gates(Some(now)),
            cost: rule.default_cost,
        }
    }

    /// As is ordered.
    pub(in crate::engine) fn changed_by(self, rulings: &Rulings<'a>) -> Self {
        match rulings.changed {
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

/// What a target names, to be borrowed from.
pub(in crate::engine) struct Named<'a> {
    pub(in crate::engine) facts: Facts<'a>,
    /// With networks as they are written, for keys of which they are no addresses.
    pub(in crate::engine) literal: Facts<'a>,
    descriptor: Option<(&'a str, Descriptor<'a>)>,
}

/// Texts of a target that its facts borrow from.
pub(in crate::engine) struct TargetTexts<'t> {
    /// The entries of a descriptor.
    entries: Vec<(&'t str, &'t str)>,
    /// The facts of a target that has networks, each with one address of it. A glob names no key but the one that is called so.
    addresses: Vec<(String, String)>,
}

impl<'t> TargetTexts<'t> {
    pub(in crate::engine) fn new(target: &'t Target) -> Self {
        let mut texts = Self {
            entries: Vec::new(),
            addresses: Vec::new(),
        };
        match &target.key {
            TargetKey::Descriptor { entries, .. } => texts.entries = borrowed(entries).collect(),
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
            TargetKey::Everybody | TargetKey::Facts(_) => {}
        }
        texts
    }
}

/// What keys are made by.
#[derive(Clone, Copy)]
pub(in crate::engine) struct KeyContext<'c> {
    pub(in crate::engine) hashers: &'c KeyHashers,
    pub(in crate::engine) now: Timestamp,
}

/// A network that is several keys of a rule, by name and as it is written.
fn many_keys<'t>(rule: &Applied, target: &'t Target) -> Option<(&'t str, &'t str)> {
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

impl<'a> Named<'a> {
    pub(in crate::engine) fn of(
        rules: &'a Rules,
        target: &'a Target,
        texts: &'a TargetTexts<'a>,
    ) -> Self {
        let (mut facts, mut literal, mut descriptor) = (Facts::new(), Facts::new(), None);
        match &target.key {
            TargetKey::Everybody => {}
            TargetKey::Facts(own) => {
                (facts, literal) = (borrowed(own).collect(), borrowed(own).collect());
            }
            TargetKey::Patterns(own) => {
                facts = borrowed(&texts.addresses).collect();
                let own = own.iter().map(|(fact, own)| (fact.as_str(), own.text()));
                literal = own.collect();
            }
            TargetKey::Descriptor { domain, .. } => {
                let own = Descriptor::new(&texts.entries);
                let lookup = rules.trees.lookup(domain, &own);
                facts = rules.trees.by_place(domain, &own, &lookup, None);
                descriptor = Some((domain.as_str(), own));
            }
        }
        Self {
            facts,
            literal,
            descriptor,
        }
    }

    /// All keys that it names.
    pub(in crate::engine) fn keys(
        &'a self,
        rules: &'a Rules,
        target: &Target,
        context: KeyContext<'_>,
    ) -> Result<Vec<Key<'a>>, OrderError> {
        if self.descriptor.is_some() {
            return Ok(vec![self.descriptor_key(rules, target, context.hashers)?]);
        }
        match &target.rule {
            Some(name) => Ok(vec![self.rule_key(rules, name, target, context)?]),
            None => self.keys_of_all_rules(rules, target, context),
        }
    }

    /// The key of the limit of a tree that a descriptor meets.
    fn descriptor_key(
        &'a self,
        rules: &'a Rules,
        target: &Target,
        hashers: &KeyHashers,
    ) -> Result<Key<'a>, OrderError> {
        let placed = place(rules, hashers, target)?;
        let lookup = self
            .descriptor
            .as_ref()
            .map(|(domain, descriptor)| (descriptor, rules.trees.lookup(domain, descriptor)));
        let met = lookup.and_then(|(descriptor, lookup)| {
            let leaf = lookup.leaf()?;
            Some((
                leaf,
                rules
                    .trees
                    .meet_leaf(hashers, leaf, descriptor, &self.facts)?,
            ))
        });
        let (leaf, met) = met.ok_or(OrderError::NoSuchLimit {
            rule: placed.name.clone(),
            sort: "limit",
        })?;
        Ok(Key {
            limiter: placed.place.limiter,
            rule: placed.name,
            mode: placed.mode,
            shown: LeafKey(leaf, met.key).to_string(),
            key: met.key,
            limits: placed.limits,
            gates: &[],
            cost: 1,
        })
    }

    /// The key of the rule that the target names.
    fn rule_key(
        &'a self,
        rules: &'a Rules,
        name: &str,
        target: &Target,
        context: KeyContext<'_>,
    ) -> Result<Key<'a>, OrderError> {
        let placed = || place(rules, context.hashers, target);
        let Some((number, rule)) = named(rules, name) else {
            let rule = placed()?.name;
            return Err(OrderError::WantsDescriptor { rule });
        };
        let fingerprint = match target.key {
            TargetKey::Facts(_) => placed()?.place.fingerprint.unwrap_or_default(),
            _ => self.fingerprint(rules, rule, target, context.hashers)?,
        };
        let facts = self.facts_for(rule);
        not_of_key(rule, facts)?;
        Ok(Key::of_rule(number, rule, facts, fingerprint, context.now))
    }

    /// The keys of all rules that have one by these facts; an error if none has.
    fn keys_of_all_rules(
        &'a self,
        rules: &'a Rules,
        target: &Target,
        context: KeyContext<'_>,
    ) -> Result<Vec<Key<'a>>, OrderError> {
        let (mut keys, mut error) = (Vec::new(), OrderError::NoKey);
        for (number, rule) in (0..).zip(rules.applied.iter()) {
            match self.fingerprint(rules, rule, target, context.hashers) {
                Ok(fingerprint) if rule.key.facts().next().is_some() => {
                    let facts = self.facts_for(rule);
                    keys.push(Key::of_rule(number, rule, facts, fingerprint, context.now));
                }
                // The first tells what to name instead.
                Err(many @ OrderError::ManyKeys { .. }) if error == OrderError::NoKey => {
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

    /// The fingerprint of the one key that a rule has by these facts.
    fn fingerprint(
        &self,
        rules: &Rules,
        rule: &Applied,
        target: &Target,
        hashers: &KeyHashers,
    ) -> Result<[u64; 2], OrderError> {
        if let Some((fact, value)) = many_keys(rule, target) {
            return Err(OrderError::ManyKeys {
                rule: rule.name.to_string(),
                fact: fact.to_owned(),
                value: value.to_owned(),
            });
        }
        key_of(rules, hashers, rule, self.facts_for(rule))
    }

    /// The facts that make the rule's key: an address where it counts networks, and else the text.
    fn facts_for(&self, rule: &Applied) -> &Facts<'a> {
        let has_networks = rule.key.parts().any(|(_, bits)| bits.is_some());
        if has_networks {
            &self.facts
        } else {
            &self.literal
        }
    }
}
