//! Warnings of rules that can never apply: facts, fields and methods that no request has.

use tollgate_engine::document::Format;
use tollgate_engine::{Policy, lint};

use super::check;

#[test]
fn a_fact_that_is_a_slip_away_from_one_that_requests_have() {
    check(
        lint::MISSPELT_FACT,
        &[
            (
                "limits: [{name: a, match: {paht: /x}, rate: 10/s}]",
                "limits: [{name: a, match: {plan: x}, rate: 10/s}]",
            ),
            (
                "limits: [{name: a, key: [tennant], rate: 10/s}]",
                "limits: [{name: a, key: [team], rate: 10/s}]",
            ),
            (
                "limits: [{name: a, match: {headers.x-a: '1'}, rate: 10/s}]",
                "limits: [{name: a, match: {header.x-a: '1'}, rate: 10/s}]",
            ),
            (
                "limits: [{name: a, match: {IP: 10.0.0.0}, rate: 10/s}]",
                // Too short to be close to anything.
                "limits: [{name: a, match: {vip: 'yes', id: '7'}, rate: 10/s}]",
            ),
            (
                "limits: [{name: a, key: Users, rate: 10/s}]",
                "limits: [{name: a, key: users, rate: 10/s}]\nfacts: users",
            ),
            (
                "exempt: [{hots: a}]\nlimits: [{name: a, rate: 10/s}]",
                "exempt: [{host: a}]\nlimits: [{name: a, rate: 10/s}]",
            ),
        ],
    );
}

#[test]
fn a_field_of_a_rule_inside_its_match() {
    check(
        lint::FIELD_IN_MATCH,
        &[
            (
                "limits: [{name: a, match: {path: /x, key: user}, rate: 10/s}]",
                "limits: [{name: a, match: {path: /x}, key: user, rate: 10/s}]",
            ),
            (
                "limits: [{name: a, match: {mode: shadow}, rate: 10/s}]",
                "facts: [mode]\nlimits: [{name: a, match: {mode: shadow}, rate: 10/s}]",
            ),
        ],
    );
}

#[test]
fn a_method_in_small_letters() {
    check(
        lint::LOWER_CASE_METHOD,
        &[
            (
                "limits: [{name: a, match: {method: [post]}, rate: 10/s}]",
                "limits: [{name: a, match: {method: [POST]}, rate: 10/s}]",
            ),
            (
                "limits: [{name: a, match: {method: {not: Get}}, rate: 10/s}]",
                "limits: [{name: a, match: {method: {regex: '(?i)get'}}, rate: 10/s}]",
            ),
        ],
    );
}

#[test]
fn an_exemption_of_what_is_blocked() {
    check(
        lint::EXEMPT_IS_BLOCKED,
        &[(
            "exempt: [{ip: 10.1.0.0/16, path: /x}]\nblock: [{ip: 10.0.0.0/8}]",
            "exempt: [{ip: 10.0.0.0/8}]\nblock: [{ip: 10.1.0.0/16}]",
        )],
    );
}

#[test]
fn a_policy_that_says_which_facts_there_are_takes_no_others() {
    let codes = |text: &str| match Policy::from_text(text, Format::Yaml) {
        Ok(_) => Vec::new(),
        Err(rejected) => rejected.errors.iter().map(|error| error.code.0).collect(),
    };
    let own = "facts: [plan, tokens]\n";
    assert_eq!(
        codes(&format!(
            "{own}limits: [{{name: a, key: [plan, ip/64], rate: 9/s, cost: {{fact: tokens}}}}]"
        )),
        [] as [&str; 0]
    );
    for rule in [
        "key: [region]",
        "match: {region: eu}",
        "key: region/64",
        "cost: {fact: token}",
    ] {
        assert_eq!(
            codes(&format!("{own}limits: [{{name: a, rate: 9/s, {rule}}}]")),
            ["unknown-fact"],
            "{rule}"
        );
    }
    let tiers = "tier_fact: level\ntiers: {free: {rate: 9/s}}";
    assert_eq!(codes(&format!("{own}{tiers}")), ["unknown-fact"]);
}
