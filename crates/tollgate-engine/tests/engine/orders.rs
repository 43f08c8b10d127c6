//! Operators' overrides: their effect, their targets, and their expiry.

use std::time::Duration;

use tollgate::Rate;
use tollgate::clock::Manual;
use tollgate::snapshot::{SnapshotReader, SnapshotWriter};
use tollgate_engine::backend::Memory;
use tollgate_engine::document::Format;
use tollgate_engine::facts::Descriptor;
use tollgate_engine::overrides::{
    MAX_OVERRIDE_DURATION, NewOverride, Override, OverrideAction, OverrideError, OverrideFacts,
    OverrideStatus, ReplacementLimits, Target,
};
use tollgate_engine::policy::{KeyPart, MatchConditions, Mode, Policy, Rule};
use tollgate_engine::verdict::{Cause, DenyReason};
use tollgate_engine::{Engine, Facts};
use tollgate_testkit::temp_folder::TempFolder;

use crate::common::{TestEngine, engine, only, policy, rates, rule};
use crate::{awaited, user};

mod descriptors;
mod matching;
mod told;

const MINUTE: Duration = Duration::from_secs(60);

fn read(text: &str) -> Policy {
    Policy::from_text(text, Format::Yaml)
        .expect("a policy")
        .policy
}

fn of(act: OverrideAction, target: Target) -> NewOverride {
    NewOverride::new(act, target, MINUTE).author("ada")
}

fn rate(rate: &str) -> OverrideAction {
    let rate: Rate = rate.parse().expect("a rate");
    OverrideAction::Limit(ReplacementLimits {
        rates: vec![rate],
        ..ReplacementLimits::default()
    })
}

fn order(engine: &TestEngine, act: OverrideAction, target: Target) -> Override {
    engine.add_override(of(act, target)).expect("an order")
}

fn passes(engine: &TestEngine, facts: &Facts<'_>) -> bool {
    engine.decide(facts).allowed().is_some()
}

/// How many of ten pass.
fn of_ten(engine: &TestEngine, facts: &Facts<'_>) -> usize {
    (0..10).filter(|_| passes(engine, facts)).count()
}

const TREE: &str = "
domain: edge
descriptors:
- {key: user, rate_limit: {unit: hour, requests_per_unit: 2}}
- {key: plan, rate_limit: {unit: hour, requests_per_unit: 5}}
- {key: trial, shadow_mode: true, rate_limit: {unit: hour, requests_per_unit: 1}}
";

/// Rules and a tree in one.
fn with_tree(text: &str) -> Policy {
    let domains = read(TREE).domains;
    Policy {
        domains,
        ..read(text)
    }
}

fn descriptors_pass(engine: &TestEngine, entries: &[(&str, &str)]) -> bool {
    let descriptor = [Descriptor::new(entries)];
    let verdict = engine.decide_descriptors("edge", &descriptor, 1);
    verdict.denied().is_none()
}

fn of_times(times: usize, mut ask: impl FnMut() -> bool) {
    for _ in 0..times {
        let _ = ask();
    }
}

#[test]
fn a_blocked_key_is_refused_until_the_order_ends_and_others_are_not() {
    let clock = Manual::new();
    let engine = engine(policy(vec![rule("a", rates(&["5/s"]))]), &clock).with_counters(10);
    let made = order(
        &engine,
        OverrideAction::Block,
        Target::key("a", [("user", "eve")]),
    );
    clock.advance(Duration::from_secs(20));
    let eve = user("eve");
    let verdict = engine.decide(&eve);
    assert_eq!(verdict.reason(), Some(DenyReason::Blocked));
    assert_eq!(verdict.cause(), Cause::Rule("a"));
    assert_eq!(verdict.key().expect("a key").to_string(), "user=eve");
    assert_eq!(verdict.override_id(), Some(made.id));
    let decision = verdict.decision();
    assert_eq!(decision.wait_or_max(), Duration::from_secs(40));
    assert_eq!((decision.limit, decision.remaining), (0, 0));
    assert!(passes(&engine, &user("bob")));
    let tally = engine
        .counters()
        .into_iter()
        .find(|own| &*own.limiter == "a");
    assert_eq!(tally.expect("counted").denied(DenyReason::Blocked), 1);
    clock.advance(Duration::from_secs(40));
    assert!(passes(&engine, &eve));
    assert!(engine.overrides().is_empty());
}

#[test]
fn of_orders_for_one_key_that_is_written_in_several_ways_the_longer_goes_on() {
    let clock = Manual::new();
    let text = "limits: [{name: per-net, key: ip/24, rate: 2/h}]";
    let engine = engine(read(text), &clock);
    let facts = Facts::new().with("ip", "203.0.113.7");
    let long = Target::key("per-net", [("ip", "203.0.113.7")]);
    let short = Target::key("per-net", [("ip", "203.0.113.9")]);
    let brief = |act| NewOverride::new(act, short.clone(), Duration::from_secs(10));
    let after_the_brief_one = || clock.advance(Duration::from_secs(11));

    order(&engine, OverrideAction::Block, long.clone());
    engine
        .add_override(brief(OverrideAction::Block))
        .expect("an order");
    after_the_brief_one();
    assert!(!passes(&engine, &facts));
    assert!(
        engine
            .remove_override_for(&long, &OverrideAction::Block)
            .is_some()
    );

    order(&engine, rate("5/h"), long);
    engine.add_override(brief(rate("1/h"))).expect("an order");
    assert_eq!(of_ten(&engine, &facts), 1);
    after_the_brief_one();
    assert_eq!(of_ten(&engine, &facts), 4);
}

#[test]
fn a_block_charges_nothing_and_what_was_spent_before_counts_on() {
    let clock = Manual::new();
    let engine = engine(policy(vec![rule("a", rates(&["3/h"]))]), &clock);
    let eve = user("eve");
    assert!(passes(&engine, &eve));
    order(
        &engine,
        OverrideAction::Block,
        Target::key("a", [("user", "eve")]),
    );
    assert_eq!(of_ten(&engine, &eve), 0);
    assert!(
        engine
            .remove_override_for(&Target::key("a", [("user", "eve")]), &OverrideAction::Block)
            .is_some()
    );
    assert_eq!(engine.peek(&eve).decision().remaining, 2);
}

#[test]
fn facts_without_a_rule_are_blocked_before_the_lists_and_by_all_of_them() {
    let clock = Manual::new();
    let mut policy = policy(vec![rule("a", rates(&["5/s"]))]);
    policy.exempt = vec![only("path", "/healthz")];
    let engine = engine(policy, &clock);
    let target = Target::facts([("user", "eve"), ("header.X-Plan", "free")]);
    let made = order(&engine, OverrideAction::Block, target);
    let eve = user("eve")
        .with("header.x-plan", "free")
        .with("path", "/healthz");
    let verdict = engine.decide(&eve);
    assert_eq!(verdict.cause(), Cause::Override(made.id));
    assert_eq!(verdict.cause().to_string(), "order 1");
    assert_eq!(verdict.reason(), Some(DenyReason::Blocked));
    assert!(passes(&engine, &user("eve").with("header.x-plan", "paid")));
    assert!(passes(&engine, &user("eve")));
}

#[test]
fn a_bypassed_rule_neither_counts_nor_refuses_and_the_others_do() {
    let clock = Manual::new();
    let two = policy(vec![rule("a", rates(&["2/h"])), rule("b", rates(&["5/h"]))]);
    let engine = engine(two, &clock);
    let made = order(&engine, OverrideAction::Bypass, Target::rule("a"));
    assert_eq!(of_ten(&engine, &user("ada")), 5);
    engine.remove_override(made.id).expect("there is one");
    let found = engine
        .find(&Target::key("a", [("user", "ada")]))
        .expect("a key");
    assert_eq!(found[0].limits[0].decision.remaining, 2);
    order(&engine, OverrideAction::Bypass, Target::all_requests());
    assert_eq!(of_ten(&engine, &user("ada")), 10);
    assert_eq!(engine.decide(&user("ada")).cause(), Cause::Nothing);
    clock.advance(MINUTE);
    assert_eq!(of_ten(&engine, &user("ada")), 0);
}

#[test]
fn who_is_bypassed_by_facts_is_served_by_no_rule_and_blocked_all_the_same() {
    let clock = Manual::new();
    let engine = engine(policy(vec![rule("a", rates(&["1/h"]))]), &clock);
    order(
        &engine,
        OverrideAction::Bypass,
        Target::facts([("user", "vip")]),
    );
    assert_eq!(of_ten(&engine, &user("vip")), 10);
    assert_eq!(of_ten(&engine, &user("bob")), 1);
    order(
        &engine,
        OverrideAction::Block,
        Target::key("a", [("user", "vip")]),
    );
    assert_eq!(of_ten(&engine, &user("vip")), 0);
}

#[test]
fn an_override_is_for_one_key_or_all_of_a_rule_and_what_was_spent_follows() {
    let clock = Manual::new();
    let engine = engine(policy(vec![rule("a", rates(&["4/h"]))]), &clock);
    let (ada, bob) = (user("ada"), user("bob"));
    assert!(passes(&engine, &ada) && passes(&engine, &ada));
    let own = order(&engine, rate("8/h"), Target::key("a", [("user", "ada")]));
    let verdict = engine.decide(&ada);
    let kind = verdict.limit().expect("a rate").kind().to_string();
    assert_eq!(
        (kind.as_str(), verdict.override_id()),
        ("8/h", Some(own.id))
    );
    assert_eq!(engine.peek(&bob).decision().limit, 4);
    drop(verdict);
    // Three of what are eight now.
    assert_eq!(engine.peek(&ada).decision().remaining, 5);
    order(&engine, rate("1/h"), Target::rule("a"));
    assert_eq!(of_ten(&engine, &ada), 5);
    assert_eq!(of_ten(&engine, &bob), 1);
    clock.advance(MINUTE);
    // By the policy's again, as after a reload.
    assert_eq!(engine.decide(&bob).decision().limit, 4);
}

#[test]
fn quotas_and_slots_are_overridden_too() {
    let clock = Manual::new();
    let text = "limits: [{name: a, key: user, quota: 2/day, concurrency: 1}]";
    let engine = engine(read(text), &clock);
    let more = ReplacementLimits {
        quota: Some(5),
        concurrency: Some(3),
        ..ReplacementLimits::default()
    };
    order(
        &engine,
        OverrideAction::Limit(more),
        Target::key("a", [("user", "ada")]),
    );
    let ada = user("ada");
    let held: Vec<_> = (0..5)
        .filter_map(|_| engine.decide(&ada).allowed())
        .collect();
    assert_eq!(held.len(), 3);
    drop(held);
    assert_eq!(of_ten(&engine, &ada), 2);
    assert_eq!(of_ten(&engine, &user("bob")), 2);
}

#[test]
fn of_several_rates_the_one_with_the_same_period_is_overridden() {
    let clock = Manual::new();
    let engine = engine(policy(vec![rule("a", rates(&["2/s", "8/h"]))]), &clock);
    order(&engine, rate("5/s"), Target::rule("a"));
    assert_eq!(of_ten(&engine, &user("ada")), 5);
    let error = engine.add_override(of(rate("5/minute"), Target::rule("a")));
    let told = "\"a\" has several rates (2/s, 8/h): say one by the period of one of them";
    assert_eq!(error.expect_err("which?").to_string(), told);
}

#[test]
fn another_period_frees_nothing_and_windows_have_only_their_own() {
    let key = Target::key("a", [("user", "ada")]);
    let ada = user("ada");
    for algorithm in [
        "gcra",
        "token-bucket",
        "leaky",
        "fixed-window",
        "sliding-window",
        "sliding-log",
    ] {
        let text = format!("limits: [{{name: a, key: user, rate: 30/h, algorithm: {algorithm}}}]");
        let engine = engine(read(&text), &Manual::new());
        assert_eq!((0..4).map(|_| of_ten(&engine, &ada)).sum::<usize>(), 30);
        let is_window = algorithm.contains("window") || algorithm.contains("log");
        for _ in 0..10 {
            let ordered = engine.add_override(of(rate("30/d"), key.clone()));
            if is_window {
                let error = ordered.expect_err("another period").to_string();
                assert!(error.contains("30/h in windows"), "{error}");
                assert!(error.contains("30/d by the period of 30/h"), "{error}");
            }
            assert_eq!(of_ten(&engine, &ada), 0, "{algorithm}");
            engine.remove_override_for(&key, &rate("1/s"));
            assert_eq!(of_ten(&engine, &ada), 0, "{algorithm}");
        }
        // Nothing is counted where nothing passes, so any period will do.
        order(&engine, rate("0/d"), key.clone());
        assert_eq!(of_ten(&engine, &ada), 0, "{algorithm}");
        order(&engine, rate("35/h"), key.clone());
        assert_eq!(of_ten(&engine, &ada), 5, "{algorithm}");
    }
}

#[test]
fn a_rule_in_shadow_tells_of_a_block_and_lets_pass() {
    let clock = Manual::new();
    let mut trial = rule("trial", rates(&["1/h"]));
    trial.mode = Mode::Shadow;
    let engine = engine(policy(vec![trial]), &clock);
    let made = order(
        &engine,
        OverrideAction::Block,
        Target::key("trial", [("user", "eve")]),
    );
    assert_eq!(made.effect, OverrideStatus::InShadow);
    let eve = user("eve");
    let verdict = engine.decide(&eve);
    let told: Vec<_> = verdict
        .shadow_denials()
        .map(|refusal| refusal.cause)
        .collect();
    assert!(verdict.denied().is_none());
    assert_eq!(told, [Cause::Rule("trial")]);
}

#[test]
fn orders_outlive_reloads_and_are_idle_while_their_rule_is_gone() {
    let clock = Manual::new();
    let first = policy(vec![rule("a", rates(&["5/h"]))]);
    let engine = engine(first.clone(), &clock);
    order(
        &engine,
        OverrideAction::Block,
        Target::key("a", [("user", "eve")]),
    );
    engine
        .reload(policy(vec![rule("b", rates(&["5/h"]))]))
        .expect("a policy");
    assert!(passes(&engine, &user("eve")));
    let effect = engine.overrides().remove(0).effect;
    let gone = "idle: no rule, tier or limit of a tree is called \"a\": did you mean \"b\"?";
    assert_eq!(effect.to_string(), gone);
    let mut other = first.clone();
    other.rules.insert(0, rule("b", rates(&["9/h"])));
    engine.reload(other).expect("a policy");
    assert_eq!(engine.overrides()[0].effect, OverrideStatus::InForce);
    assert!(!passes(&engine, &user("eve")) && passes(&engine, &user("bob")));
    // Its key is made of more now, so that it names none.
    let mut by_two = first;
    by_two.rules[0].key.push(KeyPart::Fact("path".to_owned()));
    engine.reload(by_two).expect("a policy");
    let lacks = "idle: the key of \"a\" is made of the fact \"path\": say path=…";
    assert_eq!(engine.overrides()[0].effect.to_string(), lacks);
}

#[test]
fn tiers_are_named_like_rules() {
    let clock = Manual::new();
    let text = "
tiers: {free: {rate: 1/h}, paid: {rate: 5/h}}
tenants: {acme: free, umbrella: paid}
";
    let engine = engine(read(text), &clock);
    let acme = Facts::new().with("tenant", "acme");
    order(
        &engine,
        rate("3/h"),
        Target::key("free", [("tenant", "acme")]),
    );
    assert_eq!(of_ten(&engine, &acme), 3);
    assert_eq!(of_ten(&engine, &Facts::new().with("tenant", "umbrella")), 5);
}

#[test]
fn an_order_for_the_same_target_takes_the_place_of_the_one_before() {
    let clock = Manual::new();
    let engine = engine(policy(vec![rule("a", rates(&["5/h"]))]), &clock);
    let first = order(&engine, rate("1/h"), Target::rule("a"));
    let second = order(&engine, rate("2/h"), Target::rule("a"));
    order(
        &engine,
        OverrideAction::Block,
        Target::key("a", [("user", "eve")]),
    );
    let ids: Vec<_> = engine.overrides().iter().map(|order| order.id).collect();
    assert_eq!((first.id, ids), (1, vec![second.id, 3]));
    assert_eq!(of_ten(&engine, &user("bob")), 2);
}

#[test]
fn orders_by_facts_are_of_few_sorts() {
    let clock = Manual::new();
    let engine = engine(policy(Vec::new()), &clock);
    let block = |number: usize| {
        let target = Target::facts([(format!("fact{number}"), "x")]);
        engine.add_override(of(OverrideAction::Block, target).naming(OverrideFacts::Any))
    };
    for number in 0..16 {
        block(number).expect("one of few");
    }
    let told =
        "there are overrides by 16 different sets of facts, and no more are kept: name a rule";
    assert_eq!(block(16).expect_err("too many").to_string(), told);
    assert!(!passes(&engine, &Facts::new().with("fact7", "x")));
}

#[test]
fn who_waits_is_told_at_once_of_a_block() {
    let clock = Manual::new();
    let text = "limits: [{name: a, key: user, rate: 1/minute, over: wait 5m}]";
    let engine = engine(read(text), &clock);
    let ada = user("ada");
    assert!(passes(&engine, &ada));
    let mut waiting = Box::pin(engine.decide_async(&ada));
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    assert!(waiting.as_mut().poll(&mut context).is_pending());
    let found = engine
        .find(&Target::key("a", [("user", "ada")]))
        .expect("a key");
    assert_eq!(found[0].limits[0].waiting, 1);
    order(
        &engine,
        OverrideAction::Block,
        Target::key("a", [("user", "ada")]),
    );
    let verdict = awaited(waiting).expect("memory never fails");
    assert_eq!(verdict.reason(), Some(DenyReason::Blocked));
}

#[test]
fn a_refund_while_a_key_is_blocked_is_given() {
    let clock = Manual::new();
    let engine = engine(policy(vec![rule("a", rates(&["3/h"]))]), &clock);
    let ada = user("ada");
    assert!(passes(&engine, &ada));
    let made = order(
        &engine,
        OverrideAction::Block,
        Target::key("a", [("user", "ada")]),
    );
    awaited(engine.refund_async(&ada)).expect("memory never fails");
    engine.remove_override(made.id).expect("there is one");
    assert_eq!(engine.peek(&ada).decision().remaining, 3);
}

#[test]
fn refusals_that_are_remembered_do_not_outlast_an_override() {
    let clock = Manual::new();
    let memory = Memory::builder();
    let memory = memory.clock(clock.clone()).wall(clock.clone()).build();
    let rules = policy(vec![rule("a", rates(&["1/h"]))]);
    let engine = Engine::new(rules, memory)
        .expect("a policy")
        .with_deny_cache(100);
    let ada = user("ada");
    assert_eq!(of_ten(&engine, &ada), 1);
    order(&engine, rate("3/h"), Target::key("a", [("user", "ada")]));
    assert!(passes(&engine, &ada));
}

#[test]
fn a_rejected_order_hides_no_end_of_others() {
    let clock = Manual::new();
    clock.advance(1_000 * MINUTE);
    let engine = engine(policy(vec![rule("a", rates(&["5/h"]))]), &clock);
    let bypass = |user, lasts| {
        NewOverride::new(
            OverrideAction::Bypass,
            Target::key("a", [("user", user)]),
            lasts,
        )
    };
    engine
        .add_override(bypass("short", MINUTE))
        .expect("an order");
    engine
        .add_override(bypass("long", 60 * MINUTE))
        .expect("an order");
    clock.advance(2 * MINUTE);
    let rejected = engine.add_override(bypass("none", Duration::ZERO));
    assert!(rejected.is_err(), "it lasts no time");
    assert_eq!(engine.overrides().len(), 1);
    assert_eq!(engine.limiter_states()[0].overrides, 1);
}
