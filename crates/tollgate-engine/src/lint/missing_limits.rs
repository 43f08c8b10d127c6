//! Lints on clients without a limit of their own: tenants in no tier, and users who share one counter.

use super::{Warnings, active_rules, codes, condition_texts};
use crate::address::{ClientBits, Family};
use crate::document::Span;
use crate::facts::IP;
use crate::native::{PolicySpans, RuleSpans};
use crate::policy::{KeyPart, Mode, Pattern, Policy, Rule};

/// The fact that carries a tier.
const TIER_FACT: &str = "tier";

pub(super) fn check_missing_limits(found: &mut Warnings, policy: &Policy, places: &PolicySpans) {
    for (rule, place) in active_rules(policy, places) {
        check_missing_key(found, rule, place);
        for part in rule.keys().flatten() {
            check_network_key(found, part, place.key);
        }
    }
    check_default_tier(found, policy, places);
    check_tenant_patterns(found, policy, places);
    let fills = policy.tier_fact.as_deref() == Some(TIER_FACT)
        || policy.facts.iter().any(|own| own == TIER_FACT);
    if policy.tiers.is_empty() || fills {
        return;
    }
    for mention in places
        .fact_mentions
        .iter()
        .filter(|mention| mention.fact == TIER_FACT)
    {
        let message =
            "\"tier\" is a fact that requests bring, not the tier that tenants are in here"
                .to_owned();
        let help = "put the limit into the tier, or match the tenants; if requests do bring it, say so: facts: [tier]";
        found.warn(codes::TIER_IS_NO_FACT, mention.span, message, help);
    }
}

/// Warns of the network of a fact that is no address, and of networks smaller than a client's own.
fn check_network_key(found: &mut Warnings, part: &KeyPart, place: Span) {
    let KeyPart::Network { fact, bits } = part else {
        return;
    };
    if condition_texts::is_never_address(fact) {
        let message = format!("{fact:?} is no address, so it has no network of {bits} bits");
        let help = format!("write {fact} alone, or ip/{bits}");
        found.warn(codes::NETWORK_OF_TEXT, place, message, help);
    } else if *bits > ClientBits::DEFAULT.of(Family::V6) {
        let message = format!(
            "{fact}/{bits} counts by {bits} bits of an IPv6 address, and a client has all addresses that begin with the same 64: \
             with another one in each request, it isn't limited"
        );
        let help = match &**fact {
            IP => {
                "write ip, which is ip/64, or ip/56 or ip/48 for networks of providers".to_owned()
            }
            fact => format!("write {fact}/64, or {fact}/56 or {fact}/48 for networks of providers"),
        };
        found.warn(codes::EACH_IPV6_ADDRESS, place, message, help);
    }
}

/// Words in a rule's name that promise a counter for each client.
const EACH_WORDS: [&str; 4] = ["per", "each", "every", "by"];
/// Words for the client after one of the [`EACH_WORDS`], with the fact that identifies it.
const WHOM_WORDS: [(&str, &str); 9] = [
    ("user", "user users login"),
    ("ip", "ip address client"),
    (
        "tenant",
        "tenant customer account org organisation organization",
    ),
    ("team", "team"),
    ("api_key", "key apikey api token"),
    ("session", "session"),
    ("device", "device"),
    ("host", "host"),
    ("route", "route endpoint"),
];
/// Facts that identify a client. A rule with a condition on the presence of such a fact is likely meant to count by
/// it.
const IDENTITY_FACTS: [&str; 3] = ["user", "tenant", "api_key"];

/// Warns of a rule whose name or match promises a counter for each client, and that has one counter for all.
fn check_missing_key(found: &mut Warnings, rule: &Rule, place: &RuleSpans) {
    if !rule.key.is_empty() || rule.limits.unlimited || rule.adaptive.is_some() {
        return;
    }
    let lower = rule.name.to_ascii_lowercase();
    let words = condition_texts::split_words(&lower);
    let named = words.windows(2).find_map(|pair| {
        let mut whom = WHOM_WORDS.iter();
        let (fact, _) = whom.find(|(_, words)| words.split(' ').any(|word| word == pair[1]))?;
        EACH_WORDS.contains(&pair[0]).then_some((pair, *fact))
    });
    let (says, fact) = match named {
        Some((pair, fact)) => (format!("the name says {:?}", pair.join(" ")), fact),
        None => {
            let mut conditions = rule.matches.conditions.iter();
            let known = conditions.find(|(fact, pattern)| {
                IDENTITY_FACTS.contains(&fact.as_str()) && matches_any_value(pattern)
            });
            let Some((fact, _)) = known else {
                return;
            };
            (format!("it is for requests with any {fact}"), fact.as_str())
        }
    };
    let message = format!("{says}, but without a key all of them share one counter");
    let help = format!("add key: {fact}, or another name if one counter is meant");
    found.warn(codes::NO_KEY, place.name, message, help);
}

fn matches_any_value(pattern: &Pattern) -> bool {
    match pattern {
        Pattern::Present => true,
        Pattern::Glob(glob) => matches!(glob.as_str(), "*" | "**"),
        _ => false,
    }
}

/// Warns of tenants outside the tiers, unless a rule limits all tenants.
fn check_default_tier(found: &mut Warnings, policy: &Policy, places: &PolicySpans) {
    let is_used = !policy.tenants.is_empty() || policy.tier_fact.is_some();
    let limits_all = |rule: &Rule| {
        rule.mode == Mode::Enforce
            && !rule.limits.unlimited
            && rule.matches.conditions.is_empty()
            && rule.key.iter().all(|part| part.fact() == "tenant")
    };
    if policy.tiers.is_empty()
        || policy.default_tier.is_some()
        || !is_used
        || policy.rules.iter().any(limits_all)
    {
        return;
    }
    let message = match &policy.tier_fact {
        Some(fact) => format!(
            "a tenant that isn't listed and whose requests have no {fact} of a tier is in no tier, and unlimited"
        ),
        None => "a tenant that isn't listed is in no tier, and unlimited".to_owned(),
    };
    let tier = policy.tiers.keys().next().map_or("free", String::as_str);
    let help = format!(
        "say default_tier: {tier}; if they are to be unlimited, name a tier with unlimited: true"
    );
    let tenants = policy.tenants.keys().next();
    let tenants = tenants.and_then(|tenant| places.tenants.get(tenant).copied());
    let own = places.tier_fact;
    let first = policy.tiers.values().next().map(|tier| tier.span);
    let known = |span: &Span| *span != Span::default();
    let span = Some(own).filter(known).or(tenants).or(first);
    found.warn(
        codes::NO_DEFAULT_TIER,
        span.unwrap_or_default(),
        message,
        help,
    );
}

/// Warns of tenants whose names look like patterns. A tenant's name is compared literally.
fn check_tenant_patterns(found: &mut Warnings, policy: &Policy, places: &PolicySpans) {
    for tenant in policy.tenants.keys() {
        if tenant.contains('*') || tenant.starts_with('^') {
            let message = format!("tenants are names, and none is called {tenant:?}");
            let help = "name each of them, carry the tier in a fact (tier_fact), or make it the default_tier";
            let span = places.tenants.get(tenant).copied().unwrap_or_default();
            found.warn(codes::TENANT_IS_NO_PATTERN, span, message, help);
        }
    }
}
