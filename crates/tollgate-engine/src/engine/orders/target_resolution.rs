//! Where a target's counters are, by the policy in force: the rule's number, and the fingerprint of the key.

use std::borrow::Cow;

use super::override_table::Limiter;
use super::pattern::Conditions;
use crate::address::{ClientBits, Network};
use crate::engine::rules::{Applied, Rules};
use crate::facts::{Descriptor, Facts};
use crate::limits::{KeyHashers, KeyPlan, Limit};
use crate::orders::{FactPattern, OrderError, Target, TargetKey, borrowed};
use crate::policy::{Mode, OnMissingKey};
use crate::suggestions::closest;

/// A rule, and a key of it; without one all of the rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Place {
    pub(super) limiter: Limiter,
    pub(super) fingerprint: Option<[u64; 2]>,
}

/// A target that there is.
pub(super) struct Placed<'r> {
    pub(super) place: Place,
    pub(super) name: String,
    pub(super) limits: &'r [Limit],
    pub(super) mode: Mode,
    /// What the facts of a request have to match, if it is for some keys of the rule.
    pub(super) conditions: Option<Conditions>,
}

impl<'r> Placed<'r> {
    /// One key of a limiter, or all of it.
    fn new(rules: &'r Rules, limiter: Limiter, fingerprint: Option<[u64; 2]>) -> Self {
        let (name, limits, mode) = match limiter {
            Limiter::Applied(number) => {
                let rule = &rules.applied[number as usize];
                (rule.name.to_string(), rule.limits.as_slice(), rule.mode)
            }
            Limiter::Leaf(number) => {
                let (leaf, limits) = rules.trees.leaf(number);
                (leaf.to_string(), limits, rules.mode.max(leaf.mode()))
            }
        };
        Self {
            place: Place {
                limiter,
                fingerprint,
            },
            name,
            limits,
            mode,
            conditions: None,
        }
    }
}

/// Finds a target that names a rule or a descriptor.
pub(super) fn place<'r>(
    rules: &'r Rules,
    hashers: &KeyHashers,
    target: &Target,
) -> Result<Placed<'r>, OrderError> {
    match (&target.rule, &target.key) {
        (rule, TargetKey::Descriptor { domain, entries }) => {
            of_descriptor(rules, hashers, rule.as_deref(), domain, entries)
        }
        (Some(rule), TargetKey::Everybody) => {
            Ok(Placed::new(rules, limiter_named(rules, rule)?, None))
        }
        (Some(rule), TargetKey::Facts(facts)) => {
            let facts: Facts<'_> = borrowed(facts).collect();
            resolve_key(rules, hashers, rule, &facts)
        }
        (Some(rule), TargetKey::Patterns(facts)) => resolve_patterns(rules, hashers, rule, facts),
        (None, _) => Err(OrderError::NamesNobody),
    }
}

/// The same target; of a limit of a tree that is named by its name and its key, as lists show it, the descriptor.
pub(in crate::engine) fn as_descriptor<'t>(
    rules: &Rules,
    target: &'t Target,
) -> Result<Cow<'t, Target>, OrderError> {
    let leaf = target.rule.as_deref().and_then(|name| {
        let Limiter::Leaf(number) = rules.orders.limiter(rules, name)? else {
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
        // Of two entries by one key, facts name one value only.
        if entries.iter().any(|(key, _)| **key == *step.key) {
            return Err(OrderError::WantsDescriptor { rule });
        }
        let own = step.value.as_deref().map(str::to_owned);
        let value = value_of(&step.key).or(own).ok_or(OrderError::LacksFact {
            rule: rule.clone(),
            fact: step.key.to_string(),
        })?;
        entries.push((step.key.to_string(), value));
    }
    let mut target = Target::descriptor(&*leaf.domain, entries);
    target.rule = Some(rule);
    Ok(Cow::Owned(target))
}

/// A key, or several, by globs and networks.
fn resolve_patterns<'r>(
    rules: &'r Rules,
    hashers: &KeyHashers,
    name: &str,
    facts: &[(String, FactPattern)],
) -> Result<Placed<'r>, OrderError> {
    let (number, rule) = rule_named(rules, name)?;
    if let Some(one) = one_key(rule, facts) {
        let facts: Facts<'_> = borrowed(&one).collect();
        return resolve_key(rules, hashers, name, &facts);
    }
    let texts = facts.iter().map(|(fact, own)| (fact.as_str(), own.text()));
    // What it lacks, or has too much, is said as of one key.
    resolve_key(rules, hashers, name, &texts.collect())?;
    Ok(Placed {
        conditions: Some(Conditions::new(facts)?),
        ..Placed::new(rules, Limiter::Applied(number), None)
    })
}

/// The facts of the only key of a rule that patterns can mean; none if they match several.
pub(super) fn one_key(
    rule: &Applied,
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

/// An address of a network all of which is one key, if so many bits of an address count.
pub(super) fn in_one_network(text: &str, bits: ClientBits) -> Option<String> {
    let address = Network::parse(text)?.single_client(bits);
    address.map(|address| address.to_string())
}

/// What has this name in force.
fn limiter_named(rules: &Rules, name: &str) -> Result<Limiter, OrderError> {
    let found = rules.orders.limiter(rules, name);
    found.ok_or_else(|| unknown(rules, name))
}

/// A rule or tier by name, and its number; a rule if both have it.
pub(super) fn rule_named<'r>(
    rules: &'r Rules,
    name: &str,
) -> Result<(u32, &'r Applied), OrderError> {
    match limiter_named(rules, name)? {
        Limiter::Applied(number) => Ok((number, &rules.applied[number as usize])),
        Limiter::Leaf(_) => Err(OrderError::WantsDescriptor {
            rule: name.to_owned(),
        }),
    }
}

/// A key by facts: all that make it, and no others.
fn resolve_key<'r>(
    rules: &'r Rules,
    hashers: &KeyHashers,
    name: &str,
    facts: &Facts<'_>,
) -> Result<Placed<'r>, OrderError> {
    let (number, rule) = rule_named(rules, name)?;
    let fingerprint = key_of(rules, hashers, rule, facts)?;
    check_key_facts(rule, facts)?;
    let limiter = Limiter::Applied(number);
    Ok(Placed::new(rules, limiter, Some(fingerprint)))
}

/// Whether a rule's key is made of all of these facts.
pub(super) fn check_key_facts(rule: &Applied, facts: &Facts<'_>) -> Result<(), OrderError> {
    let own = rule.key.facts_for(facts);
    let own: Vec<&str> = own.map_or_else(Vec::new, Iterator::collect);
    let mut others = facts.iter().map(|(fact, _)| fact);
    match others.find(|fact| !own.contains(fact)) {
        Some(fact) => Err(OrderError::NotOfKey {
            rule: rule.name.to_string(),
            fact: fact.to_owned(),
        }),
        None => Ok(()),
    }
}

/// The fingerprint of a rule's key, as a request with these facts has it.
pub(super) fn key_of(
    rules: &Rules,
    hashers: &KeyHashers,
    rule: &Applied,
    facts: &Facts<'_>,
) -> Result<[u64; 2], OrderError> {
    let known = rules.known(facts);
    // Nobody's facts name the counter of those who have none of the key.
    let is_for_all =
        rule.on_missing_key == OnMissingKey::OneCounter && facts.iter().next().is_none();
    let missing = || is_for_all.then(|| KeyPlan::missing(hashers));
    let found = rule.key.fingerprint(&known, hashers).or_else(missing);
    found.ok_or_else(|| {
        let mut own = rule.key.facts();
        let fact = own.find(|fact| facts.get(fact).is_none());
        OrderError::LacksFact {
            rule: rule.name.to_string(),
            fact: fact.unwrap_or_default().to_owned(),
        }
    })
}

fn of_descriptor<'r>(
    rules: &'r Rules,
    hashers: &KeyHashers,
    rule: Option<&str>,
    domain: &str,
    entries: &[(String, String)],
) -> Result<Placed<'r>, OrderError> {
    let is_network = |value: &str| value.contains('/') && Network::parse(value).is_some();
    if let Some((key, value)) = entries.iter().find(|(_, value)| is_network(value)) {
        return Err(OrderError::NetworkInDescriptor {
            key: key.clone(),
            value: value.clone(),
        });
    }
    let entries: Vec<_> = borrowed(entries).collect();
    let met = (rules.trees).leaf_of(hashers, domain, &Descriptor::new(&entries));
    let placed = met
        .map(|(leaf, fingerprint)| Placed::new(rules, Limiter::Leaf(leaf.id), Some(fingerprint)));
    match placed {
        Some(placed) if rule.is_none_or(|rule| rule == placed.name) => Ok(placed),
        placed => Err(OrderError::OtherLimit {
            rule: rule.map(str::to_owned),
            met: placed.map(|placed| placed.name),
        }),
    }
}

/// Why nothing in force has this name.
fn unknown(rules: &Rules, name: &str) -> OrderError {
    let policy = &rules.policy;
    let mut off = policy.rules.iter().map(|rule| rule.name.as_str());
    if off.any(|own| own == name) || policy.tiers.contains_key(name) {
        return OrderError::Off {
            rule: name.to_owned(),
        };
    }
    let applied = rules.applied.iter().map(|rule| &*rule.name);
    OrderError::UnknownRule {
        rule: name.to_owned(),
        near: closest(name, applied).map(str::to_owned),
    }
}
