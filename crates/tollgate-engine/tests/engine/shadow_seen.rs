//! The visibility of rules in shadow mode and of bypasses: which rules count requests, and which would deny them.

use std::time::Duration;

use tollgate::clock::Manual;
use tollgate_engine::document::Format;
use tollgate_engine::facts::Descriptor;
use tollgate_engine::overrides::{NewOverride, OverrideAction, Target};
use tollgate_engine::policy::Policy;

use crate::common::{TestEngine, engine};
use crate::user;

const MINUTE: Duration = Duration::from_secs(60);

fn by(text: &str) -> TestEngine {
    let policy = Policy::from_text(text, Format::Yaml)
        .expect("a policy")
        .policy;
    engine(policy, &Manual::new())
        .with_counters(10)
        .with_top_keys(10)
}

/// The requests that passed, were near the limit and would have been denied, by limiter.
fn counts(engine: &TestEngine) -> Vec<(String, u64, u64, u64)> {
    let all = engine.counters().into_iter();
    let all = all.map(|own| {
        (
            own.limiter.to_string(),
            own.allowed,
            own.near_limit,
            own.shadow_denied,
        )
    });
    all.filter(|(_, allowed, near, shadow)| allowed + near + shadow > 0)
        .collect()
}

#[test]
fn a_rule_in_shadow_counts_its_requests_and_nobody_else_does() {
    let engine = by("limits: [{name: trial, key: user, rate: 5/h, mode: shadow}]");
    for _ in 0..8 {
        assert!(engine.decide(&user("ada")).allowed().is_some());
    }
    // Four fifths of it are used by the fourth.
    assert_eq!(counts(&engine), [("trial".to_owned(), 5, 2, 3)]);
    let top = engine.top_keys().expect("it is counted");
    let first = &top.keys[0];
    assert_eq!(
        (first.limiter.as_str(), first.key.as_str()),
        ("trial", "user=ada")
    );
    assert_eq!(
        (first.denied, first.is_shadow, top.keys.len()),
        (3, true, 1)
    );
}

#[test]
fn a_request_that_is_bypassed_is_counted_as_that() {
    let engine = by("limits: [{name: a, key: user, rate: 1/h}]");
    let bypass = NewOverride::new(
        OverrideAction::Bypass,
        Target::facts([("user", "svc")]),
        MINUTE,
    );
    engine.add_override(bypass).expect("an order");
    for _ in 0..3 {
        assert!(engine.decide(&user("svc")).allowed().is_some());
    }
    assert_eq!(counts(&engine), [("(bypass)".to_owned(), 3, 0, 0)]);
    assert!(engine.top_keys().expect("it is counted").keys.is_empty());
}

#[test]
fn descriptors_in_shadow_are_told_and_those_bypassed_are_counted_as_that() {
    let engine = by("
domain: edge
descriptors:
- {key: trial, shadow_mode: true, rate_limit: {unit: hour, requests_per_unit: 1}}
- {key: user, rate_limit: {unit: hour, requests_per_unit: 1}}
");
    let trial = [Descriptor::new(&[("trial", "x")])];
    for _ in 0..3 {
        assert!(
            engine
                .decide_descriptors("edge", &trial, 1)
                .denied()
                .is_none()
        );
    }
    let top = engine.top_keys().expect("it is counted");
    assert_eq!(
        (
            top.keys[0].key.as_str(),
            top.keys[0].denied,
            top.keys[0].is_shadow
        ),
        ("trial=x", 2, true)
    );
    engine
        .add_override(NewOverride::new(
            OverrideAction::Bypass,
            Target::rule("edge/user"),
            MINUTE,
        ))
        .expect("an order");
    let ada = [Descriptor::new(&[("user", "ada")])];
    for _ in 0..3 {
        assert!(
            engine
                .decide_descriptors("edge", &ada, 1)
                .denied()
                .is_none()
        );
    }
    let bypassed = counts(&engine).into_iter().find(|own| own.0 == "(bypass)");
    assert_eq!(bypassed.map(|own| own.1), Some(3));
}

#[test]
fn the_tier_that_applies_to_a_tenant_is_told() {
    let engine = by("
default_tier: free
tenants: {acme: gold}
tiers: {free: {rate: 1/h}, gold: {rate: 9/h}}
");
    let of = |tenant: &str| {
        let found = engine
            .find(&Target::facts([("tenant", tenant)]))
            .expect("keys")
            .into_iter();
        found
            .map(|found| (found.rule, found.applies))
            .collect::<Vec<_>>()
    };
    let tiers = |free, gold| {
        [
            ("free".to_owned(), Some(free)),
            ("gold".to_owned(), Some(gold)),
        ]
    };
    assert_eq!(of("acme"), tiers(false, true));
    assert_eq!(of("other"), tiers(true, false));
}
