//! Requests without the key of a rule: the effect of each choice, fallback keys, and the counters.

use std::time::Duration;

use tollgate::clock::Manual;
use tollgate_engine::document::Format;
use tollgate_engine::engine::ResetScope;
use tollgate_engine::explain::explain;
use tollgate_engine::overrides::{NewOverride, OverrideAction, Target};
use tollgate_engine::verdict::{Cause, DenyReason};
use tollgate_engine::{Facts, Policy};

use crate::common::{TestEngine, engine};

fn read(text: &str) -> Policy {
    match Policy::from_text(text, Format::Yaml) {
        Ok(checked) => checked.policy,
        Err(rejected) => panic!("{rejected}"),
    }
}

pub(crate) fn by(text: &str) -> TestEngine {
    engine(read(text), &Manual::new())
        .with_counters(100)
        .with_top_keys(10)
}

pub(crate) fn passes(engine: &TestEngine, facts: &[(&str, &str)]) -> bool {
    let facts: Facts<'_> = facts.iter().copied().collect();
    engine.decide(&facts).allowed().is_some()
}

pub(crate) fn missing(engine: &TestEngine, limiter: &str) -> u64 {
    let tallies = engine.counters().into_iter();
    let mut own = tallies.filter(|tally| &*tally.limiter == limiter);
    own.next().expect("a limiter").missing_key
}

#[test]
fn a_request_without_the_key_passes_unless_the_rule_says_otherwise() {
    for text in [
        "limits: [{name: a, key: [tenant, user], rate: 1/h}]",
        "limits: [{name: a, key: [tenant, user], rate: 1/h, on_missing_key: pass}]",
    ] {
        let engine = by(text);
        for _ in 0..5 {
            assert!(passes(&engine, &[("tenant", "t")]));
        }
        assert_eq!(missing(&engine, "a"), 5);
        assert!(passes(&engine, &[("tenant", "t"), ("user", "ada")]));
        assert!(!passes(&engine, &[("tenant", "t"), ("user", "ada")]));
        assert_eq!(missing(&engine, "a"), 5);
    }
}

#[test]
fn a_rule_may_deny_what_lacks_its_key() {
    let engine = by(
        "limits: [{name: a, key: user, rate: 9/h, on_missing_key: deny}, {name: all, rate: 1/h}]",
    );
    let facts = Facts::new().with("ip", "10.0.0.1");
    let verdict = engine.decide(&facts);
    let refused = verdict.denied().expect("no user");
    assert_eq!(refused.cause(), Cause::Rule("a"));
    assert_eq!(refused.reason(), Some(DenyReason::MissingKey));
    assert_eq!(refused.key().expect("a rule").to_string(), "(missing key)");
    assert_eq!(refused.decision().retry_after, None);
    // It was charged nothing, by no rule.
    assert!(passes(&engine, &[("user", "ada")]));
}

#[test]
fn looking_says_what_deciding_would_and_counts_nothing() {
    let engine = by("limits: [{name: a, key: user, rate: 9/h, on_missing_key: deny}]");
    let facts = Facts::new();
    let seen = engine.peek(&facts);
    assert!(!seen.decision().is_allowed());
    assert_eq!(seen.cause(), Cause::Rule("a"));
    assert_eq!(missing(&engine, "a"), 0);
    let _ = engine.decide(&facts);
    let tally = engine
        .counters()
        .into_iter()
        .find(|tally| &*tally.limiter == "a")
        .unwrap();
    assert_eq!(
        (tally.missing_key, tally.denied(DenyReason::MissingKey)),
        (1, 1)
    );
    assert_eq!(engine.top_keys().unwrap().keys[0].key, "(missing key)");
}

#[test]
fn a_rule_may_count_all_that_lack_its_key_together() {
    for limit in ["rate: 2/h", "quota: 2/day", "concurrency: 2"] {
        let engine = by(&format!(
            "limits: [{{name: a, key: user, {limit}, on_missing_key: one_counter}}]"
        ));
        let (nobody, other) = (Facts::new(), Facts::new().with("ip", "10.0.0.1"));
        let held = (
            engine.decide(&nobody).allowed(),
            engine.decide(&other).allowed(),
        );
        assert!(held.0.is_some() && held.1.is_some());
        assert!(engine.decide(&nobody).denied().is_some(), "{limit}");
        // Nobody's name is that of nobody.
        for user in ["", "(missing key)", "\u{2}", "missing"] {
            let named = Facts::new().with("user", user);
            let held = (
                engine.decide(&named).allowed(),
                engine.decide(&named).allowed(),
            );
            assert!(held.0.is_some() && held.1.is_some(), "{user:?}, {limit}");
        }
        assert_eq!(missing(&engine, "a"), 3);
        let found = engine
            .find(&Target::rule("a"))
            .expect("the counter of those without a key");
        assert_eq!(found[0].key, "(missing key)");
        assert_eq!(found[0].limits[0].decision.remaining, 0, "{limit}");
    }
}

#[test]
fn the_first_key_that_a_request_has_is_taken_each_in_a_space_of_its_own() {
    for limit in ["rate: 1/h", "quota: 1/day"] {
        let engine = by(&format!(
            "limits: [{{name: a, key: {{first: [[tenant, user], api_key, ip/24]}}, {limit}}}]"
        ));
        let told = |facts: &[(&str, &str)]| {
            let facts: Facts<'_> = facts.iter().copied().collect();
            let verdict = engine.decide(&facts);
            (
                verdict.key().map(|key| key.to_string()).unwrap_or_default(),
                verdict.allowed().is_some(),
            )
        };
        let key = |text: &str, passed| (text.to_owned(), passed);
        let address = ("ip", "10.0.0.1");
        assert_eq!(
            told(&[("tenant", "t"), ("user", "u"), address]),
            key("tenant=t user=u", true)
        );
        assert_eq!(
            told(&[("tenant", "t"), ("user", "u")]),
            key("tenant=t user=u", false)
        );
        assert_eq!(
            told(&[("tenant", "t"), ("api_key", "10.0.0.0/24"), address]),
            key("api_key=10.0.0.0/24", true)
        );
        assert_eq!(
            told(&[("tenant", "t"), address]),
            key("ip=10.0.0.0/24", true)
        );
        assert_eq!(told(&[("ip", "10.0.0.2")]), key("ip=10.0.0.0/24", false));
        assert_eq!(told(&[("user", "u")]), key("", true));
        assert_eq!(missing(&engine, "a"), 1);
    }
}

#[test]
fn a_key_to_fall_back_to_can_be_found_blocked_and_reset() {
    let engine = by("limits: [{name: a, key: {first: [user, ip]}, rate: 1/h}]");
    assert!(passes(&engine, &[("ip", "10.0.0.1")]));
    let address = Target::facts([("ip", "10.0.0.1")]);
    let found = engine.find(&address).expect("a key");
    assert_eq!(
        (found[0].key.as_str(), found[0].limits[0].decision.remaining),
        ("ip=10.0.0.1", 0)
    );
    let user = engine
        .find(&Target::facts([("user", "10.0.0.1")]))
        .expect("a key");
    assert_eq!(
        (user[0].key.as_str(), user[0].limits[0].decision.remaining),
        ("user=10.0.0.1", 1)
    );
    engine.reset(&address, ResetScope::Rates).expect("a key");
    assert!(passes(&engine, &[("ip", "10.0.0.1")]));
    let both = Target::key("a", [("user", "ada"), ("ip", "10.0.0.2")]);
    let block = NewOverride::new(OverrideAction::Block, both, Duration::from_secs(60));
    let error = engine
        .add_override(block)
        .expect_err("ada is counted by user alone");
    assert_eq!(
        error.to_string(),
        "the key of \"a\" isn't made of the fact \"ip\": leave it out"
    );
    let block = Target::key("a", [("ip", "10.0.0.2")]);
    engine
        .add_override(NewOverride::new(
            OverrideAction::Block,
            block,
            Duration::from_secs(60),
        ))
        .expect("a key");
    assert!(!passes(&engine, &[("ip", "10.0.0.2")]));
    assert!(passes(&engine, &[("ip", "10.0.0.2"), ("user", "ada")]));
}

#[test]
fn a_reload_that_adds_a_key_to_fall_back_to_keeps_what_was_counted() {
    let engine = by("limits: [{name: a, key: user, rate: 1/h}]");
    assert!(passes(&engine, &[("user", "ada")]));
    engine
        .reload(read(
            "limits: [{name: a, key: {first: [user, ip]}, rate: 1/h}]",
        ))
        .unwrap();
    assert!(!passes(&engine, &[("user", "ada")]));
    assert!(passes(&engine, &[("ip", "10.0.0.1")]));
    engine
        .reload(read(
            "limits: [{name: a, key: {first: [user, ip]}, rate: 1/h, on_missing_key: deny}]",
        ))
        .unwrap();
    assert!(!passes(&engine, &[("ip", "10.0.0.1")]));
}

#[test]
fn an_empty_value_is_a_value() {
    // Else an empty header would be a way around a limit.
    let engine =
        by("limits: [{name: a, key: {first: [user, ip]}, rate: 1/h, on_missing_key: deny}]");
    assert!(passes(&engine, &[("user", ""), ("ip", "10.0.0.1")]));
    assert!(!passes(&engine, &[("user", ""), ("ip", "10.0.0.2")]));
    assert!(passes(&engine, &[("ip", "10.0.0.2")]));
    assert_eq!(missing(&engine, "a"), 0);
}

#[test]
fn a_denial_for_want_of_a_key_can_be_in_shadow_or_bypassed() {
    let engine =
        by("limits: [{name: a, key: user, rate: 1/h, on_missing_key: deny, mode: shadow}]");
    let facts = Facts::new();
    let verdict = engine.decide(&facts);
    assert!(verdict.denied().is_none());
    let shadows: Vec<_> = verdict.shadow_denials().map(|one| one.cause).collect();
    assert_eq!(shadows, [Cause::Rule("a")]);
    let tally = engine
        .counters()
        .into_iter()
        .find(|tally| &*tally.limiter == "a")
        .unwrap();
    assert_eq!(
        (tally.missing_key, tally.shadow_denied, tally.denied_total()),
        (1, 1, 0)
    );

    let engine = by("limits: [{name: a, key: user, rate: 1/h, on_missing_key: deny}]");
    assert!(!passes(&engine, &[]));
    let bypass = NewOverride::new(
        OverrideAction::Bypass,
        Target::rule("a"),
        Duration::from_secs(60),
    );
    engine.add_override(bypass).unwrap();
    assert!(passes(&engine, &[]));
}

#[test]
fn what_is_exempt_blocked_or_replaced_lacks_no_key() {
    let engine = by("
limits:
- {name: a, key: user, rate: 1/h, on_missing_key: deny}
- {name: robots, match: {robot: present-robot}, rate: 5/h, replaces: a}
exempt: [{path: /healthz}]
");
    assert!(passes(&engine, &[("path", "/healthz")]));
    assert!(passes(&engine, &[("robot", "present-robot")]));
    assert_eq!(missing(&engine, "a"), 0);
    assert!(!passes(&engine, &[("path", "/")]));
    // One that lets requests pass for want of its key takes nobody's place.
    let engine = by("
limits:
- {name: a, rate: 1/h}
- {name: b, key: user, rate: 99/h, replaces: a}
");
    assert!(passes(&engine, &[]));
    assert!(!passes(&engine, &[]));
    assert!(passes(&engine, &[("user", "ada")]));
    // One that counts them together does.
    let engine = by("
limits:
- {name: a, rate: 1/h}
- {name: b, key: user, rate: 99/h, replaces: a, on_missing_key: one_counter}
");
    assert!(passes(&engine, &[]) && passes(&engine, &[]));
}

#[test]
fn explaining_says_which_key_it_is_and_what_is_missing() {
    let policy = read(
        "
limits:
- {name: a, key: {first: [[tenant, user], ip]}, rate: 1/h}
- {name: b, key: user, rate: 1/h, on_missing_key: deny}
- {name: c, key: user, rate: 1/h, on_missing_key: one_counter}
",
    );
    let told = |facts: &Facts<'_>| {
        let entries = explain(&policy, facts);
        entries
            .iter()
            .map(|entry| entry.standing.to_string())
            .collect::<Vec<_>>()
    };
    assert_eq!(
        told(&Facts::new()),
        [
            "it counts by tenant and user or ip, and none of them is known",
            "user is not known, and it counts by that: it denies requests without its key",
            "it is for every request; its key is (missing key)",
        ]
    );
    let facts = Facts::new().with("ip", "10.0.0.1").with("user", "ada");
    assert_eq!(
        told(&facts)[0],
        "it is for every request; its key is ip=10.0.0.1"
    );
}
