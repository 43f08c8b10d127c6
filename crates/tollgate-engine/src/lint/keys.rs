//! What a key lets people do: choose it, share it, or multiply it.

use super::{ADDRESS_ALONE, Found, KEY_ANYONE_CAN_SET, ROUTE_TIMES_KEY};
use crate::native::RulePlaces;
use crate::policy::{KeyPart, Pattern, Rule};

/// Headers that prove who sends them, so that making one up gains nothing.
const PROOF: [&str; 5] = [
    "authorization",
    "proxy-authorization",
    "x-api-key",
    "api-key",
    "apikey",
];

/// Facts that are an address.
const ADDRESSES: [&str; 5] = ["ip", "client_ip", "remote_ip", "remote_address", "address"];

pub(super) fn lint(found: &mut Found, rule: &Rule, place: &RulePlaces) {
    for name in rule.key_facts() {
        if let Some(header) = header(name)
            && !PROOF.contains(&header.to_ascii_lowercase().as_str())
            && !is_bounded(rule, name)
        {
            let message = format!(
                "anyone can set the header {header:?}: with another value in each request, nobody is \
                 limited"
            );
            let help = "key by a fact that was checked, such as user, api_key, or ip as the proxy in \
                        front of you reports it";
            found.warn(KEY_ANYONE_CAN_SET, place.key, message, help);
        }
    }
    // Where the address is what others fall back to, who has another key isn't counted by it.
    if let ([alone], []) = (rule.key.as_slice(), rule.fallback_keys.as_slice())
        && ADDRESSES.contains(&alone.fact())
    {
        address(found, rule, place);
    }
    for key in rule.keys() {
        let facts: Vec<&str> = key.iter().map(KeyPart::fact).collect();
        routes(found, rule, place, &facts);
    }
}

/// The header that a fact is.
pub(super) fn header(fact: &str) -> Option<&str> {
    let header = fact.strip_prefix("header.");
    header.or_else(|| fact.strip_prefix("header:"))
}

/// Whether a header with such a value proves who sends it: one of a list of secrets.
pub(super) fn is_proof(header: &str, pattern: &Pattern) -> bool {
    PROOF.contains(&header.to_ascii_lowercase().as_str()) && is_listed(pattern)
}

fn address(found: &mut Found, rule: &Rule, place: &RulePlaces) {
    for (rate, span) in rule.limits.rates.iter().zip(&place.limits.rates) {
        let slow = rate.period().is_some_and(|period| {
            // Less than one a second.
            u128::from(rate.count()) * 1_000_000_000 < period.as_nanos()
        });
        if slow {
            let message = format!(
                "{rate} for an address alone: an office or a mobile network has thousands of users \
                 behind one"
            );
            let help = "key by user or api_key where there is one, add it to the key, or allow 1/s at \
                        least";
            found.warn(ADDRESS_ALONE, *span, message, help);
        }
    }
}

fn routes(found: &mut Found, rule: &Rule, place: &RulePlaces, facts: &[&str]) {
    let Some(route) = facts.iter().find(|fact| matches!(**fact, "path" | "route")) else {
        return;
    };
    if is_bounded(rule, route) {
        return;
    }
    let others: Vec<&str> = facts.iter().copied().filter(|fact| fact != route).collect();
    let (message, help) = match others.as_slice() {
        [] if *route == "route" => return,
        [] => (
            "a counter for each path: whoever asks for made-up paths makes as many".to_owned(),
            "key by route, which is the pattern a path fits, or match a list of paths",
        ),
        _ => {
            let others = others.join(" and ");
            (
                format!(
                    "a counter for each {route} and each {others}: as many as all of the one times all \
                     of the other, and every {route} allows the whole rate again"
                ),
                "leave the route out of the key, and write a rule for each route that needs its own",
            )
        }
    };
    found.warn(ROUTE_TIMES_KEY, place.key, message, help);
}

/// Whether the rule's conditions allow a fact only a list of values.
fn is_bounded(rule: &Rule, name: &str) -> bool {
    let mut conditions = rule.matches.conditions.iter();
    conditions.any(|(fact, pattern)| fact == name && is_listed(pattern))
}

fn is_listed(pattern: &Pattern) -> bool {
    match pattern {
        Pattern::Exact(_) => true,
        Pattern::OneOf(patterns) => patterns.iter().all(is_listed),
        _ => false,
    }
}

/// The texts that a pattern speaks of.
pub(super) fn texts<'a>(pattern: &'a Pattern, found: &mut Vec<&'a str>) {
    match pattern {
        Pattern::Exact(text)
        | Pattern::Glob(text)
        | Pattern::Prefix(text)
        | Pattern::Regex(text) => found.push(text),
        Pattern::OneOf(patterns) => {
            for pattern in patterns {
                texts(pattern, found);
            }
        }
        // A condition that says what isn't wanted names none of the texts that are.
        _ => {}
    }
}
