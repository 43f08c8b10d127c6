//! Limits that never apply: each is warned of once.

use std::sync::{Arc, Mutex};

use tollgate_engine::facts::Descriptor;
use tollgate_engine::observer::{Event, Observer, ObserverInterest};
use tollgate_engine::warning::Warning;
use tollgate_engine::{Facts, Policy};

use crate::missing_key::{by, missing, passes};

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<String>>>);

impl Observer for Log {
    fn on_decision(&self, _: &Event<'_>) {}

    fn on_warning(&self, warning: &Warning) {
        self.0.lock().expect("no panic").push(warning.to_string());
    }

    fn wants(&self) -> ObserverInterest {
        ObserverInterest::Denials
    }
}

#[test]
fn a_rule_that_never_finds_its_key_is_warned_of_once() {
    let log = Log::default();
    let engine = by("
limits:
- {name: per-user, key: {first: [user, [tenant, api_key]]}, rate: 1/h}
- {name: written, key: session, rate: 1/h, on_missing_key: pass}
- {name: denies, match: {path: /x}, key: user, rate: 1/h, on_missing_key: deny}
")
    .with_observer(log.clone());
    for _ in 0..99 {
        assert!(passes(
            &engine,
            &[("usr", "ada"), ("User", "ada"), ("path", "/")]
        ));
    }
    assert!(engine.warnings().is_empty());
    for _ in 0..300 {
        assert!(passes(&engine, &[("usr", "ada"), ("path", "/")]));
    }
    let expect = "the rule \"per-user\" found its key in none of its first 100 requests, and let all of them pass: it \
                  counts by user or tenant and api_key, and the last request had path, usr; did you mean user where you \
                  say usr? Send that fact, or say on_missing_key: pass, deny or one_counter";
    assert_eq!(*log.0.lock().unwrap(), [expect]);
    assert_eq!(engine.warnings().len(), 1);
    let states = engine.limiter_states();
    let never: Vec<_> = states
        .iter()
        .filter(|state| state.is_key_always_missing)
        .collect();
    assert_eq!(never.len(), 1);
    assert_eq!(never[0].name, "per-user");
    for _ in 0..100 {
        assert!(!passes(&engine, &[("path", "/x")]));
    }
    assert!(
        log.0.lock().unwrap()[1]
            .contains("and denied all of them: it counts by user, and the last request had path. ")
    );
    // Another policy is another try.
    let again = engine.policy();
    engine.reload(Policy::clone(&again)).unwrap();
    assert!(engine.warnings().is_empty());
    assert!(passes(&engine, &[("user", "ada")]));
    for _ in 0..200 {
        assert!(passes(&engine, &[]));
    }
    assert_eq!(engine.warnings(), []);
}

#[test]
fn requests_that_no_rule_is_for_are_warned_of_once() {
    let engine = by("limits: [{name: a, match: {route: /v1}, key: user, rate: 1/h}]");
    for _ in 0..300 {
        assert!(passes(&engine, &[("rotue", "/v1"), ("user", "ada")]));
    }
    let warnings: Vec<_> = engine.warnings().iter().map(ToString::to_string).collect();
    assert_eq!(
        warnings,
        [
            "no rule was for any of the first 100 requests, so nothing limits them: the last request had rotue, user; did \
          you mean route where you say rotue? tollgate explain shows what each rule wants"
        ]
    );
    // One that met a rule, also without its key, is enough.
    let engine = by("limits: [{name: a, match: {route: /v1}, key: user, rate: 1/h}]");
    assert!(passes(&engine, &[("route", "/v1")]));
    for _ in 0..300 {
        assert!(passes(&engine, &[("route", "/v2")]));
    }
    assert_eq!(engine.warnings(), []);
    // Where nothing is to be limited, nothing is missing.
    let engine = by("block: [{user: eve}]");
    for _ in 0..300 {
        assert!(passes(&engine, &[]));
    }
    assert_eq!(engine.warnings(), []);
}

#[test]
fn tenants_that_are_missing_and_tiers_that_are_not_there_are_counted_and_warned_of() {
    let text = "
tiers: {free: {rate: 1/h}, gold: {rate: 9/h}}
tier_fact: plan
default_tier: free
";
    let engine = by(text);
    for _ in 0..150 {
        assert!(passes(&engine, &[("tennant", "t"), ("plan", "gold")]));
    }
    assert_eq!(missing(&engine, "(tier)"), 150);
    let warnings: Vec<_> = engine.warnings().iter().map(ToString::to_string).collect();
    assert_eq!(
        warnings,
        [
            "none of the first 100 requests had a tenant, so no tier applied to them: the last request had plan, tennant; \
          did you mean tenant where you say tennant? Send the fact tenant"
        ]
    );
    let engine = by(text);
    for number in 0..150 {
        assert!(passes(
            &engine,
            &[("tenant", &number.to_string()), ("plan", "glod")]
        ));
    }
    assert_eq!(
        (engine.requests().unknown_tier, missing(&engine, "(tier)")),
        (150, 0)
    );
    let warnings: Vec<_> = engine.warnings().iter().map(ToString::to_string).collect();
    assert_eq!(
        warnings,
        [
            "none of the first 100 tenants was in a tier of the policy: the last request had plan=\"glod\", and the tiers are \
          free, gold. They are in the default tier"
        ]
    );
    // One that says no tier is meant to be in the default one.
    let engine = by(text);
    for number in 0..150 {
        assert!(passes(&engine, &[("tenant", &number.to_string())]));
    }
    assert_eq!(
        (engine.requests().unknown_tier, engine.warnings()),
        (0, Vec::new())
    );
    let engine = by("tiers: {free: {rate: 1/h}}\ntenants: {t1: free}");
    for number in 0..150 {
        assert!(passes(&engine, &[("tenant", &number.to_string())]));
    }
    assert_eq!(engine.requests().unknown_tier, 150);
    assert_eq!(
        engine.warnings()[0].to_string(),
        "none of the first 100 tenants was in a tier of the policy: they aren't listed under tenants. Nothing limits them: \
         add the tier, or a default_tier"
    );
}

#[test]
fn descriptors_that_meet_no_limit_are_warned_of_once() {
    let text =
        "domain: edge\ndescriptors: [{key: user, rate_limit: {unit: hour, requests_per_unit: 1}}]";
    let engine = by(text);
    for _ in 0..300 {
        let entries = [("usr", "ada"), ("path", "/")];
        assert!(
            engine
                .decide_descriptors("egde", &[Descriptor::new(&entries)], 1)
                .denied()
                .is_none()
        );
    }
    let warnings: Vec<_> = engine.warnings().iter().map(ToString::to_string).collect();
    assert_eq!(
        warnings,
        [
            "no limit was for any descriptor of the first 100 requests, so nothing limits them: the last request was of the \
          domain \"egde\" with entries usr, path, and the policy has the domains edge"
        ]
    );
    let engine = by(text);
    let _ = engine.decide_descriptors("edge", &[Descriptor::new(&[("user", "ada")])], 1);
    for _ in 0..300 {
        let _ = engine.decide_descriptors("edge", &[Descriptor::new(&[("path", "/")])], 1);
    }
    assert_eq!(engine.warnings(), []);
}

#[test]
fn a_rule_that_never_finds_its_cost_is_warned_of_once() {
    let text = "limits: [{name: tokens, key: user, rate: 10/h, cost: {fact: tokens, default: 0}}]";
    let engine = by(text);
    for number in 0..150 {
        let said = if number % 2 == 0 {
            ("tokens", "1.5")
        } else {
            ("tokns", "5")
        };
        assert!(passes(&engine, &[("user", "ada"), said]));
    }
    let warnings: Vec<_> = engine.warnings().iter().map(ToString::to_string).collect();
    assert_eq!(
        warnings,
        [
            "the rule \"tokens\" found its cost in none of its first 100 requests, and charged 0 for each: it reads tokens as \
             a whole number, and the last request had tokns, user; did you mean tokens where you say tokns? Send \
             that fact, or say the cost as a number"
        ]
    );
    assert_eq!(engine.warnings()[0].rule(), Some("tokens"));
    // One that says it once says it, by the fact or by itself.
    for first in [
        Facts::new().with("user", "ada").with("tokens", "3"),
        Facts::new().with("user", "ada").with_cost(3),
    ] {
        let engine = by(text);
        assert!(engine.decide(&first).allowed().is_some());
        for _ in 0..150 {
            assert!(passes(&engine, &[("user", "ada")]));
        }
        assert_eq!(engine.warnings(), []);
    }
}

/// As middleware with a policy of Envoy's form, whose limits are for descriptors alone.
#[test]
fn facts_that_a_policy_of_trees_is_asked_about_are_warned_of_once() {
    let text =
        "domain: edge\ndescriptors: [{key: user, rate_limit: {unit: hour, requests_per_unit: 1}}]";
    let engine = by(text);
    for _ in 0..300 {
        assert!(passes(&engine, &[("user", "ada")]));
    }
    let warnings: Vec<_> = engine.warnings().iter().map(ToString::to_string).collect();
    assert_eq!(
        warnings,
        [
            "the policy has limits for descriptors alone, and the first 100 requests had facts, so nothing limits them: the last \
             request had user. tollgate convert makes rules of such a policy"
        ]
    );
    let off = by("mode: off\nlimits: [{name: a, rate: 1/h}]");
    for _ in 0..300 {
        assert!(passes(&off, &[("user", "ada")]));
    }
    assert_eq!(off.warnings(), []);
}
