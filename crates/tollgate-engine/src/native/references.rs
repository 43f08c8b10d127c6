//! Checks references between parts of a policy: tiers, replaced rules and shared counters.

use std::collections::{BTreeMap, HashMap};

use super::DecodedPolicy;
use super::codes;
use super::reader::{PolicyReader, truncate_text};
use crate::document::Span;
use crate::policy::Rule;
use crate::suggestions;

/// Reports references to missing parts, and references that make no sense.
pub(super) fn check_references(reader: &mut PolicyReader<'_>, decoded: &DecodedPolicy) {
    check_same_names(reader, decoded);
    check_tiers(reader, decoded);
    check_replaces(reader, decoded);
    check_shared(reader, decoded);
}

/// A rule and a tier of the same name would be one name in metrics, decisions and overrides.
fn check_same_names(reader: &mut PolicyReader<'_>, decoded: &DecodedPolicy) {
    for (tier, places) in &decoded.places.tiers {
        let Some(rule) = reader.rule_names.get(tier).copied() else {
            continue;
        };
        let shown = truncate_text(tier);
        let message = format!("a rule and a tier are both called {shown:?}");
        let help = format!(
            "rename one of them: answers and metrics tell limits apart by name; the rule is in {}",
            reader.place(rule)
        );
        reader.report_with_help(codes::DUPLICATE_NAME, message, places.name, help);
    }
}

fn check_tiers(reader: &mut PolicyReader<'_>, decoded: &DecodedPolicy) {
    let (policy, places) = (&decoded.policy, &decoded.places);
    let known: Vec<&str> = places.tiers.keys().map(String::as_str).collect();
    let mut unknown = |tier: &str, span: Span| {
        if !places.tiers.contains_key(tier) && !reader.problems.is_full() {
            let message = format!("there is no tier {:?}", truncate_text(tier));
            let help = suggestions::suggestion_or_list(tier, &known);
            let help = help.unwrap_or_else(|| "define it under tiers".to_owned());
            reader.report_with_help(codes::UNKNOWN_TIER, message, span, help);
        }
    };
    for (tenant, tier) in &policy.tenants {
        let span = places.tenants.get(tenant).copied().unwrap_or_default();
        unknown(tier, span);
    }
    if let Some(tier) = &policy.default_tier {
        unknown(tier, places.default_tier);
    }
    if policy.tier_fact.is_some() && places.tiers.is_empty() {
        let message = "tier_fact says who is in which tier, but there are no tiers";
        let help = "define them under tiers, or leave it out";
        reader.report_with_help(codes::CONFLICT, message, places.tier_fact, help);
    }
}

fn check_replaces(reader: &mut PolicyReader<'_>, decoded: &DecodedPolicy) {
    let rules = &decoded.policy.rules;
    let mut indices: HashMap<&str, usize> = HashMap::new();
    for (index, rule) in rules.iter().enumerate() {
        indices.entry(&rule.name).or_insert(index);
    }
    let known: Vec<&str> = rules.iter().map(|rule| rule.name.as_str()).collect();
    for (rule, places) in rules.iter().zip(&decoded.places.rules) {
        if reader.problems.is_full() {
            return;
        }
        for (replaced, span) in rule.replaces.iter().zip(&places.replaces) {
            if *replaced == rule.name {
                let message = "a rule can't replace itself";
                reader.report_with_help(codes::REPLACES_CYCLE, message, *span, "leave it out");
            } else if !reader.rule_names.contains_key(replaced) {
                let message = format!("there is no rule {:?}", truncate_text(replaced));
                let others = known.iter().copied().filter(|name| *name != rule.name);
                let help = suggestions::did_you_mean(replaced, others);
                let help = help.unwrap_or_else(|| "a rule is called by its name".to_owned());
                reader.report_with_help(codes::UNKNOWN_RULE, message, *span, help);
            }
        }
    }
    check_cycles(reader, decoded, &indices);
}

/// Reports rules that replace one another in a cycle. None of them would apply, so nothing would limit their
/// requests.
fn check_cycles(
    reader: &mut PolicyReader<'_>,
    decoded: &DecodedPolicy,
    indices: &HashMap<&str, usize>,
) {
    let rules = &decoded.policy.rules;
    let next = |index: usize| {
        let replaced = rules[index].replaces.iter();
        replaced.filter_map(|name| indices.get(name.as_str()).copied())
    };
    #[derive(Clone, Copy, PartialEq)]
    enum VisitState {
        Not,
        Open,
        Done,
    }
    let mut seen = vec![VisitState::Not; rules.len()];
    for start in 0..rules.len() {
        if seen[start] != VisitState::Not {
            continue;
        }
        // Depth first, with an explicit stack: a chain may be as long as the file, and recursion could overflow.
        seen[start] = VisitState::Open;
        let mut path = vec![(start, next(start).collect::<Vec<_>>())];
        while let Some((index, rest)) = path.last_mut() {
            let index = *index;
            let Some(to) = rest.pop() else {
                seen[index] = VisitState::Done;
                path.pop();
                continue;
            };
            match seen[to] {
                VisitState::Not => {
                    seen[to] = VisitState::Open;
                    path.push((to, next(to).collect()));
                }
                // An open rule is on the current path, so the reference closes a cycle.
                VisitState::Open if to != index => {
                    let mut at = rules[index].replaces.iter();
                    let at = at.position(|name| *name == rules[to].name);
                    let places = &decoded.places.rules[index].replaces;
                    let span = at.and_then(|at| places.get(at).copied());
                    let [one, two] = [index, to].map(|index| truncate_text(&rules[index].name));
                    let message =
                        format!("{one:?} and {two:?} replace one another, so neither would apply");
                    let help = "take one of the two out";
                    let span = span.unwrap_or_default();
                    reader.report_with_help(codes::REPLACES_CYCLE, message, span, help);
                }
                _ => {}
            }
        }
    }
}

/// Reports rules with a shared counter whose limits or keys differ.
fn check_shared(reader: &mut PolicyReader<'_>, decoded: &DecodedPolicy) {
    let mut groups: BTreeMap<&str, Vec<(&Rule, Span)>> = BTreeMap::new();
    for (rule, places) in decoded.policy.rules.iter().zip(&decoded.places.rules) {
        if let Some(name) = &rule.shared {
            groups.entry(name).or_default().push((rule, places.shared));
        }
    }
    for (name, members) in &groups {
        let [(first, place), others @ ..] = members.as_slice() else {
            continue;
        };
        if others.is_empty() {
            let message = format!("no other rule shares {:?}", truncate_text(name));
            let others = groups.keys().copied().filter(|other| other != name);
            let help = suggestions::did_you_mean(name, others);
            let alone = || "give another rule the same shared, or leave it out".to_owned();
            reader.report_with_help(
                codes::BAD_SHARED,
                message,
                *place,
                help.unwrap_or_else(alone),
            );
        }
        for (other, place) in others {
            if let Some(what) = first_difference(first, other) {
                let [one, two] = [first, other].map(|rule| truncate_text(&rule.name));
                let message =
                    format!("{one:?} and {two:?} count together, but have another {what}");
                let help = "rules that share a counter have the same limits, algorithm, key, counting and settling";
                reader.report_with_help(codes::BAD_SHARED, message, *place, help);
            }
        }
    }
}

fn first_difference(a: &Rule, b: &Rule) -> Option<&'static str> {
    if a.limits != b.limits {
        Some("limit")
    } else if a.algorithm != b.algorithm {
        Some("algorithm")
    } else if !a.keys().eq(b.keys()) {
        Some("key")
    } else if a.counting != b.counting {
        Some("counting")
    } else if a.cost.settle != b.cost.settle {
        Some("settle_within")
    } else {
        None
    }
}
