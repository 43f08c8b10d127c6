//! What a rule says of overload that does less than it seems to: a law that nobody tells anything, a key that splits
//! nothing, and a class that anyone can choose.

use super::{ADAPTIVE_BY_KEY, ADAPTIVE_UNTOLD, Found, SHED_ANYONE_CAN_SET, keys};
use crate::native::RulePlaces;
use crate::policy::{Policy, Rule};

/// Facts that only Envoy's rate-limit actions make of a request.
const ENVOY: [&str; 7] = [
    "destination_cluster",
    "generic_key",
    "header_match",
    "masked_remote_address",
    "query_match",
    "remote_address",
    "source_cluster",
];

pub(super) fn lint(found: &mut Found, policy: &Policy, rule: &Rule, place: &RulePlaces) {
    if rule.adaptive.is_some() {
        untold(found, policy, rule, place);
        by_key(found, rule, place);
    }
    if let Some(shed) = &rule.shed
        && let Some(header) = keys::header(&shed.by)
    {
        let message =
            format!("anyone can set the header {header:?}: whoever says critical is shed last");
        let help = "shed by a fact that was checked, or have the proxy in front of you set it, and leave it out of \
                    what clients send";
        found.warn(SHED_ANYONE_CAN_SET, place.shed, message, help);
    }
}

/// Over Envoy's protocol nobody says when a request ended.
fn untold(found: &mut Found, policy: &Policy, rule: &Rule, place: &RulePlaces) {
    let keys = rule.key_facts();
    let conditions = rule.matches.conditions.iter();
    let mut facts = keys.chain(conditions.map(|(fact, _)| fact.as_str()));
    let why = match facts.find(|fact| ENVOY.contains(fact)) {
        Some(fact) => format!("{fact} is a fact of Envoy's"),
        None if !policy.domains.is_empty() => "this policy has descriptors of Envoy's".to_owned(),
        None => return,
    };
    let message = format!(
        "{why}, and over its protocol nobody tells how long requests take: the limit never adapts to them"
    );
    let help = "say how many at once, as in concurrency: 20, or let the service ask that runs the requests: by the \
                middleware, or by /v1/hold";
    found.warn(ADAPTIVE_UNTOLD, place.concurrency, message, help);
}

/// There is one law a rule, and one limit.
fn by_key(found: &mut Found, rule: &Rule, place: &RulePlaces) {
    let splits = !rule.limits.rates.is_empty() || rule.limits.quota.is_some();
    if rule.key.is_empty() || splits || rule.enforced_percent < 100 {
        return;
    }
    let message =
        "a limit that adapts is one for all keys of its rule: the key splits nothing here"
            .to_owned();
    let help = "leave it out, or write a rule for each part that has a backend of its own";
    found.warn(ADAPTIVE_BY_KEY, place.key, message, help);
}
