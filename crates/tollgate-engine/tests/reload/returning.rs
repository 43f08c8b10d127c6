//! Rules that a policy lacks for a while, or has switched off: earlier charges and permits count when the rules return,
//! for every algorithm. Limits of one period are the same limits in any order.

use std::time::Duration;

use proptest::prelude::*;
use tollgate::clock::Manual;
use tollgate::{Algorithm, Timestamp, core::WindowAlignment};
use tollgate_engine::Facts;
use tollgate_engine::document::Format;
use tollgate_engine::policy::{Limits, Mode, Policy, Rule};
use tollgate_engine::verdict::{AllowedRequest, Permits};
use tollgate_testkit::temp_folder::TempFolder;

use super::common::{TestEngine, engine, policy, rates, rule};
use super::config;
use super::state::{clock, restore, save, start};

const ALGORITHMS: [Algorithm; 7] = [
    Algorithm::Gcra,
    Algorithm::TokenBucket,
    Algorithm::LeakyBucket,
    Algorithm::SlidingLog,
    Algorithm::SlidingCounter,
    Algorithm::FixedWindow(WindowAlignment::FirstHit),
    Algorithm::FixedWindow(WindowAlignment::Boundary(Timestamp::ZERO)),
];

/// A policy of one rule with these rates.
fn version(algorithm: Algorithm, limits: &[&str]) -> Policy {
    let rule = Rule {
        algorithm,
        ..rule("api", rates(limits))
    };
    policy(vec![rule])
}

/// The same policy with its rule, or all of it, switched off.
fn off(algorithm: Algorithm) -> [Policy; 3] {
    let mut rule_off = version(algorithm, &["5/h"]);
    rule_off.rules[0].mode = Mode::Off;
    let all_off = Policy {
        mode: Mode::Off,
        ..version(algorithm, &["5/h"])
    };
    [policy(Vec::new()), rule_off, all_off]
}

fn passed(engine: &TestEngine, tries: usize) -> usize {
    let facts = Facts::new().with("user", "ada");
    let tries = (0..tries).filter(|_| engine.decide(&facts).allowed().is_some());
    tries.count()
}

#[test]
fn a_rule_that_is_gone_or_off_for_a_moment_gives_nothing_anew() {
    for algorithm in ALGORITHMS {
        let clock = Manual::starting_at(Timestamp::from_secs(7_200));
        let engine = engine(version(algorithm, &["5/h"]), &clock);
        assert_eq!(passed(&engine, 10), 5);
        for _ in 0..3 {
            for without in off(algorithm) {
                engine.reload(without).unwrap();
                clock.advance(Duration::from_millis(400));
                engine.reload(version(algorithm, &["5/h"])).unwrap();
                assert_eq!(passed(&engine, 10), 0, "{algorithm:?}");
            }
        }
        // The time that passes while it is gone counts like any other.
        engine.reload(policy(Vec::new())).unwrap();
        clock.advance(Duration::from_secs(7_200));
        engine.reload(version(algorithm, &["5/h"])).unwrap();
        assert_eq!(passed(&engine, 10), 5, "{algorithm:?}");
    }
}

#[test]
fn another_algorithm_in_between_gives_nothing_anew() {
    let clock = Manual::starting_at(Timestamp::from_secs(7_200));
    let engine = engine(version(Algorithm::Gcra, &["5/h"]), &clock);
    assert_eq!(passed(&engine, 10), 5);
    engine
        .reload(version(Algorithm::SlidingLog, &["5/h"]))
        .unwrap();
    assert_eq!(
        passed(&engine, 10),
        5,
        "it counts in another way, from nothing"
    );
    for algorithm in [Algorithm::Gcra, Algorithm::SlidingLog].repeat(3) {
        engine.reload(version(algorithm, &["5/h"])).unwrap();
        assert_eq!(passed(&engine, 10), 0);
    }
}

fn hold(engine: &TestEngine, most: usize) -> Vec<Permits> {
    let facts = Facts::new().with("user", "ada");
    let each = (0..most).map_while(|_| engine.decide(&facts).allowed());
    each.map(AllowedRequest::into_permits).collect()
}

#[test]
fn permits_that_are_held_count_when_their_rule_returns() {
    let clock = Manual::new();
    let two = || {
        let limits = Limits {
            concurrency: Some(2),
            ..Limits::default()
        };
        policy(vec![rule("jobs", limits)])
    };
    let engine = engine(two(), &clock);
    let mut held = hold(&engine, 8);
    for _ in 0..3 {
        engine.reload(policy(Vec::new())).unwrap();
        engine.reload(two()).unwrap();
        held.extend(hold(&engine, 8));
    }
    assert_eq!((held.len(), engine.backend().in_flight()), (2, 2));
    engine.reload(policy(Vec::new())).unwrap();
    held.pop();
    engine.reload(two()).unwrap();
    assert_eq!(
        hold(&engine, 8).len(),
        1,
        "what ended while it was gone is free"
    );
}

fn read(text: &str) -> Policy {
    Policy::from_text(text, Format::Yaml)
        .expect("a policy")
        .policy
}

#[test]
fn those_inside_of_a_limit_that_adapts_are_inside_when_its_rule_returns() {
    let adaptive = "limits: [{name: api, concurrency: {adaptive: aimd, min: 2, max: 2}}]";
    let engine = engine(read(adaptive), &Manual::new());
    let mut held = hold(&engine, 8);
    for without in [
        "default_tier: free\ntiers: {free: {rate: 5/s}}",
        "limits: [{name: api, mode: off, concurrency: {adaptive: aimd, min: 2, max: 2}}]",
    ] {
        engine.reload(read(without)).unwrap();
        engine
            .reload(read("limits: [{name: other, rate: 5/s}]"))
            .unwrap();
        engine.reload(read(adaptive)).unwrap();
        held.extend(hold(&engine, 8));
    }
    assert_eq!(held.len(), 2);
    let state = engine.limiter_states()[0].adaptive.expect("it adapts");
    assert_eq!((state.limit, state.in_flight), (2, 2));
}

#[test]
fn tiers_that_are_gone_for_a_moment_give_nothing_anew() {
    let tiers = "tiers: {free: {rate: 3/h}}\ndefault_tier: free\n";
    let tier_fields = engine(read(tiers), &Manual::new());
    let facts = Facts::new().with("tenant", "acme");
    let count = || {
        (0..9)
            .filter(|_| tier_fields.decide(&facts).allowed().is_some())
            .count()
    };
    assert_eq!(count(), 3);
    tier_fields.reload(policy(Vec::new())).unwrap();
    tier_fields.reload(read(tiers)).unwrap();
    assert_eq!(count(), 0);
}

#[test]
fn limits_of_one_period_are_the_same_in_any_order() {
    for algorithm in ALGORITHMS {
        let clock = Manual::starting_at(Timestamp::from_secs(7_200));
        let engine = engine(version(algorithm, &["10/h", "1000/h"]), &clock);
        let mut all = passed(&engine, 50);
        for _ in 0..3 {
            for limits in [&["2000/h", "1000/h", "10/h"][..], &["10/h", "1000/h"]] {
                engine.reload(version(algorithm, limits)).unwrap();
                all += passed(&engine, 50);
            }
        }
        assert_eq!(all, 10, "{algorithm:?}");
    }
}

#[test]
fn a_rule_that_was_gone_at_a_restart_returns_with_what_it_had() {
    let scratch = TempFolder::new("restart-returning");
    let path = scratch.path("state");
    let (clock, wall) = clock();
    let clocks = (&clock, &wall);
    for algorithm in ALGORITHMS {
        let engine = start(version(algorithm, &["5/h", "100/h"]), clocks);
        assert_eq!(passed(&engine, 10), 5);
        // Away at the stop, away at the start.
        engine.reload(policy(Vec::new())).unwrap();
        save(&engine, &path);
        let engine = restore(policy(Vec::new()), &path, clocks);
        save(&engine, &path);
        let engine = restore(version(algorithm, &["100/h", "5/h"]), &path, clocks);
        assert_eq!(passed(&engine, 10), 0, "{algorithm:?}");
    }
}

/// Versions of a rule, each of which has 5/h, or isn't there.
const VERSIONS: [Option<&[&str]>; 6] = [
    None,
    Some(&["5/h"]),
    Some(&["5/h", "40/h"]),
    Some(&["40/h", "5/h"]),
    Some(&["60/h", "9/minute", "5/h"]),
    Some(&["9/minute", "40/h", "5/h", "60/h"]),
];

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..config() })]

    #[test]
    fn whatever_comes_and_goes_a_limit_that_each_version_has_holds(
        algorithm in prop::sample::select(ALGORITHMS.to_vec()),
        steps in prop::collection::vec((0..VERSIONS.len(), 0..4usize), 1..30),
    ) {
        let clock = Manual::starting_at(Timestamp::from_secs(7_200));
        let engine = engine(version(algorithm, &["5/h"]), &clock);
        let mut all = 0;
        for (number, tries) in steps {
            match VERSIONS[number] {
                // What isn't limited isn't counted.
                None => engine.reload(policy(Vec::new())).unwrap(),
                Some(limits) => {
                    engine.reload(version(algorithm, limits)).unwrap();
                    all += passed(&engine, tries);
                }
            }
        }
        prop_assert!(all <= 5, "{} passed", all);
    }
}
