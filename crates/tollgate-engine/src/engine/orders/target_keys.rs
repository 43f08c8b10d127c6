//! The keys that a target of operators names: of one rule, of one limit of a tree, or of all rules whose keys its facts make.

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
pub(super) struct Key<'a> {
    pub(super) limiter: Limiter,
    pub(super) rule: String,
    pub(super) mode: Mode,
    pub(super) key: RequestKey<'a>,
    pub(super) shown: String,
    limits: &'a [Limit],
    gates: &'a [Limit],
    cost: u64,
}

impl<'a> Key<'a> {
    fn of_rule(
        (number, rule): (u32, &'a Applied),
        facts: &'a Facts<'a>,
        fingerprint: [u64; 2],
        now: tollgate::Timestamp,
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
    pub(super) fn changed_by(self, rulings: &Rulings<'a>) -> Self {
        match rulings.changed {
            Some(changed) => Self {
                limits: &changed.limits,
                gates: &[],
                ..self
            },
            None => self,
        }
    }

    pub(super) fn checks(&self) -> Vec<Check<'a>> {
        let (key, cost) = (self.key, self.cost);
        let limits = self.limits.iter().chain(self.gates);
        limits.map(|limit| Check { limit, key, cost }).collect()
    }
}

/// What a target names, to be borrowed from.
pub(super) struct Named<'a> {
    pub(super) facts: Facts<'a>,
    /// With networks as they are written, for keys of which they are no addresses.
    pub(super) literal: Facts<'a>,
    descriptor: Option<(&'a str, Descriptor<'a>)>,
}

/// The entries of a target that is a descriptor.
pub(super) fn entries(target: &Target) -> Vec<(&str, &str)> {
    match &target.key {
        TargetKey::Descriptor { entries, .. } => borrowed(entries).collect(),
        _ => Vec::new(),
    }
}

/// The facts of a target that has networks, each with one address of it. A glob names no key but the one that is called so.
pub(super) fn addresses(target: &Target) -> Vec<(String, String)> {
    let TargetKey::Patterns(facts) = &target.key else {
        return Vec::new();
    };
    let facts = facts.iter().map(|(fact, pattern)| {
        let address = match pattern {
            FactPattern::Network(text) => in_one_network(text, ClientBits::both(0)),
            _ => None,
        };
        (
            fact.clone(),
            address.unwrap_or_else(|| pattern.text().to_owned()),
        )
    });
    facts.collect()
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
    pub(super) fn of(
        rules: &'a Rules,
        target: &'a Target,
        entries: &'a [(&'a str, &'a str)],
        addresses: &'a [(String, String)],
    ) -> Self {
        match &target.key {
            TargetKey::Everybody => Self {
                facts: Facts::new(),
                literal: Facts::new(),
                descriptor: None,
            },
            TargetKey::Facts(facts) => Self {
                facts: borrowed(facts).collect(),
                literal: borrowed(facts).collect(),
                descriptor: None,
            },
            TargetKey::Patterns(facts) => Self {
                facts: borrowed(addresses).collect(),
                literal: facts
                    .iter()
                    .map(|(fact, own)| (fact.as_str(), own.text()))
                    .collect(),
                descriptor: None,
            },
            TargetKey::Descriptor { domain, .. } => {
                let descriptor = Descriptor::new(entries);
                let lookup = rules.trees.lookup(domain, &descriptor);
                Self {
                    facts: rules.trees.by_place(domain, &descriptor, &lookup, None),
                    literal: Facts::new(),
                    descriptor: Some((domain, descriptor)),
                }
            }
        }
    }

    /// All keys that it names.
    pub(super) fn keys(
        &'a self,
        rules: &'a Rules,
        target: &Target,
        (hashers, now): (&KeyHashers, tollgate::Timestamp),
    ) -> Result<Vec<Key<'a>>, OrderError> {
        if let Some((domain, descriptor)) = &self.descriptor {
            let key = self.descriptor_key(rules, target, hashers, (domain, descriptor))?;
            return Ok(vec![key]);
        }
        match &target.rule {
            Some(name) => Ok(vec![self.rule_key(
                rules,
                (name, target),
                (hashers, now),
            )?]),
            None => self.keys_of_all_rules(rules, target, (hashers, now)),
        }
    }

    /// The key of the limit of a tree that a descriptor meets.
    fn descriptor_key(
        &'a self,
        rules: &'a Rules,
        target: &Target,
        hashers: &KeyHashers,
        (domain, descriptor): (&'a str, &'a Descriptor<'a>),
    ) -> Result<Key<'a>, OrderError> {
        let placed = place(rules, hashers, target)?;
        let asked = (rules.trees.lookup(domain, descriptor), None);
        let leaf = asked.0.leaf();
        let met = (rules.trees).meet(hashers, (domain, descriptor), asked, &self.facts);
        let key = met.map(|met| met.key).ok_or(OrderError::NoSuchLimit {
            rule: placed.name.clone(),
            sort: "limit",
        })?;
        Ok(Key {
            limiter: placed.place.limiter,
            rule: placed.name,
            mode: placed.mode,
            shown: leaf.map_or_else(String::new, |leaf| LeafKey(leaf, key).to_string()),
            key,
            limits: placed.limits,
            gates: &[],
            cost: 1,
        })
    }

    /// The key of the rule that the target names.
    fn rule_key(
        &'a self,
        rules: &'a Rules,
        (name, target): (&str, &Target),
        (hashers, now): (&KeyHashers, tollgate::Timestamp),
    ) -> Result<Key<'a>, OrderError> {
        let Some((number, rule)) = named(rules, name) else {
            let rule = place(rules, hashers, target)?.name;
            return Err(OrderError::WantsDescriptor { rule });
        };
        let fingerprint = match target.key {
            TargetKey::Facts(_) => place(rules, hashers, target)?
                .place
                .fingerprint
                .unwrap_or_default(),
            _ => self.fingerprint(rules, (rule, target), hashers)?,
        };
        let facts = self.facts_for(rule);
        not_of_key(rule, facts)?;
        Ok(Key::of_rule((number, rule), facts, fingerprint, now))
    }

    /// The keys of all rules that have one by these facts; an error if none has.
    fn keys_of_all_rules(
        &'a self,
        rules: &'a Rules,
        target: &Target,
        (hashers, now): (&KeyHashers, tollgate::Timestamp),
    ) -> Result<Vec<Key<'a>>, OrderError> {
        let keyed = (0..).zip(rules.applied.iter());
        let keyed = keyed.filter(|(_, rule)| rule.key.facts().next().is_some());
        let keys: Vec<_> = keyed
            .filter_map(|(number, rule)| {
                let fingerprint = self.fingerprint(rules, (rule, target), hashers).ok()?;
                let facts = self.facts_for(rule);
                Some(Key::of_rule((number, rule), facts, fingerprint, now))
            })
            .collect();
        if keys.is_empty() {
            let mut keyed = rules.applied.iter();
            let many =
                keyed.find_map(
                    |rule| match self.fingerprint(rules, (rule, target), hashers) {
                        Err(many @ OrderError::ManyKeys { .. }) => Some(many),
                        _ => None,
                    },
                );
            return Err(many.unwrap_or(OrderError::NoKey));
        }
        Ok(keys)
    }

    /// The fingerprint of the one key that a rule has by these facts.
    fn fingerprint(
        &self,
        rules: &Rules,
        (rule, target): (&Applied, &Target),
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
