//! Facts that no request is likely to have: a rule that asks for one never applies, and nothing tells.

use super::cover::{Fuel, covers};
use super::{EXEMPT_IS_BLOCKED, FIELD_IN_MATCH, Found, MISSPELT_FACT};
use crate::facts::{KNOWN_FACTS, is_known_fact};
use crate::native::fields::RULE;
use crate::native::{Mention, Places};
use crate::policy::Policy;
use crate::suggest;

/// Shorter names than this are too close to too many others.
const SHORTEST: usize = 4;

pub(super) fn lint(found: &mut Found, policy: &Policy, places: &Places) {
    for mention in &places.facts {
        let fact = mention.fact.as_str();
        if is_known_fact(fact) || policy.facts.iter().any(|own| own == fact) {
            continue;
        }
        if mention.in_match && RULE.iter().any(|field| field.name == fact) {
            let message = format!(
                "{fact:?} is a field of a rule, but here it is a condition on a fact of that name"
            );
            let help = format!(
                "move it out of match, one level to the left; if it is a fact of yours, say so: facts: [{fact}]"
            );
            found.warn(FIELD_IN_MATCH, mention.span, message, help);
        } else if let Some(near) = near(fact) {
            misspelt(found, mention, &near);
        }
    }
    exempt(found, policy);
}

fn misspelt(found: &mut Found, mention: &Mention, near: &str) {
    let fact = &mention.fact;
    let message = format!("requests are likely to have no fact {fact:?}, so this never applies");
    let help = format!("did you mean {near:?}? If it is a fact of yours, say so: facts: [{fact}]");
    found.warn(MISSPELT_FACT, mention.span, message, help);
}

/// The fact that every request may have and whose name is close to this one.
fn near(fact: &str) -> Option<String> {
    if let Some((head, name)) = fact.split_once(['.', ':'])
        && matches!(
            head.to_ascii_lowercase().as_str(),
            "headers" | "hdr" | "http_header"
        )
    {
        return Some(format!("header.{name}"));
    }
    let plain = fact.to_ascii_lowercase().replace('-', "_");
    if let Some((_, known)) = ALIKE.iter().find(|(other, _)| *other == plain) {
        return Some((*known).to_owned());
    }
    let alike = |known: &&str| {
        let is_long = fact.len() >= SHORTEST && known.len() >= SHORTEST;
        is_long || known.eq_ignore_ascii_case(fact)
    };
    let candidates = KNOWN_FACTS.iter().copied().filter(alike);
    suggest::closest(fact, candidates).map(str::to_owned)
}

/// What other programs call the facts that every request may have.
const ALIKE: [(&str, &str); 8] = [
    ("user_id", "user"),
    ("userid", "user"),
    ("tenant_id", "tenant"),
    ("tenantid", "tenant"),
    ("client_ip", "ip"),
    ("remote_ip", "ip"),
    ("ip_address", "ip"),
    ("http_method", "method"),
];

/// Warns of exemptions of what is blocked: a block comes first, so they do nothing.
fn exempt(found: &mut Found, policy: &Policy) {
    let fuel = Fuel::new();
    for (number, exempt) in policy.exempt.iter().enumerate() {
        let blocks = policy.block.iter();
        let Some(block) = blocks
            .clone()
            .position(|block| covers(block, exempt, &fuel))
        else {
            continue;
        };
        let message = format!(
            "every request of exempt[{number}] is blocked by block[{block}], which comes first"
        );
        let help = "narrow the block, or leave the exemption out";
        found.warn(EXEMPT_IS_BLOCKED, exempt.span, message, help);
    }
}
