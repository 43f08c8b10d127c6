//! Where a target's counters are, by the policy in force: the rule's number, and the fingerprint of the key.

use super::table::Limiter;
use crate::engine::rules::{Applied, Rules};
use crate::facts::{Descriptor, Facts};
use crate::limits::{KeyHashers, Limit};
use crate::matcher::Known;
use crate::orders::{OrderError, Target, TargetKey};
use crate::policy::Mode;
use crate::suggest::closest;

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
}

/// Finds a target that names a rule or a descriptor.
pub(super) fn place<'r>(
    rules: &'r Rules,
    hashers: &KeyHashers,
    target: &Target,
) -> Result<Placed<'r>, OrderError> {
    match (&target.rule, &target.key) {
        (rule, TargetKey::Descriptor { domain, entries }) => {
            of_descriptor(rules, hashers, rule.as_deref(), (domain, entries))
        }
        (Some(rule), TargetKey::Everybody) => of_all(rules, rule),
        (Some(rule), TargetKey::Facts(facts)) => {
            let facts: Facts<'_> = borrowed(facts).collect();
            of_key(rules, hashers, rule, &facts)
        }
        (None, TargetKey::Everybody | TargetKey::Facts(_)) => Err(OrderError::NamesNobody),
    }
}

/// Pairs of a target, as a request has them.
pub(super) fn borrowed(pairs: &[(String, String)]) -> impl Iterator<Item = (&str, &str)> {
    pairs
        .iter()
        .map(|(name, value)| (name.as_str(), value.as_str()))
}

/// A rule or tier by name, and its number; a rule if both have it.
pub(super) fn named<'r>(rules: &'r Rules, name: &str) -> Option<(u32, &'r Applied)> {
    match rules.orders.limiter(rules, name)? {
        Limiter::Applied(number) => Some((number, rules.applied.get(number as usize)?)),
        Limiter::Leaf(_) => None,
    }
}

fn of_all<'r>(rules: &'r Rules, name: &str) -> Result<Placed<'r>, OrderError> {
    let found = rules.orders.limiter(rules, name);
    let limiter = found.ok_or_else(|| unknown(rules, name))?;
    let (limits, mode) = match limiter {
        Limiter::Applied(number) => {
            let rule = &rules.applied[number as usize];
            (rule.limits.as_slice(), rule.mode)
        }
        Limiter::Leaf(number) => {
            let (leaf, limits) = rules.trees.leaf(number);
            (limits, rules.mode.max(leaf.mode()))
        }
    };
    Ok(Placed {
        place: Place {
            limiter,
            fingerprint: None,
        },
        name: name.to_owned(),
        limits,
        mode,
    })
}

/// A key by facts: all that make it, and no others.
fn of_key<'r>(
    rules: &'r Rules,
    hashers: &KeyHashers,
    name: &str,
    facts: &Facts<'_>,
) -> Result<Placed<'r>, OrderError> {
    let Some((number, rule)) = named(rules, name) else {
        let all = of_all(rules, name)?;
        return Err(OrderError::WantsDescriptor { rule: all.name });
    };
    let fingerprint = key_of(rules, hashers, rule, facts)?;
    let of_rule = || rule.name.to_string();
    let mut others = facts.iter().map(|(fact, _)| fact);
    if let Some(fact) = others.find(|fact| rule.key.facts().all(|own| own != *fact)) {
        return Err(OrderError::NotOfKey {
            rule: of_rule(),
            fact: fact.to_owned(),
        });
    }
    Ok(Placed {
        place: Place {
            limiter: Limiter::Applied(number),
            fingerprint: Some(fingerprint),
        },
        name: of_rule(),
        limits: rule.limits.as_slice(),
        mode: rule.mode,
    })
}

/// The fingerprint of a rule's key, as a request with these facts has it.
pub(super) fn key_of(
    rules: &Rules,
    hashers: &KeyHashers,
    rule: &Applied,
    facts: &Facts<'_>,
) -> Result<[u64; 2], OrderError> {
    let mut known = Known::new(rules.matcher.slots(), facts);
    known.look_up();
    known.read_addresses();
    rule.key.fingerprint(&known, hashers).ok_or_else(|| {
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
    (domain, entries): (&str, &[(String, String)]),
) -> Result<Placed<'r>, OrderError> {
    let entries: Vec<_> = borrowed(entries).collect();
    let descriptor = Descriptor::new(&entries);
    let met = rules.trees.leaf_of(hashers, domain, &descriptor);
    let name = met.map(|(leaf, ..)| leaf.to_string());
    let (Some((leaf, limits, fingerprint)), Some(name)) = (met, &name) else {
        let rule = rule.map(str::to_owned);
        return Err(OrderError::OtherLimit { rule, met: None });
    };
    if rule.is_some_and(|rule| rule != name) {
        let (rule, met) = (rule.map(str::to_owned), Some(name.clone()));
        return Err(OrderError::OtherLimit { rule, met });
    }
    Ok(Placed {
        place: Place {
            limiter: Limiter::Leaf(leaf.id),
            fingerprint: Some(fingerprint),
        },
        name: name.clone(),
        limits,
        mode: rules.mode.max(leaf.mode()),
    })
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
