//! The engine's behaviour for each word of a policy.

use std::time::Duration;

use crate::common::{engine, only, policy, rates, rule};
use crate::{awaited, user};
use tollgate::clock::Manual;
use tollgate::{Outcome, Timestamp};
use tollgate_engine::Facts;
use tollgate_engine::policy::{Cost, Limits, Mode, Tier};
use tollgate_engine::verdict::Cause;

fn unlimited() -> Limits {
    Limits {
        unlimited: true,
        ..Limits::default()
    }
}

#[test]
fn exempt_requests_pass_and_blocked_ones_dont_whatever_the_rules_say() {
    let clock = Manual::new();
    let mut all = policy(vec![rule("none", rates(&["zero"]))]);
    all.exempt = vec![only("path", "/healthz")];
    all.block = vec![only("user", "bad"), only("user", "worse")];
    let engine = engine(all.clone(), &clock);
    let exempt = user("good").with("path", "/healthz");
    assert_eq!(engine.decide(&exempt).cause(), Cause::Exempt(0));
    // Blocked is blocked, wherever it knocks.
    let both = user("worse").with("path", "/healthz");
    assert_eq!(engine.decide(&both).cause(), Cause::Block(1));
    let facts = user("worse");
    let blocked = engine.decide(&facts);
    assert_eq!(
        (blocked.denied().is_none(), blocked.cause()),
        (false, Cause::Block(1))
    );
    assert_eq!(blocked.decision().outcome, Outcome::Never);
    assert_eq!(blocked.key().map(|key| key.to_string()), None);

    all.mode = Mode::Shadow;
    engine.reload(all).unwrap();
    let facts = user("worse");
    let told = engine.decide(&facts);
    assert!(told.denied().is_none());
    let told: Vec<_> = told
        .shadow_denials()
        .map(|one| one.cause.to_string())
        .collect();
    assert_eq!(told, ["block[1]", "rule \"none\""]);
}

#[test]
fn a_rule_doesnt_apply_without_the_facts_of_its_key() {
    let engine = engine(policy(vec![rule("none", rates(&["zero"]))]), &Manual::new());
    let facts = Facts::new();
    let verdict = engine.decide(&facts);
    assert_eq!(
        (verdict.denied().is_none(), verdict.cause()),
        (true, Cause::Nothing)
    );
    assert!(engine.decide(&user("")).denied().is_some());
}

#[test]
fn a_rule_takes_the_place_of_others_unless_it_is_in_shadow() {
    let mut trusted = rule("trusted", unlimited());
    trusted.matches = only("user", "root");
    trusted.replaces = vec!["all".to_owned()];
    let all = rule("all", rates(&["1/h"]));
    let clock = Manual::new();
    let engine = engine(policy(vec![trusted.clone(), all.clone()]), &clock);
    let facts = user("root");
    for _ in 0..3 {
        let verdict = engine.decide(&facts);
        assert_eq!(
            (verdict.denied().is_none(), verdict.cause()),
            (true, Cause::Rule("trusted"))
        );
    }
    assert!(engine.decide(&user("1")).allowed().is_some());
    assert!(engine.decide(&user("1")).denied().is_some());

    trusted.mode = Mode::Shadow;
    engine.reload(policy(vec![trusted, all])).unwrap();
    assert!(engine.decide(&facts).allowed().is_some());
    assert!(engine.decide(&facts).denied().is_some());
}

#[test]
fn a_rule_in_shadow_counts_by_itself_and_only_what_passes() {
    let mut shadow = rule("trial", rates(&["2/h"]));
    shadow.mode = Mode::Shadow;
    let engine = engine(
        policy(vec![rule("real", rates(&["3/h"])), shadow]),
        &Manual::new(),
    );
    let facts = user("1");
    let refused = |verdict: &tollgate_engine::RequestDecision<'_>| verdict.shadow_denials().count();
    let counts: Vec<_> = (0..4)
        .map(|_| {
            let verdict = engine.decide(&facts);
            assert_ne!(verdict.cause(), Cause::Rule("trial"));
            (verdict.denied().is_none(), refused(&verdict))
        })
        .collect();
    assert_eq!(counts, [(true, 0), (true, 0), (true, 1), (false, 0)]);
}

#[test]
fn all_or_none_a_refusal_by_one_rule_charges_no_other() {
    let wide = rule("wide", rates(&["10/h"]));
    let mut narrow = rule("narrow", rates(&["1/h"]));
    narrow.matches = only("path", "/narrow");
    let engine = engine(policy(vec![wide, narrow]), &Manual::new());
    let both = user("1").with("path", "/narrow");
    assert!(engine.decide(&both).allowed().is_some());
    for _ in 0..5 {
        let verdict = engine.decide(&both);
        assert_eq!(
            (verdict.denied().is_none(), verdict.cause()),
            (false, Cause::Rule("narrow"))
        );
    }
    assert_eq!(engine.decide(&user("1")).decision().remaining, 8);
}

#[test]
fn rules_that_share_a_counter_count_together_and_once_a_request() {
    let shared = |name: &str, path: &str| {
        let mut own = rule(name, rates(&["4/h"]));
        own.matches = only("path", path);
        own.shared = Some("both".to_owned());
        own
    };
    let rules = vec![shared("a", "/a"), shared("b", "/b"), shared("a too", "/a")];
    let engine = engine(policy(rules), &Manual::new());
    let (a, b) = (user("1").with("path", "/a"), user("1").with("path", "/b"));
    assert_eq!(engine.decide(&a).decision().remaining, 3);
    assert_eq!(engine.decide(&b).decision().remaining, 2);
    assert_eq!(engine.decide(&a).decision().remaining, 1);
}

#[test]
fn a_counter_that_rules_share_is_charged_the_highest_cost_whatever_their_order_and_mode() {
    let shared = |name: &str, cost: u64, mode: Mode| {
        let mut own = rule(name, rates(&["9/h"]));
        own.limits.concurrency = Some(1);
        own.shared = Some("both".to_owned());
        own.cost.default = cost;
        own.mode = mode;
        own
    };
    let (one, three) = ((1, Mode::Enforce), (3, Mode::Enforce));
    let (tried, both_tried) = ((1, Mode::Shadow), (3, Mode::Shadow));
    for (first, second, left) in [
        (one, three, 6),
        (three, one, 6),
        (three, tried, 6),
        (tried, three, 6),
        (one, both_tried, 8),
        (both_tried, tried, 6),
        (tried, both_tried, 6),
    ] {
        let rules = vec![
            shared("a", first.0, first.1),
            shared("b", second.0, second.1),
        ];
        let engine = engine(policy(rules), &Manual::new());
        let facts = user("1");
        let verdict = engine.decide(&facts);
        assert_eq!(verdict.shadow_denials().count(), 0, "{first:?} {second:?}");
        drop(verdict);
        // One that looks tells what is left.
        let mut look = shared("look", 0, Mode::Enforce);
        look.limits.concurrency = None;
        engine.reload(policy(vec![look])).unwrap();
        let left_now = engine.decide(&facts).decision().remaining;
        assert_eq!(left_now, left, "{first:?} {second:?}");
    }
}

#[test]
fn a_cost_comes_from_its_fact_if_that_is_a_number() {
    let mut tokens = rule("tokens", rates(&["100/h"]));
    tokens.cost = Cost {
        fact: Some("tokens".to_owned()),
        default: 2,
        settle: None,
    };
    let engine = engine(policy(vec![tokens]), &Manual::new());
    let left = |tokens| {
        engine
            .decide(&user("1").with("tokens", tokens))
            .decision()
            .remaining
    };
    assert_eq!(left("30"), 70);
    assert_eq!(left("many"), 68);
    assert_eq!(left("0"), 68);
    assert_eq!(engine.decide(&user("1")).decision().remaining, 66);
    // Also if no number is as large.
    for tokens in ["101", "18446744073709551615", "99999999999999999999999"] {
        let facts = user("1").with("tokens", tokens);
        assert_eq!(engine.decide(&facts).decision().outcome, Outcome::Never);
    }
}

#[test]
fn a_tenant_is_limited_by_its_tier_and_takes_along_what_it_spent() {
    let tier = |rate: &str, concurrency| {
        Tier::new(Limits {
            concurrency: Some(concurrency),
            ..rates(&[rate])
        })
    };
    let mut all = policy(Vec::new());
    all.tiers.insert("free".to_owned(), tier("2/h", 9));
    all.tiers.insert("paid".to_owned(), tier("100/h", 1));
    all.tenants.insert("acme".to_owned(), "paid".to_owned());
    all.tier_fact = Some("tier".to_owned());
    all.default_tier = Some("free".to_owned());
    let clock = Manual::new();
    let engine = engine(all.clone(), &clock);
    let tenant = |name| Facts::new().with("tenant", name);
    let (acme, new, claims) = (
        tenant("acme"),
        tenant("new"),
        tenant("claims").with("tier", "paid"),
    );
    let running = engine.decide(&acme);
    assert_eq!(running.cause(), Cause::Tier("paid"));
    let second = engine.decide(&acme);
    assert_eq!(
        (second.denied().is_none(), second.decision().limit),
        (false, 1)
    );
    drop(running);
    assert!(engine.decide(&claims).allowed().is_some());
    assert!(engine.decide(&new).allowed().is_some() && engine.decide(&new).allowed().is_some());
    assert_eq!(engine.decide(&new).cause(), Cause::Tier("free"));
    assert!(engine.decide(&Facts::new()).allowed().is_some());
    // Two are spent of a hundred, and the third counts in both tiers.
    let upgraded = tenant("new").with("tier", "paid");
    assert!(engine.decide(&upgraded).allowed().is_some());
    let refused = engine.decide(&new);
    assert_eq!(refused.cause(), Cause::Tier("free"));
    assert_eq!(refused.decision().wait_or_max(), Duration::from_secs(72));

    all.tenants.insert("b".to_owned(), "gold".to_owned());
    let error = engine.reload(all).unwrap_err().to_string();
    let expect = "there is no tier \"gold\"; add it to tiers, or name one that is there";
    assert_eq!(error, expect);
}

#[test]
fn near_is_from_the_part_that_the_policy_says() {
    let engine = engine(policy(vec![rule("ten", rates(&["10/h"]))]), &Manual::new());
    let facts = user("1");
    let near: Vec<_> = (0..11)
        .map(|_| engine.decide(&facts).is_near_limit())
        .collect();
    let expect: Vec<_> = (1..12).map(|used| (8..=10).contains(&used)).collect();
    assert_eq!(near, expect);
}

#[test]
fn a_backend_may_be_awaited() {
    let engine = engine(policy(vec![rule("one", rates(&["1/h"]))]), &Manual::new());
    let facts = user("1");
    let outcomes = [(); 2].map(|()| {
        awaited(engine.decide_async(&facts))
            .unwrap()
            .allowed()
            .is_some()
    });
    assert_eq!(outcomes, [true, false]);
}

#[test]
fn a_policy_that_is_off_does_nothing() {
    let mut off = policy(vec![rule("none", rates(&["zero"]))]);
    off.block = vec![only("user", "1")];
    off.mode = Mode::Off;
    let engine = engine(off, &Manual::new());
    assert!(engine.decide(&user("1")).allowed().is_some());
}

#[test]
fn of_several_limits_that_refuse_the_one_that_takes_longest_is_told() {
    let clock = Manual::new();
    let narrow = rule("second", rates(&["1/s"]));
    let engine = engine(policy(vec![narrow, rule("hour", rates(&["2/h"]))]), &clock);
    let facts = user("1");
    for _ in 0..2 {
        assert!(engine.decide(&facts).allowed().is_some());
        clock.advance(Duration::from_secs(1));
    }
    clock.set(Timestamp::from_millis(1_500));
    let refused = engine.decide(&facts);
    assert_eq!(refused.cause(), Cause::Rule("hour"));
    assert_eq!(
        refused.decision().wait_or_max(),
        Duration::from_millis(1_800_000 - 1_500)
    );
}
