//! Lints on rules that another rule makes pointless: unreachable rules, limits that never decide, and duplicates.

use std::collections::{HashMap, HashSet};

use super::coverage::{RuleIndex, StepBudget, always_has_key_of, match_covers};
use super::rate_bounds::{CountedRate, quota_never_refuses};
use super::{Warnings, active_rules, codes};
use crate::native::{PolicySpans, RuleSpans};
use crate::policy::{KeyPart, MatchConditions, Mode, Pattern, Policy, Rule};

pub(super) fn check_redundant_limits(found: &mut Warnings, policy: &Policy, places: &PolicySpans) {
    let search = CoverageSearch {
        policy,
        places,
        index: RuleIndex::new(&policy.rules),
        fuel: StepBudget::new(),
    };
    let unreachable = check_unreachable(found, &search);
    let twice = check_same_key_and_match(found, policy, places);
    for (rule, place) in active_rules(policy, places) {
        check_limits_of_rule(found, rule, place);
    }
    for (name, tier) in &policy.tiers {
        if let Some(place) = places.tiers.get(name) {
            check_limits_of_rule(found, &tier.as_rule(name), place);
        }
    }
    check_limits_across_rules(found, &search, &unreachable, &twice);
}

/// Finds the rules that a condition covers, within the budget.
struct CoverageSearch<'a> {
    policy: &'a Policy,
    places: &'a PolicySpans,
    index: RuleIndex<'a>,
    fuel: StepBudget,
}

impl CoverageSearch<'_> {
    /// The rules that may be covered. None once the budget is spent.
    fn candidates(&self, outer: &MatchConditions) -> Option<Vec<usize>> {
        let candidates = self.index.covered_candidates(outer);
        self.fuel.spend(candidates.len() + 1).then_some(candidates)
    }
}

/// Warns of rules that no request can reach, and returns their indices.
fn check_unreachable(found: &mut Warnings, search: &CoverageSearch<'_>) -> HashSet<usize> {
    let (policy, places) = (search.policy, search.places);
    let fuel = &search.fuel;
    let inside = |list: &[MatchConditions]| {
        let mut covered = HashSet::new();
        for outer in list {
            let Some(rules) = search.candidates(outer) else {
                break;
            };
            let rules = rules.into_iter();
            covered.extend(
                rules.filter(|rule| match_covers(outer, &policy.rules[*rule].matches, fuel)),
            );
        }
        covered
    };
    let (exempt, blocked) = (inside(&policy.exempt), inside(&policy.block));
    let mut replacing: HashMap<&str, Vec<&Rule>> = HashMap::new();
    // A rule in a partial rollout leaves the other keys to the rules that it replaces.
    let for_all = |(rule, _): &(&Rule, &RuleSpans)| rule.enforced_percent == 100;
    for (rule, _) in active_rules(policy, places).filter(for_all) {
        for replaced in &rule.replaces {
            replacing.entry(replaced).or_default().push(rule);
        }
    }
    let mut indices = HashSet::new();
    for (index, (rule, place)) in policy.rules.iter().zip(&places.rules).enumerate() {
        if rule.mode == Mode::Off {
            continue;
        }
        let why = if exempt.contains(&index) {
            "every request that it matches is exempt".to_owned()
        } else if blocked.contains(&index) {
            "every request that it matches is blocked".to_owned()
        } else if let Some(missing) = absent_key_fact(rule) {
            format!("it counts by {missing:?}, but matches only requests without it")
        } else if let Some(by) = find_replacing_rule(rule, replacing.get(rule.name.as_str()), fuel)
        {
            format!(
                "{:?} replaces it for every request that it matches",
                by.name
            )
        } else {
            continue;
        };
        indices.insert(index);
        let message = format!("the rule {:?} is never reached: {why}", rule.name);
        let help = "take it out, or change what either of them matches";
        found.warn(codes::NEVER_REACHED, place.name, message, help);
    }
    indices
}

/// A fact of the key that the rule's own conditions exclude, if the rule has no other key.
fn absent_key_fact(rule: &Rule) -> Option<&str> {
    let is_ruled_out = |fact: &&str| {
        let mut conditions = rule.matches.conditions.iter();
        conditions.any(|(name, pattern)| name == fact && is_absent(pattern))
    };
    let absent = |key: &'_ [KeyPart]| key.iter().position(|part| is_ruled_out(&part.fact()));
    // Each key lacks a fact, and the rule doesn't apply without a key.
    let is_unknown = rule.needs_its_key() && rule.keys().all(|key| absent(key).is_some());
    let mut facts = rule.key_facts().filter(|_| is_unknown);
    facts.find(is_ruled_out)
}

/// Whether a pattern matches only requests without the fact.
fn is_absent(pattern: &Pattern) -> bool {
    let mut each = pattern.alternatives().into_iter();
    each.all(|one| match one {
        Pattern::Absent => true,
        Pattern::Not(inner) => match &**inner {
            Pattern::Present => true,
            inner => matches!(inner, Pattern::Glob(glob) if glob == "**"),
        },
        _ => false,
    })
}

/// The rule that applies wherever this one does, and replaces it. A rule in shadow mode replaces only other rules in
/// shadow mode.
fn find_replacing_rule<'a>(
    rule: &Rule,
    by: Option<&Vec<&'a Rule>>,
    fuel: &StepBudget,
) -> Option<&'a Rule> {
    let mut by = by?.iter().copied();
    by.find(|other| {
        other.mode <= rule.mode
            && match_covers(&other.matches, &rule.matches, fuel)
            && always_has_key_of(rule, other)
    })
}

/// Whether a rule is enforced for all keys.
fn is_enforced(rule: &Rule) -> bool {
    rule.mode == Mode::Enforce && rule.enforced_percent == 100
}

/// Pairs of enforced limits with the same key and match, as indices.
fn check_same_key_and_match(
    found: &mut Warnings,
    policy: &Policy,
    places: &PolicySpans,
) -> HashSet<(usize, usize)> {
    let mut firsts: HashMap<String, usize> = HashMap::new();
    let mut pairs = HashSet::new();
    for (index, (rule, place)) in policy.rules.iter().zip(&places.rules).enumerate() {
        if !is_enforced(rule) || rule.limits.unlimited {
            continue;
        }
        let mut conditions: Vec<_> = rule.matches.conditions.iter().collect();
        conditions.sort_by_key(|(fact, _)| fact);
        let sorted = |key: &[KeyPart]| {
            let mut key: Vec<_> = key.iter().map(|part| format!("{part:?}")).collect();
            key.sort();
            key
        };
        let keys: Vec<_> = rule.keys().map(sorted).collect();
        let is_for_all = rule.needs_its_key();
        let first = *firsts
            .entry(format!("{conditions:?} {keys:?} {is_for_all}"))
            .or_insert(index);
        let other = &policy.rules[first];
        let replaces = |a: &Rule, b: &Rule| a.replaces.contains(&b.name);
        // Limits with different costs count different things, such as requests and tokens.
        let same = rule.cost == other.cost;
        if first != index && same && !replaces(rule, other) && !replaces(other, rule) {
            pairs.insert((first, index));
            let message = format!(
                "{:?} has the same key and match as {:?}, and both are enforced",
                rule.name, other.name
            );
            let help = "write one rule with both limits, as in rate: [10/s burst 20, 1000/h]";
            found.warn(codes::SAME_KEY_AND_MATCH, place.name, message, help);
        }
    }
    pairs
}

/// Warns of limits in a rule or tier that never decide.
pub(super) fn check_limits_of_rule(found: &mut Warnings, rule: &Rule, places: &RuleSpans) {
    let limits = &rule.limits;
    let counted = |index: usize| CountedRate::new(limits.rates[index], rule.algorithm);
    let count = limits.rates.len().min(places.rates.len());
    for index in 0..count {
        let first = (0..count).find(|other| {
            let (a, b) = (counted(index), counted(*other));
            // Of two equal limits, the later is redundant.
            let equal = b.never_refuses_after(&a);
            *other != index && a.never_refuses_after(&b) && (!equal || *other < index)
        });
        if let Some(other) = first {
            let message = format!(
                "{} never decides: {} beside it always refuses first",
                limits.rates[index], limits.rates[other]
            );
            let help = "take it out, or make it stricter over a longer period";
            found.warn(codes::NEVER_DECIDES, places.rates[index], message, help);
        }
    }
    if let Some(quota) = &limits.quota {
        let rate = (0..count).find(|index| quota_never_refuses(quota, &counted(*index)));
        if let Some(index) = rate {
            let message = format!(
                "{quota} never decides: {} beside it never lets as much pass",
                limits.rates[index]
            );
            let help = "take it out, or make it smaller";
            found.warn(codes::NEVER_DECIDES, places.quota, message, help);
        }
    }
}

/// Warns of rates that never decide because of another rule's rates. Rules that already have a warning are skipped.
fn check_limits_across_rules(
    found: &mut Warnings,
    search: &CoverageSearch<'_>,
    unreachable: &HashSet<usize>,
    twice: &HashSet<(usize, usize)>,
) {
    let (policy, places) = (search.policy, search.places);
    let replaced = policy.rules.iter().flat_map(|rule| &rule.replaces);
    let gives_way: HashSet<&str> = replaced.map(String::as_str).collect();
    // Enforced rules that no other rule replaces, so their limits always decide too.
    let is_reliable = |index: &usize| {
        let rule = &policy.rules[*index];
        let enforced = is_enforced(rule) && policy.mode != Mode::Off;
        enforced && !rule.limits.rates.is_empty() && !gives_way.contains(rule.name.as_str())
    };
    let mut wide: Vec<usize> = (0..policy.rules.len()).filter(is_reliable).collect();
    // Rules with fewer conditions are more likely to cover others, so they come first.
    wide.sort_by_key(|index| policy.rules[*index].matches.conditions.len());
    let mut told: HashSet<(usize, usize)> = HashSet::new();
    for outer in wide {
        let other = &policy.rules[outer];
        let Some(candidates) = search.candidates(&other.matches) else {
            return;
        };
        for inner in candidates {
            let (rule, place) = (&policy.rules[inner], &places.rules[inner]);
            let pair = (outer.min(inner), outer.max(inner));
            let skip = outer == inner
                || rule.mode == Mode::Off
                || rule.limits.rates.is_empty()
                // Other rules add to a shared counter, and the rule in question may not see their requests.
                || rule.shared.is_some()
                || unreachable.contains(&inner)
                || unreachable.contains(&outer)
                || twice.contains(&pair);
            if skip
                || rule.cost != other.cost
                || !counts_as_part_of(rule, other)
                || !match_covers(&other.matches, &rule.matches, &search.fuel)
            {
                continue;
            }
            check_never_decides(found, rule, place, other, |number| {
                told.insert((inner, number))
            });
        }
    }
}

/// Whether all requests in one counter of `rule` are also in one counter of `other`.
fn counts_as_part_of(rule: &Rule, other: &Rule) -> bool {
    let by_one_key = |rule: &Rule| rule.fallback_keys.is_empty() && rule.needs_its_key();
    let is_part = other.key.iter().all(|part| rule.key.contains(part));
    let is_same = rule.keys().eq(other.keys()) && rule.on_missing_key == other.on_missing_key;
    is_same || (is_part && by_one_key(rule) && other.fallback_keys.is_empty())
}

/// Warns of each rate of a rule that another rule's rates make pointless, once for each rate.
fn check_never_decides(
    found: &mut Warnings,
    rule: &Rule,
    place: &RuleSpans,
    other: &Rule,
    mut is_new: impl FnMut(usize) -> bool,
) {
    let rates = rule.limits.rates.iter().zip(&place.rates);
    for (number, (rate, span)) in rates.enumerate() {
        let own = CountedRate::new(*rate, rule.algorithm);
        let mut others = other.limits.rates.iter();
        let first = others
            .find(|first| own.never_refuses_after(&CountedRate::new(**first, other.algorithm)));
        if let Some(first) = first
            && is_new(number)
        {
            let message = format!(
                "{rate} never decides: {:?} with {first} always refuses first",
                other.name
            );
            let help = format!(
                "take it out, make it stricter, or let it replace {:?}",
                other.name
            );
            found.warn(codes::NEVER_DECIDES, *span, message, help);
        }
    }
}
