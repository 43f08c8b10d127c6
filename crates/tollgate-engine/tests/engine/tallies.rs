//! The counters of each limiter.

use tollgate::clock::Manual;
use tollgate::quota::Quota;
use tollgate_engine::counters::LimiterCounts;
use tollgate_engine::document::Format;
use tollgate_engine::facts::{Descriptor, Unit};
use tollgate_engine::policy::{Limits, MatchConditions, Mode, Pattern, Policy, Rule};
use tollgate_engine::verdict::DenyReason;
use tollgate_engine::{Bounds, Engine, Facts};

use crate::common::{TestEngine, engine, only, policy, rates, rule};
use crate::{awaited, user};

/// Each limiter that has counted something: its name, allowed, near its limit, in shadow, and each reason.
fn counted(engine: &TestEngine) -> Vec<String> {
    let show = |tally: LimiterCounts| {
        let LimiterCounts {
            limiter,
            allowed,
            near_limit,
            shadow_denied,
            ..
        } = &tally;
        let mut line = format!("{limiter} {allowed}");
        for (name, count) in [("near", near_limit), ("shadow", shadow_denied)] {
            if *count > 0 {
                line += &format!(" {name}={count}");
            }
        }
        for reason in DenyReason::ALL {
            if tally.denied(reason) > 0 {
                line += &format!(" {reason}={}", tally.denied(reason));
            }
        }
        line
    };
    let none = |line: &String| line.ends_with(" 0");
    let lines = engine.counters().into_iter().map(show);
    lines.filter(|line| !none(line)).collect()
}

fn limits(change: impl FnOnce(&mut Limits)) -> Limits {
    let mut limits = Limits::default();
    change(&mut limits);
    limits
}

#[test]
fn each_limiter_counts_what_it_decides_and_why() {
    let quota = limits(|own| own.quota = Some(Quota::per_day(1)));
    let slots = limits(|own| own.concurrency = Some(1));
    let mut trial = rule("trial", rates(&["1/h"]));
    trial.mode = Mode::Shadow;
    let on = |name: &str, path: &str, limits: Limits| Rule {
        matches: only("path", path),
        ..rule(name, limits)
    };
    let mut policy = policy(vec![
        rule("everything", rates(&["100/h"])),
        on("two", "/two", rates(&["2/h"])),
        on("total", "/total", quota),
        on("slots", "/slots", slots),
        on("free", "/free", limits(|own| own.unlimited = true)),
        trial,
    ]);
    let entry = |fact: &str, text: &str| MatchConditions {
        conditions: vec![(fact.to_owned(), Pattern::Exact(text.to_owned()))],
        ..MatchConditions::default()
    };
    policy.block.push(entry("user", "mallory"));
    policy.exempt.push(entry("user", "root"));
    let bounds = Bounds {
        fact_bytes: 100,
        ..Bounds::default()
    };
    let engine = engine(policy, &Manual::new())
        .with_bounds(bounds)
        .with_counters(100);
    assert_eq!(counted(&engine), [""; 0]);
    let long = "x".repeat(101);
    let asked = [
        ("ada", "/two", 4),
        ("bob", "/total", 2),
        ("cid", "/free", 1),
        ("mallory", "/", 2),
        ("root", "/two", 3),
        (&long, "/", 1),
    ];
    for (name, path, count) in asked {
        let facts = user(name).with("path", path);
        for _ in 0..count {
            let _ = engine.decide(&facts);
        }
    }
    let facts = user("dan").with("path", "/slots");
    let held = engine.decide(&facts);
    let _ = engine.decide(&facts);
    drop(held);
    let _ = engine.decide(&Facts::new());
    let costly = user("eve").with("path", "/two").with_cost(3);
    let _ = engine.decide(&costly);
    assert_eq!(
        counted(&engine),
        [
            "(none) 1",
            "(exempt) 3",
            "(block) 0 blocked=2",
            "(bounds) 0 too_large=1",
            // Of ada two, and one each of bob, cid and dan.
            "everything 5",
            "two 2 near=1 rate=2 too_large=1",
            "total 1 near=1 quota=1",
            "slots 1 near=1 concurrency=1",
            "free 1",
            "trial 4 near=4 shadow=1",
        ]
    );
}

#[test]
fn waiting_and_asking_again_counts_once() {
    let engine = engine(policy(vec![rule("one", rates(&["1/h"]))]), &Manual::new());
    let engine = engine.with_counters(10);
    let facts = user("1");
    for _ in 0..3 {
        let Ok(_) = awaited(engine.decide_async(&facts));
    }
    let _ = engine.peek(&facts);
    assert_eq!(counted(&engine), ["one 1 near=1 rate=2"]);
}

#[test]
fn a_tree_counts_each_descriptor_that_takes_something() {
    let text = "
domain: edge
descriptors:
- {key: user, rate_limit: {unit: day, requests_per_unit: 2}}
- {key: path, value: /trial, shadow_mode: true, rate_limit: {unit: day, requests_per_unit: 1}}
";
    let policy = Policy::from_text(text, Format::Yaml).unwrap().policy;
    let bounds = Bounds {
        descriptors: 4,
        ..Bounds::default()
    };
    let engine = engine(policy, &Manual::new())
        .with_bounds(bounds)
        .with_counters(10);
    let both = [
        Descriptor::new(&[("user", "ada")]),
        Descriptor::new(&[("path", "/trial")]),
    ];
    for _ in 0..3 {
        let _ = engine.decide_descriptors("edge", &both, 1);
    }
    let other = [Descriptor::new(&[("nobody", "knows")])];
    let _ = engine.decide_descriptors("edge", &other, 1);
    let asked = [Descriptor {
        limit: Some((1, Unit::Day)),
        ..Descriptor::new(&[("nobody", "asks")])
    }];
    let _ = engine.decide_descriptors("edge", &asked, 1);
    let _ = engine.decide_descriptors("edge", &asked, 1);
    let many = vec![both[0]; 5];
    let _ = engine.decide_descriptors("edge", &many, 1);
    let back = [Descriptor {
        refund: true,
        ..both[0]
    }];
    let _ = engine.decide_descriptors("edge", &back, 1);
    assert_eq!(
        counted(&engine),
        [
            "(none) 1",
            "(bounds) 0 too_large=1",
            "(requested) 1 near=1 rate=1",
            "edge/user 2 near=1 rate=1",
            // What it would have said to the request that was refused is no count of it.
            "edge/path=/trial 1 near=1 shadow=2",
        ]
    );
}

#[test]
fn counts_survive_reloads_and_never_fall() {
    let rules = |names: &[&str]| {
        let rules = names.iter().map(|name| rule(name, rates(&["1/h"])));
        policy(rules.collect())
    };
    let engine = engine(rules(&["a", "b"]), &Manual::new()).with_counters(2);
    let mut before: Vec<LimiterCounts> = Vec::new();
    let mut decided = 0;
    for names in [
        &["a", "b"][..],
        &["b"],
        &["b", "c"],
        &["c", "d", "e"],
        &["a", "b"],
    ] {
        engine.reload(rules(names)).unwrap();
        for number in 0..7 {
            let name = number.to_string();
            let _ = engine.decide(&user(&name));
            decided += names.len() as u64;
        }
        let now = engine.counters();
        for old in &before {
            let same = now.iter().find(|tally| tally.limiter == old.limiter);
            let Some(same) = same else { continue };
            let restarted = &*old.limiter != "(other)" && same.allowed <= 7;
            assert!(same.allowed >= old.allowed || restarted, "{old:?} {same:?}");
            assert!(same.denied_total() >= old.denied_total() || restarted);
        }
        before = now;
    }
    let counts = before.iter();
    let sum: u64 = counts
        .map(|tally| tally.allowed + tally.denied_total())
        .sum();
    assert!(sum > 0 && sum <= decided, "{sum} of {decided}");
}

#[test]
fn an_engine_that_does_not_count_has_no_tallies() {
    let engine: TestEngine = engine(policy(vec![rule("a", rates(&["1/h"]))]), &Manual::new());
    let _ = engine.decide(&user("1"));
    assert_eq!(
        (engine.counters(), engine.wait_times().is_none()),
        (vec![], true)
    );
}

#[test]
fn counting_begins_while_a_verdict_is_held() {
    let engine = engine(policy(vec![rule("a", rates(&["5/h"]))]), &Manual::new());
    let facts = user("1");
    let held = engine.decide(&facts);
    let engine: Engine<_> = engine.with_counters(10);
    let _ = engine.decide(&facts);
    assert_eq!(counted(&engine), ["a 1"]);
    drop(held);
}

/// The rules are compiled once more then, and are as old as before.
#[test]
fn rules_stay_as_old_as_they_are_if_a_verdict_is_held_while_counting_begins() {
    let clock = Manual::starting_at(tollgate::Timestamp::from_secs(100));
    let engine = engine(policy(vec![rule("all", rates(&["5/h"]))]), &clock);
    let began = engine.limiter_states()[0].since;
    let facts = Facts::new();
    let held = engine.decide(&facts);
    clock.advance(std::time::Duration::from_secs(60));
    let engine = engine.with_counters(10);
    assert_eq!(engine.limiter_states()[0].since, began);
    drop(held);
}
