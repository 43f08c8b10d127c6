//! Operators' overrides with a store: each process has its own, over shared counters.

use std::time::Duration;
use tollgate_engine::engine::ResetScope;

use tollgate::Rate;
use tollgate_engine::document::Format;
use tollgate_engine::facts::Descriptor;
use tollgate_engine::overrides::{
    NewOverride, OverrideAction, OverrideError, ReplacementLimits, Target,
};
use tollgate_engine::verdict::DenyReason;
use tollgate_engine::{Engine, Facts, Policy};
use tollgate_redis::Redis;
use tollgate_testkit::redis::Server;

use super::{connect, keys};

const HOUR: Duration = Duration::from_secs(3_600);

fn engine(server: &Server, text: &str) -> Engine<Redis> {
    let policy = Policy::from_text(text, Format::Yaml).expect("a policy");
    Engine::new(policy.policy, connect(server)).expect("a policy")
}

/// How many of ten pass.
async fn of_ten(engine: &Engine<Redis>, user: &str) -> usize {
    let mut passed = 0;
    for _ in 0..10 {
        let facts = Facts::new().with("user", user);
        let Ok(verdict) = engine.decide_async(&facts).await;
        passed += usize::from(verdict.denied().is_none());
    }
    passed
}

fn order(engine: &Engine<Redis>, act: OverrideAction, target: Target) {
    let order = NewOverride::new(act, target, HOUR);
    engine.add_override(order).expect("an order");
}

fn other_rate(rate: Rate) -> OverrideAction {
    OverrideAction::Limit(ReplacementLimits {
        rates: vec![rate],
        ..ReplacementLimits::default()
    })
}

#[tokio::test]
async fn a_process_has_its_own_orders_over_counters_of_all() {
    let server = Server::start();
    let text = "limits: [{name: a, key: user, rate: 4/h}]";
    let (here, there) = (engine(&server, text), engine(&server, text));
    let key = |user: &str| Target::key("a", [("user", user)]);
    order(&here, OverrideAction::Block, key("eve"));
    order(&here, OverrideAction::Bypass, key("vip"));
    let eve = Facts::new().with("user", "eve");
    let Ok(verdict) = here.decide_async(&eve).await;
    assert_eq!(verdict.reason(), Some(DenyReason::Blocked));
    assert_eq!(of_ten(&here, "vip").await, 10);
    // Neither of the two is counted.
    assert_eq!(keys(&server), Vec::<String>::new());
    assert_eq!(of_ten(&there, "eve").await, 4);

    assert_eq!(of_ten(&here, "ada").await, 4);
    order(&here, other_rate(Rate::per_hour(8)), key("ada"));
    assert_eq!(of_ten(&here, "ada").await, 4);
    assert_eq!(of_ten(&there, "ada").await, 0);
    let Ok(found) = here.find_async(&key("ada")).await;
    let found = found.expect("a key").remove(0);
    assert_eq!(found.limits[0].kind.to_string(), "8/h");
    assert!(found.limits[0].is_known && found.orders.len() == 1);
    let Ok(reset) = here.reset_async(&key("ada"), ResetScope::Rates).await;
    assert_eq!(reset.expect("a key").rules[0].rule, "a");
    assert_eq!(of_ten(&here, "ada").await, 8);
}

#[tokio::test]
async fn leased_rates_are_overridden_too() {
    let server = Server::start();
    let text = "limits: [{name: a, key: user, rate: 4/h, counting: leased}]";
    let here = engine(&server, text);
    let key = Target::key("a", [("user", "ada")]);
    order(&here, other_rate(Rate::per_hour(2)), key.clone());
    assert_eq!(of_ten(&here, "ada").await, 2);
    order(&here, OverrideAction::Block, key.clone());
    assert_eq!(of_ten(&here, "ada").await, 0);
    here.remove_override_for(&key, &OverrideAction::Block)
        .expect("an order");
    here.remove_override_for(&key, &other_rate(Rate::zero()))
        .expect("an order");
    // Four in all, as after a reload; or fewer, while what was refused is remembered.
    assert!(of_ten(&here, "ada").await <= 2);
}

#[tokio::test]
async fn descriptors_are_ordered_about_too() {
    let server = Server::start();
    let text =
        "domain: edge\ndescriptors: [{key: user, rate_limit: {unit: hour, requests_per_unit: 2}}]";
    let here = engine(&server, text);
    let target = |user: &str| Target::descriptor("edge", [("user", user)]);
    order(&here, OverrideAction::Block, target("eve"));
    order(&here, other_rate(Rate::per_hour(5)), target("ada"));
    for (user, most) in [("eve", 0), ("ada", 5), ("bob", 2)] {
        let mut passed = 0;
        for _ in 0..10 {
            let entries = [("user", user)];
            let descriptors = [Descriptor::new(&entries)];
            let Ok(verdict) = here.decide_descriptors_async("edge", &descriptors, 1).await;
            passed += usize::from(verdict.denied().is_none());
        }
        assert_eq!(passed, most, "{user}");
    }
}

/// How many of 40 pass.
async fn of_forty(engine: &Engine<Redis>) -> usize {
    let mut passed = 0;
    for _ in 0..4 {
        passed += of_ten(engine, "ada").await;
    }
    passed
}

#[tokio::test]
async fn an_override_with_another_period_frees_nothing_however_often_it_comes_and_goes() {
    let server = Server::start();
    let key = Target::key("a", [("user", "ada")]);
    let daily: Rate = "30/d".parse().expect("a rate");
    for limit in [
        "algorithm: gcra",
        "algorithm: token-bucket",
        "algorithm: leaky",
        "algorithm: gcra, counting: leased",
        "algorithm: fixed-window",
        "algorithm: sliding-window",
        "algorithm: sliding-log",
    ] {
        server.command(&["FLUSHALL"]);
        let text = format!("limits: [{{name: a, key: user, rate: 30/h, {limit}}}]");
        let (here, there) = (engine(&server, &text), engine(&server, &text));
        assert_eq!(of_forty(&here).await, 30, "{limit}");
        let is_window = limit.contains("window") || limit.contains("log");
        for round in 0..10 {
            let ordered = here.add_override(NewOverride::new(other_rate(daily), key.clone(), HOUR));
            // What a window of an hour has counted says nothing of a day.
            let is_refused = matches!(ordered, Err(OverrideError::OtherPeriod { .. }));
            assert_eq!(is_refused, is_window, "{limit}: {ordered:?}");
            // For a moment one process has the override, and the other doesn't.
            for engine in [&here, &there] {
                assert_eq!(of_ten(engine, "ada").await, 0, "{limit}, round {round}");
            }
            if !is_refused {
                here.remove_override_for(&key, &other_rate(daily))
                    .expect("an order");
            }
            for engine in [&here, &there] {
                assert_eq!(of_ten(engine, "ada").await, 0, "{limit}, round {round}");
            }
        }
        // By the rule's own period it is overridden, whatever it counts by.
        order(&here, other_rate(Rate::per_hour(35)), key.clone());
        let more = of_ten(&here, "ada").await;
        assert!(
            more <= 5 && (more == 5 || limit.contains("leased")),
            "{limit}: {more}"
        );
        here.backend().close().await;
        there.backend().close().await;
    }
}
