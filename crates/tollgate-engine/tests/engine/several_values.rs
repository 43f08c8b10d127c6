//! Requests with several values of one fact: no value hides another, and none lets another pass.

use std::time::Duration;

use tollgate::clock::Manual;
use tollgate_engine::document::Format;
use tollgate_engine::overrides::{NewOverride, OverrideAction, ReplacementLimits, Target};
use tollgate_engine::policy::Policy;
use tollgate_engine::{Bounds, Facts};

use crate::common::engine;

fn policy(text: &str) -> Policy {
    Policy::from_text(text, Format::Yaml)
        .expect("a policy")
        .policy
}

fn of<'a>(fact: &'a str, value: &'a str) -> Facts<'a> {
    Facts::new().with("ip", "198.51.100.7").with(fact, value)
}

/// Both orders of two values.
fn orders_of(values: [&str; 2]) -> [[&str; 2]; 2] {
    [values, [values[1], values[0]]]
}

#[test]
fn a_rule_takes_the_place_of_another_for_its_own_value_alone() {
    let text = "
limits:
- {name: free, key: ip, rate: 1/h}
- {name: gold, match: {plan: gold}, key: ip, rate: 100/h, replaces: [free]}
";
    for [first, second] in orders_of(["gold", "free"]) {
        let engine = engine(policy(text), &Manual::new());
        let other = [of("plan", second)];
        let both = of("plan", first).with_other_sets(&other);
        assert!(engine.decide(&both).allowed().is_some());
        assert!(engine.decide(&both).denied().is_some(), "{first}, {second}");
        // Whose values are all gold is.
        let other = [of("plan", "gold")];
        let gold = of("plan", "gold").with_other_sets(&other);
        assert!((0..50).all(|_| engine.decide(&gold).allowed().is_some()));
    }
}

#[test]
fn a_bypass_of_one_value_lets_no_other_pass() {
    for [first, second] in orders_of(["good", "evil"]) {
        for rule in [None, Some("all")] {
            let policy = policy("limits: [{name: all, match: {app: '*'}, key: ip, rate: 1/h}]");
            let engine = engine(policy, &Manual::new());
            let target = match rule {
                None => Target::from_text(None, "app=good").expect("a key"),
                Some(_) => Target::from_text(None, "app=good*").expect("a key"),
            };
            let order =
                NewOverride::new(OverrideAction::Bypass, target, Duration::from_secs(3_600));
            engine.add_override(order).expect("an order");
            let other = [of("app", second)];
            let both = of("app", first).with_other_sets(&other);
            assert!(engine.decide(&both).allowed().is_some());
            assert!(engine.decide(&both).denied().is_some(), "{first}, {second}");
            let other = [
                of("app", "good"),
                of("app", "good, good").as_joined_values(),
            ];
            let good = of("app", "good").with_other_sets(&other);
            assert!((0..5).all(|_| engine.decide(&good).allowed().is_some()));
        }
    }
}

#[test]
fn the_dearest_of_several_costs_is_charged() {
    for [first, second] in orders_of(["1", "90"]) {
        let policy = policy("limits: [{name: all, key: ip, rate: 100/h, cost: {fact: tokens}}]");
        let engine = engine(policy, &Manual::new());
        let other = [of("tokens", second)];
        let both = of("tokens", first).with_other_sets(&other);
        assert_eq!(engine.decide(&both).decision().remaining, 10);
    }
}

#[test]
fn a_refusal_in_shadow_is_counted_by_the_key_of_the_value_that_it_is_of() {
    let policy = policy("limits: [{name: trial, key: user, rate: 1/h, mode: shadow}]");
    let engine = engine(policy, &Manual::new()).with_top_keys(10);
    let bob = [of("user", "bob")];
    let both = of("user", "ada").with_other_sets(&bob);
    for facts in [&bob[0], &both] {
        assert!(engine.decide(facts).allowed().is_some());
    }
    let top = engine.top_keys().expect("it is counted");
    let keys: Vec<_> = top.keys.iter().map(|own| own.key.as_str()).collect();
    assert_eq!(keys, ["user=bob"]);
}

#[test]
fn a_denial_for_want_of_a_key_names_no_key_of_another_value() {
    let text = "limits: [{name: a, key: user, rate: 9/h, on_missing_key: deny}]";
    let engine = engine(policy(text), &Manual::new()).with_top_keys(10);
    let nobody = [of("plan", "free")];
    let both = of("user", "ada").with_other_sets(&nobody);
    let verdict = engine.decide(&both);
    let refused = verdict.denied().expect("one of them has no key");
    assert_eq!(refused.key().expect("a rule").to_string(), "(missing key)");
    let top = engine.top_keys().expect("it is counted");
    assert_eq!(top.keys[0].key, "(missing key)");
}

#[test]
fn a_value_that_is_too_long_is_one_among_several_too() {
    let text = "limits: [{name: apps, match: {app: '*'}, rate: 100/h}]";
    let bounds = Bounds {
        fact_bytes: 100,
        ..Bounds::default()
    };
    let engine = engine(policy(text), &Manual::new()).with_bounds(bounds);
    let long = "x".repeat(101);
    for values in orders_of(["short", &long]) {
        let other = [of("app", values[1])];
        let both = of("app", values[0]).with_other_sets(&other);
        let verdict = engine.decide(&both);
        let refused = verdict.denied().expect("one of them is too long");
        let cause = refused.cause().to_string();
        assert!(cause.contains("has 101 bytes"), "{cause}");
    }
}

/// One descriptor of a request of this user.
fn descriptor<'a>(user: &'a str, name: &'a str) -> Facts<'a> {
    let facts = Facts::new().with("user", user).with("descriptor", name);
    facts.as_descriptor()
}

#[test]
fn a_shared_counter_is_charged_the_dearest_cost_of_all_values_and_rules() {
    let text = "
limits:
- {name: a, match: {app: good}, key: user, rate: 100/h, cost: {fact: tokens}, shared: s}
- {name: b, key: user, rate: 100/h, cost: {fact: tokens}, shared: s}
";
    let engine = engine(policy(text), &Manual::new());
    let of = |app, tokens| {
        let facts = Facts::new().with("user", "ada").with("app", app);
        facts.with("tokens", tokens)
    };
    let other = [of("other", "90")];
    let both = of("good", "1").with_other_sets(&other);
    assert_eq!(engine.decide(&both).decision().remaining, 10);
}

#[test]
fn descriptors_add_up_on_a_shared_counter() {
    let text = "
limits:
- {name: a, match: {descriptor: one}, key: user, rate: 100/h, shared: s}
- {name: b, match: {descriptor: two}, key: user, rate: 100/h, shared: s}
";
    let engine = engine(policy(text), &Manual::new());
    let descriptors = ["one", "two", "two", "two"].map(|name| descriptor("ada", name));
    let request = Facts::new().with("x", "y").with_other_sets(&descriptors);
    assert_eq!(engine.decide(&request).decision().remaining, 97);
}

#[test]
fn a_rule_that_warms_up_lets_requests_of_several_descriptors_and_costs_pass() {
    for cost in ["", "cost: {fact: tokens, default: 1}, "] {
        let text = format!(
            "limits: [{{name: r, match: {{descriptor: user}}, key: user, rate: 10/s burst 10, {cost}warm_up: 30s}}]"
        );
        let clock = Manual::starting_at(tollgate::Timestamp::from_secs(1_000));
        let engine = engine(policy(&text), &clock);
        clock.advance(Duration::from_secs(1));
        let others = ["1", "5"].map(|tokens| descriptor("ada", "user").with("tokens", tokens));
        let request = Facts::new().with("x", "y").with_other_sets(&others);
        assert!(engine.decide(&request).allowed().is_some(), "{cost}");
    }
}

#[test]
fn a_request_counts_once_however_many_keys_of_a_rule_it_has() {
    for (mode, allowed, shadow_denied) in [("enforce", 1, 0), ("shadow", 1, 1)] {
        let text = format!(
            "limits: [{{name: r, key: user, rate: 1/h, mode: {mode}}}, {{name: q, key: user, rate: 1/h, mode: {mode}}}]"
        );
        let engine = engine(policy(&text), &Manual::new()).with_counters(10);
        let others = ["bob", "eve"].map(|user| of("user", user));
        let request = of("user", "ada").with_other_sets(&others);
        assert!(engine.decide(&request).allowed().is_some());
        let _ = engine.decide(&request);
        let tallies = engine.counters();
        let rule = tallies.iter().find(|own| &*own.limiter == "r");
        let rule = rule.expect("it is counted");
        let counted = (rule.allowed, rule.shadow_denied);
        assert_eq!(counted, (allowed, shadow_denied), "{mode}");
    }
}

#[test]
fn a_request_takes_one_place_of_an_adaptive_rule() {
    let text = "limits: [{name: r, key: user, concurrency: {adaptive: aimd, min: 1, max: 200}}]";
    let engine = engine(policy(text), &Manual::new());
    let others = ["bob", "eve"].map(|user| of("user", user));
    let request = of("user", "ada").with_other_sets(&others);
    let permits = engine
        .decide(&request)
        .allowed()
        .expect("room")
        .into_permits();
    let state = engine.limiter_states()[0].adaptive.expect("it adapts");
    assert_eq!(state.in_flight, 1);
    drop(permits);
}

#[test]
fn an_override_of_one_value_leaves_what_a_rule_adds_for_others() {
    let hour = Duration::from_secs(3_600);
    let rate = ReplacementLimits {
        rates: vec!["1000/h".parse().expect("a rate")],
        ..ReplacementLimits::default()
    };
    let concurrency = ReplacementLimits {
        concurrency: Some(100),
        ..ReplacementLimits::default()
    };
    for (beside, replacement) in [
        ("warm_up: 30s, rate: 100/h", rate),
        (
            "shed: {by: prio, sheddable: 10%}, concurrency: 10",
            concurrency,
        ),
    ] {
        let text = format!("limits: [{{name: r, match: {{app: '*'}}, key: app, {beside}}}]");
        let engine = engine(policy(&text), &Manual::new());
        let target = Target::from_text(Some("r"), "app=good").expect("a target");
        let order = NewOverride::new(OverrideAction::Limit(replacement), target, hour);
        engine.add_override(order).expect("it can be done");
        let of = |app| of("app", app).with("prio", "sheddable");
        let mut held = Vec::new();
        while let Some(passed) = engine.decide(&of("evil")).allowed() {
            held.push(passed.into_permits());
            assert!(held.len() < 50, "a part of the limit");
        }
        let evil = [of("evil")];
        assert!(
            engine
                .decide(&of("good").with_other_sets(&evil))
                .denied()
                .is_some(),
            "{beside}"
        );
    }
}
