//! Estimated costs: held while the request runs, and replaced by the actual cost in the end.

use std::time::Duration;

use proptest::prelude::*;
use tollgate::clock::Manual;
use tollgate::{Clock, Timestamp};
use tollgate_engine::Facts;
use tollgate_engine::verdict::{AllowedRequest, Permits};

use super::{TestEngine, engine, policy};

const LLM: &str = "limits: [{name: tokens, key: tenant, rate: 10000/h, cost: {fact: max, default: 4000, settle_within: 60s}}]";

fn ask(engine: &TestEngine, max: u64) -> Option<Permits> {
    let max = max.to_string();
    let facts = Facts::new().with("tenant", "acme").with("max", &max);
    engine
        .decide(&facts)
        .allowed()
        .map(AllowedRequest::into_permits)
}

fn left(engine: &TestEngine) -> u64 {
    let facts = Facts::new().with("tenant", "acme").with("max", "0");
    engine.peek(&facts).decision().remaining
}

/// A policy for each way of counting, with a count of 10,000 that doesn't come back while a test runs.
fn every_way() -> Vec<String> {
    let mut all: Vec<_> = [
        "gcra",
        "token-bucket",
        "leaky",
        "fixed-window",
        "sliding-window",
        "sliding-log",
    ]
    .map(|algorithm| LLM.replace("10000/h", &format!("10000/h, algorithm: {algorithm}")))
    .into();
    all.push(LLM.replace("rate: 10000/h", "quota: 10000/day"));
    all.push(LLM.replace("rate: 10000/h", "quota: 10000 in any 30d"));
    all
}

#[test]
fn what_was_not_spent_comes_back_and_what_was_underestimated_is_owed() {
    for text in every_way() {
        let engine = engine(&text, &Manual::starting_at(Timestamp::from_secs(7_200)));
        let mut permits = ask(&engine, 4_000).expect("room");
        assert_eq!(left(&engine), 6_000, "{text}");
        permits.settle(1_500);
        assert_eq!(left(&engine), 8_500, "{text}");
        permits.settle(0);
        drop(permits);
        assert_eq!(left(&engine), 8_500, "it is said once: {text}");
        let mut permits = ask(&engine, 1_000).expect("room");
        permits.settle(3_000);
        assert_eq!(left(&engine), 5_500, "{text}");
    }
}

/// A request that estimates 0 still pays for what it uses.
#[test]
fn an_estimate_of_nothing_is_settled_too() {
    for text in every_way() {
        let engine = engine(&text, &Manual::starting_at(Timestamp::from_secs(7_200)));
        let mut permits = ask(&engine, 0).expect("room");
        permits.settle(3_000);
        assert_eq!(left(&engine), 7_000, "{text}");
        let mut permits = ask(&engine, 0).expect("room");
        permits.settle(0);
        assert_eq!(left(&engine), 7_000, "{text}");
    }
}

/// Two rules that share a counter, in either order: a file can't express that, but a program can.
#[test]
fn a_rule_that_counts_with_others_settles_what_it_has_estimated() {
    let rule = |name| {
        format!(
            "{{name: {name}, shared: s, key: tenant, rate: 10000/h, cost: {{fact: max, settle_within: 60s}}}}"
        )
    };
    let text = format!("limits: [{}, {}]", rule("a"), rule("b"));
    for plain in 0..2 {
        let engine = engine(&text, &Manual::new());
        let mut mixed = policy(&text);
        mixed.rules[plain].cost.settle = None;
        engine.reload(mixed).expect("a policy");
        let mut permits = ask(&engine, 4_000).expect("room");
        assert_eq!(left(&engine), 6_000, "{plain}");
        permits.settle(1_500);
        assert_eq!(left(&engine), 8_500, "{plain}");
    }
}

#[test]
fn who_says_nothing_is_charged_or_not_as_the_rule_has_chosen() {
    for text in every_way() {
        let clock = Manual::starting_at(Timestamp::from_secs(7_200));
        let charging = engine(&text, &clock);
        drop(ask(&charging, 4_000));
        assert_eq!(left(&charging), 6_000, "{text}");
        let refunding = text.replace("60s", "60s, unsettled: refund");
        let refunding = engine(&refunding, &clock);
        drop(ask(&refunding, 4_000));
        assert_eq!(left(&refunding), 10_000, "{text}");
        ask(&charging, 4_000).expect("room").cancel();
        assert_eq!(left(&charging), 6_000, "{text}");
    }
}

#[test]
fn what_is_out_does_not_drain_and_what_is_late_is_spent() {
    let clock = Manual::new();
    let engine = engine(&LLM.replace("10000/h", "100/s burst 10000"), &clock);
    let mut permits = ask(&engine, 4_000).expect("room");
    clock.advance(Duration::from_secs(59));
    assert_eq!(left(&engine), 6_000);
    permits.settle(0);
    assert_eq!(left(&engine), 10_000);
    let mut permits = ask(&engine, 4_000).expect("room");
    clock.advance(Duration::from_secs(60));
    assert_eq!(left(&engine), 6_000);
    permits.settle(0);
    assert_eq!(left(&engine), 6_000, "its time was over");
    clock.advance(Duration::from_secs(10));
    assert_eq!(left(&engine), 7_000);
}

#[test]
fn all_or_none_with_rules_that_are_not_estimated() {
    let clock = Manual::new();
    let text = "limits:\n\
         - {name: tokens, key: tenant, rate: 10000/h, cost: {fact: max, settle_within: 60s}, concurrency: 2}\n\
         - {name: calls, key: tenant, rate: 3/h}\n\
         - {name: trial, key: tenant, rate: 5000/h, cost: {fact: max, settle_within: 60s}, mode: shadow}";
    let engine = engine(text, &clock);
    let mut first = ask(&engine, 1_000).expect("room");
    let second = ask(&engine, 1_000).expect("room");
    assert!(ask(&engine, 1_000).is_none(), "two at once");
    first.settle(200);
    assert!(ask(&engine, 1_000).is_none(), "slots are held on");
    drop(first);
    let third = ask(&engine, 1_000).expect("a slot");
    assert!(ask(&engine, 1_000).is_none());
    drop((second, third));
    let facts = Facts::new().with("tenant", "acme").with("max", "10");
    let refused = engine.decide(&facts);
    assert_eq!(refused.cause().to_string(), "rule \"calls\"");
    engine
        .reload(policy(&text.replace("3/h", "100/h")))
        .unwrap();
    let left = engine.peek(&facts);
    assert_eq!(
        left.limit()
            .map(|limit| limit.counter().name.clone())
            .as_deref(),
        Some("rule/tokens")
    );
    assert_eq!(left.decision().remaining, 2, "of slots");
    let most = Facts::new().with("tenant", "acme").with("max", "7801");
    assert_eq!(engine.peek(&most).cause().to_string(), "rule \"tokens\"");
    assert!(!engine.peek(&most).decision().is_allowed());
    let most = Facts::new().with("tenant", "acme").with("max", "7800");
    assert!(engine.decide(&most).allowed().is_some());
}

#[test]
fn tiers_that_estimate_and_others_count_what_a_tenant_spent_together() {
    let clock = Manual::new();
    let text = "tiers: {chat: {rate: 100/h, cost: {default: 40, settle_within: 60s}}, plain: {rate: 100/h}}\n\
                tenants: {acme: TIER}";
    let engine = engine(&text.replace("TIER", "chat"), &clock);
    ask(&engine, 0).expect("room").settle(30);
    engine
        .reload(policy(&text.replace("TIER", "plain")))
        .unwrap();
    assert_eq!(left(&engine), 70);
}

/// What the measured trap was: many requests whose real cost is about half of the estimate.
#[test]
fn what_is_charged_in_the_end_is_what_was_used() {
    for text in every_way() {
        let clock = Manual::starting_at(Timestamp::from_secs(7_200));
        let engine = engine(&text.replace("10000", "1000000"), &clock);
        let (mut used, mut running, mut seed) = (0, Vec::new(), 1_u64);
        for number in 0..500_u64 {
            seed = seed
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            let estimate = 20 + seed % 80;
            let permits = ask(&engine, estimate).expect("room");
            running.push((permits, (seed >> 32) % (estimate + 5)));
            if number % 3 == 0 {
                let place = usize::try_from(seed >> 40).unwrap() % running.len();
                let (mut permits, spent) = running.swap_remove(place);
                permits.settle(spent);
                used += spent;
            }
        }
        for (mut permits, spent) in running {
            permits.settle(spent);
            used += spent;
        }
        assert_eq!(left(&engine), 1_000_000 - used, "{text}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]
    /// No window sees more than burst and rate allow, counted when it was taken and when it was settled.
    #[test]
    fn the_bound_holds_whenever_requests_are_settled(
        steps in prop::collection::vec((0..5u8, 1..400u64, 0..450u64, 0..900u64), 1..120),
    ) {
        const BURST: u64 = 1_000;
        let clock = Manual::new();
        let text = LLM.replace("10000/h", "100/s burst 1000").replace("60s", "20s").replace("4000", "1");
        let engine = engine(&text, &clock);
        let (mut running, mut taken, mut settled) = (Vec::new(), Vec::new(), Vec::new());
        let millis = || clock.now().as_nanos() / 1_000_000;
        for (kind, estimate, spent, wait) in steps {
            clock.advance(Duration::from_millis(wait));
            match kind {
                0..=2 => running.extend(ask(&engine, estimate).map(|permits| (permits, estimate, millis()))),
                _ if running.is_empty() => {}
                _ => {
                    let place = usize::try_from(spent).unwrap() % running.len();
                    let (mut permits, estimate, at) = running.swap_remove(place);
                    // Beyond the estimate, the debt is no admission.
                    let spent = spent.min(estimate);
                    let is_late = millis() - at >= 20_000;
                    permits.settle(spent);
                    let spent = if is_late { estimate } else { spent };
                    taken.push((at, spent));
                    settled.push(((millis()).min(at + 20_000), spent));
                }
            }
        }
        for (permits, estimate, at) in running {
            drop(permits);
            taken.push((at, estimate));
            settled.push((millis().min(at + 20_000), estimate));
        }
        for mut counted in [taken, settled] {
            counted.sort_unstable();
            for (number, (from, _)) in counted.iter().enumerate() {
                let mut sum = 0;
                for (at, spent) in &counted[number..] {
                    sum += spent;
                    prop_assert!(sum * 10 <= BURST * 10 + (at - from), "{sum} in {} ms", at - from);
                }
            }
        }
    }
}
