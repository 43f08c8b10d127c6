//! Lints on a single rule: its key, its action over the limit, and its memory.

use tollgate::{Algorithm, Rate};

use super::{Warnings, codes};
use crate::document::Span;
use crate::native::RuleSpans;
use crate::policy::{KeyPart, Pattern, Policy, Rule};

/// Headers that authenticate their sender, so a client gains nothing by inventing a value.
const SECRET_HEADERS: [&str; 5] = [
    "authorization",
    "proxy-authorization",
    "x-api-key",
    "api-key",
    "apikey",
];

/// Facts that are an address.
const ADDRESS_FACTS: [&str; 5] = ["ip", "client_ip", "remote_ip", "remote_address", "address"];

pub(super) fn check_keys(found: &mut Warnings, rule: &Rule, place: &RuleSpans) {
    for name in rule.key_facts() {
        if let Some(header) = header_of_fact(name)
            && !SECRET_HEADERS.contains(&header.to_ascii_lowercase().as_str())
            && !is_limited_to_list(rule, name)
        {
            let message = format!(
                "anyone can set the header {header:?}: with another value in each request, nobody is \
                 limited"
            );
            let help = "key by a fact that was checked, such as user, api_key, or ip as the proxy in \
                        front of you reports it";
            found.warn(codes::KEY_ANYONE_CAN_SET, place.key, message, help);
        }
    }
    // As a fallback key, the address applies only to clients without another key, so the warning would be wrong.
    if let ([alone], []) = (rule.key.as_slice(), rule.fallback_keys.as_slice())
        && ADDRESS_FACTS.contains(&alone.fact())
    {
        check_address_key(found, rule, place);
    }
    for key in rule.keys() {
        let facts: Vec<&str> = key.iter().map(KeyPart::fact).collect();
        check_route_key(found, rule, place, &facts);
    }
}

/// The name of the header that a fact carries.
pub(super) fn header_of_fact(fact: &str) -> Option<&str> {
    let header = fact.strip_prefix("header.");
    header.or_else(|| fact.strip_prefix("header:"))
}

/// Whether a header with such a value authenticates its sender: a condition on one of a list of secrets.
pub(super) fn is_secret_header(header: &str, pattern: &Pattern) -> bool {
    SECRET_HEADERS.contains(&header.to_ascii_lowercase().as_str()) && is_exact_list(pattern)
}

fn check_address_key(found: &mut Warnings, rule: &Rule, place: &RuleSpans) {
    for (rate, span) in rule.limits.rates.iter().zip(&place.rates) {
        let slow = rate.period().is_some_and(|period| {
            // The rate is below one request a second.
            u128::from(rate.count()) * 1_000_000_000 < period.as_nanos()
        });
        if slow {
            let message = format!(
                "{rate} for an address alone: an office or a mobile network has thousands of users \
                 behind one"
            );
            let help = "key by user or api_key where there is one, add it to the key, or allow 1/s at \
                        least";
            found.warn(codes::ADDRESS_ALONE, *span, message, help);
        }
    }
}

fn check_route_key(found: &mut Warnings, rule: &Rule, place: &RuleSpans, facts: &[&str]) {
    let Some(route) = facts.iter().find(|fact| matches!(**fact, "path" | "route")) else {
        return;
    };
    if is_limited_to_list(rule, route) {
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
    found.warn(codes::ROUTE_TIMES_KEY, place.key, message, help);
}

/// Whether the rule's conditions limit a fact to a list of values.
fn is_limited_to_list(rule: &Rule, name: &str) -> bool {
    let mut conditions = rule.matches.conditions.iter();
    conditions.any(|(fact, pattern)| fact == name && is_exact_list(pattern))
}

fn is_exact_list(pattern: &Pattern) -> bool {
    let mut each = pattern.alternatives().into_iter();
    each.all(|one| matches!(one, Pattern::Exact(_)))
}

/// Facts that only Envoy's rate-limit actions produce.
const ENVOY_FACTS: [&str; 7] = [
    "destination_cluster",
    "generic_key",
    "header_match",
    "masked_remote_address",
    "query_match",
    "remote_address",
    "source_cluster",
];

pub(super) fn check_adaptive_and_shed(
    found: &mut Warnings,
    policy: &Policy,
    rule: &Rule,
    place: &RuleSpans,
) {
    if rule.adaptive.is_some() {
        check_adaptive_over_envoy(found, policy, rule, place);
        check_adaptive_key(found, rule, place);
    }
    if let Some(shed) = &rule.shed
        && let Some(header) = header_of_fact(&shed.by)
    {
        let message =
            format!("anyone can set the header {header:?}: whoever says critical is shed last");
        let help = "shed by a fact that was checked, or have the proxy in front of you set it, and leave it out of \
                    what clients send";
        found.warn(codes::SHED_ANYONE_CAN_SET, place.shed, message, help);
    }
}

/// Warns of adaptive limits on requests from Envoy, because its protocol doesn't report the end of a request.
fn check_adaptive_over_envoy(
    found: &mut Warnings,
    policy: &Policy,
    rule: &Rule,
    place: &RuleSpans,
) {
    let keys = rule.key_facts();
    let conditions = rule.matches.conditions.iter();
    let mut facts = keys.chain(conditions.map(|(fact, _)| fact.as_str()));
    let why = match facts.find(|fact| ENVOY_FACTS.contains(fact)) {
        Some(fact) => format!("{fact} is a fact of Envoy's"),
        None if !policy.domains.is_empty() => "this policy has descriptors of Envoy's".to_owned(),
        None => return,
    };
    let message = format!(
        "{why}, and over its protocol nobody tells how long requests take: the limit never adapts to them"
    );
    let help = "say how many concurrent requests, as in concurrency: 20, or let the service ask that runs the requests: by the \
                middleware, or by /v1/hold";
    found.warn(codes::ADAPTIVE_UNTOLD, place.concurrency, message, help);
}

/// Warns of a key on an adaptive limit. A rule has one adaptive limit, with one algorithm for all keys.
fn check_adaptive_key(found: &mut Warnings, rule: &Rule, place: &RuleSpans) {
    let splits = !rule.limits.rates.is_empty() || rule.limits.quota.is_some();
    if rule.key.is_empty() || splits || rule.enforced_percent < 100 {
        return;
    }
    let message =
        "a limit that adapts is one for all keys of its rule: the key splits nothing here"
            .to_owned();
    let help = "leave it out, or write a rule for each part that has a backend of its own";
    found.warn(codes::ADAPTIVE_BY_KEY, place.key, message, help);
}

/// Memory of a hit in a sliding log: its time and its cost.
const HIT_BYTES: u64 = 16;
/// Approximate memory of a hit in a store.
const STORED_HIT_BYTES: u64 = 70;
/// The fewest bytes a key, in memory, that cause a warning.
const WARN_BYTES: u64 = 16 << 10;

/// Warns of a sliding log of very many hits. It stores each hit of its window.
pub(super) fn check_log_memory(
    found: &mut Warnings,
    rate: &Rate,
    algorithm: Algorithm,
    span: Span,
) {
    let hits = rate.burst_size();
    let bytes = hits.saturating_mul(HIT_BYTES);
    if algorithm != Algorithm::SlidingLog || bytes < WARN_BYTES {
        return;
    }
    let message = format!(
        "a log of {hits} hits takes about {} a key in memory, and {} in a store",
        bytes_text(bytes),
        bytes_text(hits.saturating_mul(STORED_HIT_BYTES))
    );
    let help =
        "say algorithm: sliding-window or gcra, whose memory is constant, or a shorter period";
    found.warn(codes::LOG_MEMORY, span, message, help);
}

/// A number of bytes with a unit and at least two significant digits.
fn bytes_text(bytes: u64) -> String {
    const UNITS: [(u64, &str); 3] = [(1_000_000_000, "GB"), (1_000_000, "MB"), (1_000, "kB")];
    let unit = UNITS.iter().find(|(unit, _)| bytes >= *unit);
    match unit {
        Some((unit, name)) if bytes / unit < 10 => {
            format!("{}.{} {name}", bytes / unit, bytes % unit * 10 / unit)
        }
        Some((unit, name)) => format!("{} {name}", bytes / unit),
        None => format!("{bytes} bytes"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_short() {
        let sizes = [999, 1_600, 16_000, 160_000, 70_000_000, u64::MAX].map(bytes_text);
        let expected = [
            "999 bytes",
            "1.6 kB",
            "16 kB",
            "160 kB",
            "70 MB",
            "18446744073 GB",
        ];
        assert_eq!(sizes, expected);
    }
}
