//! No field of a policy changes unnoticed: a reload without a difference counts as unchanged.

mod policies;

use policies::policy;
use proptest::prelude::*;
use tollgate_engine::diff::PolicyDiff;
use tollgate_engine::policy::{DescriptorRule, Policy, Rule};

use crate::config;

/// The same with one of its parts from another. All fields are named, so that a new one isn't forgotten here.
fn with_part_of(own: &Policy, other: &Policy, part: usize) -> Policy {
    let (mut own, other) = (own.clone(), other.clone());
    let Policy {
        rules,
        facts,
        tiers,
        tenants,
        tier_fact,
        default_tier,
        exempt,
        block,
        mode,
        near_limit_percent,
        domains,
    } = &mut own;
    match part {
        0 => *facts = other.facts,
        1 => *tiers = other.tiers,
        2 => *tenants = other.tenants,
        3 => *tier_fact = other.tier_fact,
        4 => *default_tier = other.default_tier,
        5 => *exempt = other.exempt,
        6 => *block = other.block,
        7 => *mode = other.mode,
        8 => *near_limit_percent = other.near_limit_percent,
        9 => *domains = other.domains,
        10 => rules.reverse(),
        part => {
            let pairs = rules.iter_mut().zip(other.rules);
            pairs.for_each(|(own, other)| *own = rule_with_part_of(own, &other, part - 11));
        }
    }
    own
}

fn rule_with_part_of(own: &Rule, other: &Rule, part: usize) -> Rule {
    let (mut own, other) = (own.clone(), other.clone());
    match part {
        0 => own.matches = other.matches,
        1 => own.key = other.key,
        2 => own.limits.rates = other.limits.rates,
        3 => own.limits.quota = other.limits.quota,
        4 => own.limits.concurrency = other.limits.concurrency,
        5 => own.limits.unlimited = other.limits.unlimited,
        6 => own.algorithm = other.algorithm,
        7 => own.cost = other.cost,
        8 => own.mode = other.mode,
        9 => own.enforced_percent = other.enforced_percent,
        10 => own.warm_up = other.warm_up,
        11 => own.over = other.over,
        12 => own.on_store_failure = other.on_store_failure,
        13 => own.counting = other.counting,
        14 => own.hash_tag = other.hash_tag,
        15 => own.replaces = other.replaces,
        16 => own.adaptive = other.adaptive,
        17 => own.shed = other.shed,
        _ => own.shared = other.shared,
    }
    own
}

/// Without what decides nothing: the order in lists of which all hold, and of what isn't a wildcard.
fn plain(policy: &Policy) -> Policy {
    let mut policy = policy.clone();
    for list in [&mut policy.exempt, &mut policy.block] {
        list.sort_by_key(|matches| format!("{matches:?}"));
        list.dedup();
    }
    for domain in policy.domains.values_mut() {
        in_one_order(&mut domain.descriptors);
    }
    policy
}

fn in_one_order(rules: &mut [DescriptorRule]) {
    let is_wild = |rule: &DescriptorRule| {
        let value = rule.value.as_deref();
        value.is_some_and(|value| value.contains('*'))
    };
    rules.sort_by_cached_key(|rule| {
        let own = (!is_wild(rule)).then(|| (rule.key.clone(), rule.value.clone()));
        own.unwrap_or_default()
    });
    for rule in rules {
        in_one_order(&mut rule.descriptors);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, ..config() })]

    #[test]
    fn a_diff_is_empty_only_if_nothing_differs(old in policy(), other in policy(), part in 0..30usize) {
        let new = with_part_of(&old, &other, part);
        for (old, new) in [(&old, &new), (&new, &old), (&old, &old)] {
            let diff = PolicyDiff::new(old, new);
            prop_assert_eq!(diff.is_empty(), plain(old) == plain(new), "part {}", part);
        }
    }
}

#[test]
fn the_last_of_many_names_is_told() {
    let replacing = |last: &str| {
        let limits = crate::rates(&["5/s"]);
        let mut replaces: Vec<_> = (0..30).map(|number| format!("r{number}")).collect();
        replaces.push(last.to_owned());
        let rule = Rule {
            replaces,
            ..Rule::new("a", limits)
        };
        crate::policy(vec![rule])
    };
    let diff = PolicyDiff::new(&replacing("one"), &replacing("other"));
    assert!(diff.to_string().contains("r29, one] -> ["), "{diff}");
}
