//! Lints on conditions that always hold, or never hold together: exemptions of all requests, and rules that replace
//! nothing.

use super::coverage::StepBudget;
use super::{Warnings, active_rules, codes, keys};
use crate::address::Network;
use crate::matcher::glob::Glob;
use crate::native::PolicySpans;
use crate::policy::{MatchConditions, Mode, Pattern, Policy, Rule};

pub(super) fn check_matches(found: &mut Warnings, policy: &Policy, places: &PolicySpans) {
    check_exempts_all(found, policy);
    check_header_exemptions(found, policy, places);
    let fuel = StepBudget::new();
    check_disjoint_replaces(found, policy, places, &fuel);
    check_unlimited_rules(found, policy, places, &fuel);
}

/// Warns of exemptions that match every request.
fn check_exempts_all(found: &mut Warnings, policy: &Policy) {
    for (number, exempt) in policy.exempt.iter().enumerate() {
        let mut conditions = exempt.conditions.iter();
        if !conditions.all(|(fact, pattern)| matches_everything(fact, pattern)) {
            continue;
        }
        let facts: Vec<_> = exempt
            .conditions
            .iter()
            .map(|(fact, pattern)| match pattern {
                Pattern::Cidr(network) if network == ALL_OF_IPV4 => "client of IPv4",
                _ => fact.as_str(),
            })
            .collect();
        let message = format!(
            "exempt[{number}] holds of every request that has a {}: nothing limits them",
            facts.join(" and a ")
        );
        let help = "name the requests that are exempt, as in {path: /healthz}";
        found.warn(codes::EXEMPTS_ALL, exempt.span, message, help);
    }
}

/// Warns of exemptions that a client can get by sending a header: those of the `exempt` list, and unlimited rules
/// that replace others.
fn check_header_exemptions(found: &mut Warnings, policy: &Policy, places: &PolicySpans) {
    let listed = policy.exempt.iter().map(|exempt| (exempt, exempt.span));
    let rules = active_rules(policy, places)
        .filter(|(rule, _)| rule.limits.unlimited && !rule.replaces.is_empty())
        .map(|(rule, place)| (&rule.matches, place.name));
    for (exempt, span) in listed.chain(rules) {
        let Some(header) = client_chosen_header(exempt) else {
            continue;
        };
        let message =
            format!("anyone can set the header {header:?}: whoever sends it isn't limited");
        let help = "exempt by a fact that was checked, such as ip or user, or have the proxy in front of you take the header out of \
                    what clients send";
        found.warn(codes::EXEMPT_ANYONE_CAN_SET, span, message, help);
    }
}

/// The header that alone decides about an exemption and doesn't authenticate its sender.
fn client_chosen_header(exempt: &MatchConditions) -> Option<&str> {
    let mut chosen = None;
    for (fact, pattern) in &exempt.conditions {
        match keys::header_of_fact(fact) {
            Some(header) if keys::is_secret_header(header, pattern) => return None,
            Some(header) => chosen = chosen.or(Some(header)),
            // A client can choose these facts too, so they don't make the exemption safer.
            None if matches!(fact.as_str(), "method" | "host") => {}
            None => return None,
        }
    }
    chosen
}

const ALL_OF_IPV4: &str = "0.0.0.0/0";

/// Whether a pattern matches all values of a fact that requests have, or all IPv4 addresses.
fn matches_everything(fact: &str, pattern: &Pattern) -> bool {
    match (fact, pattern) {
        ("ip", Pattern::Cidr(network)) => network == ALL_OF_IPV4,
        (_, Pattern::OneOf(any)) => any.iter().any(|pattern| matches_everything(fact, pattern)),
        ("method" | "host" | "path" | "ip", Pattern::Present) => true,
        ("method" | "host", Pattern::Glob(glob)) => matches!(glob.as_str(), "*" | "**"),
        ("path", Pattern::Glob(glob)) => matches!(glob.as_str(), "**" | "/**"),
        ("path", Pattern::Prefix(prefix)) => prefix == "/",
        ("method" | "host" | "path" | "ip", Pattern::Regex(regex)) => {
            let bare = regex.trim_start_matches('^').trim_end_matches('$');
            matches!(bare, ".*" | ".+" | "(.*)") || fact == "path" && matches!(bare, "/.*" | "/?.*")
        }
        _ => false,
    }
}

/// Warns of rules that replace rules which never apply to the same request.
fn check_disjoint_replaces(
    found: &mut Warnings,
    policy: &Policy,
    places: &PolicySpans,
    fuel: &StepBudget,
) {
    let by_name: std::collections::HashMap<&str, &Rule> = policy
        .rules
        .iter()
        .map(|rule| (rule.name.as_str(), rule))
        .collect();
    for (rule, place) in active_rules(policy, places) {
        for (number, name) in rule.replaces.iter().enumerate() {
            let Some(other) = by_name.get(name.as_str()) else {
                continue;
            };
            if let Some(fact) = disjoint_fact(&rule.matches, &other.matches, fuel) {
                let message = format!(
                    "{:?} and {name:?} are never for the same request: no {fact} meets the conditions of both",
                    rule.name
                );
                let help = "leave it out, or change what either of them matches";
                let span = place.replaces.get(number).copied().unwrap_or(place.name);
                found.warn(codes::REPLACES_NOTHING, span, message, help);
            }
        }
    }
}

/// Warns of unlimited rules that replace none. All other rules still limit their requests.
fn check_unlimited_rules(
    found: &mut Warnings,
    policy: &Policy,
    places: &PolicySpans,
    fuel: &StepBudget,
) {
    for (rule, place) in active_rules(policy, places) {
        if !rule.limits.unlimited || !rule.replaces.is_empty() {
            continue;
        }
        let mut others = policy
            .rules
            .iter()
            .filter(|other| !other.limits.unlimited && other.mode != Mode::Off && fuel.spend(1));
        let Some(other) =
            others.find(|other| disjoint_fact(&rule.matches, &other.matches, fuel).is_none())
        else {
            continue;
        };
        let message = format!(
            "{:?} is unlimited and replaces nothing: {:?} still limits its requests",
            rule.name, other.name
        );
        let help = format!(
            "say replaces: {:?}, or list its requests under exempt",
            other.name
        );
        found.warn(codes::UNLIMITED_REPLACES_NOTHING, place.name, message, help);
    }
}

/// The fact for which no value meets both conditions.
fn disjoint_fact<'a>(
    one: &'a MatchConditions,
    other: &MatchConditions,
    fuel: &StepBudget,
) -> Option<&'a str> {
    one.conditions.iter().find_map(|(fact, a)| {
        let mut same = other.conditions.iter().filter(|(name, _)| name == fact);
        let is_apart =
            fuel.spend(other.conditions.len()) && same.any(|(_, b)| are_disjoint(a, b, fuel));
        is_apart.then_some(fact.as_str())
    })
}

/// Whether it is certain that no text, and no missing fact, meets both patterns.
fn are_disjoint(a: &Pattern, b: &Pattern, fuel: &StepBudget) -> bool {
    if !fuel.spend(1) {
        return false;
    }
    match (a, b) {
        (Pattern::OneOf(each), other) | (other, Pattern::OneOf(each)) => each
            .iter()
            .all(|pattern| are_disjoint(pattern, other, fuel)),
        (Pattern::Not(inner), other) | (other, Pattern::Not(inner)) => **inner == *other,
        (Pattern::Absent, Pattern::Absent) => false,
        (Pattern::Absent, _) | (_, Pattern::Absent) => true,
        (Pattern::Exact(a), Pattern::Exact(b)) => a != b,
        (Pattern::Exact(text), Pattern::Prefix(prefix))
        | (Pattern::Prefix(prefix), Pattern::Exact(text)) => !text.starts_with(prefix),
        (Pattern::Exact(text), Pattern::Glob(glob))
        | (Pattern::Glob(glob), Pattern::Exact(text)) => {
            let is_cheap = fuel.spend(glob.len().saturating_mul(text.len()));
            is_cheap && Glob::new(glob).is_some_and(|glob| !glob.matches(text))
        }
        (Pattern::Cidr(a), Pattern::Cidr(b)) => match (Network::parse(a), Network::parse(b)) {
            (Some(a), Some(b)) => !a.covers(&b) && !b.covers(&a),
            _ => false,
        },
        _ => match (
            super::coverage::common_prefix(a),
            super::coverage::common_prefix(b),
        ) {
            (Some(a), Some(b)) => !a.starts_with(b) && !b.starts_with(a),
            _ => false,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_excludes_one_another() {
        let exact = |text: &str| Pattern::Exact(text.into());
        let prefix = |text: &str| Pattern::Prefix(text.into());
        let glob = |text: &str| Pattern::Glob(text.into());
        let net = |text: &str| Pattern::Cidr(text.into());
        let not = |pattern| Pattern::Not(Box::new(pattern));
        let any = |patterns: &[Pattern]| Pattern::OneOf(patterns.to_vec());
        for (a, b, expect) in [
            (exact("/a"), exact("/b"), true),
            (exact("/a"), exact("/a"), false),
            (exact("/a"), prefix("/a"), false),
            (exact("/b"), prefix("/a"), true),
            (exact("/a/b"), glob("/a/*"), false),
            (exact("/a/b/c"), glob("/a/*"), true),
            (prefix("/a"), glob("/a/**"), false),
            (prefix("/b"), glob("/a/**"), true),
            (any(&[exact("/a"), exact("/b")]), exact("/b"), false),
            (any(&[exact("/a"), exact("/b")]), exact("/c"), true),
            (Pattern::Absent, Pattern::Present, true),
            (Pattern::Absent, not(exact("/a")), false),
            (not(exact("/a")), exact("/a"), true),
            (not(exact("/a")), exact("/b"), false),
            (net("10.0.0.0/8"), net("10.1.0.0/16"), false),
            (net("10.0.0.0/8"), net("11.0.0.0/8"), true),
        ] {
            let found = are_disjoint(&a, &b, &StepBudget::new());
            assert_eq!(found, expect, "{a:?} {b:?}");
            assert_eq!(
                are_disjoint(&b, &a, &StepBudget::new()),
                expect,
                "{b:?} {a:?}"
            );
        }
    }
}
