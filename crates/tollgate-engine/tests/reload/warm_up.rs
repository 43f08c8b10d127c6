//! Rules whose rates grow after a start: from a tenth to the whole, by tenths, in this process alone.

use std::time::Duration;

use tollgate::Timestamp;
use tollgate::clock::Manual;
use tollgate_engine::document::Format;
use tollgate_engine::policy::Policy;
use tollgate_engine::{Bounds, Facts};

use super::common::{TestEngine, engine};

const STEP: Duration = Duration::from_millis(1);

fn policy(rule: &str) -> Policy {
    let text = format!("limits: [{{name: api, key: user, {rule}}}]");
    Policy::from_text(&text, Format::Yaml)
        .expect("a policy")
        .policy
}

/// How many pass in each second, of one request a millisecond.
fn each_second(engine: &TestEngine, clock: &Manual, seconds: usize) -> Vec<u64> {
    let facts = Facts::new().with("user", "1");
    let second = |_| {
        let passed = (0..1_000).filter(|_| {
            let passed = engine.decide(&facts).allowed().is_some();
            clock.advance(STEP);
            passed
        });
        u64::try_from(passed.count()).expect("a thousand at most")
    };
    (0..seconds).map(second).collect()
}

#[test]
fn a_rate_grows_by_tenths_and_no_second_sees_more_than_its_part() {
    for algorithm in [
        "gcra",
        "token-bucket",
        "leaky",
        "fixed-window",
        "sliding-log",
    ] {
        let clock = Manual::new();
        let text = format!("rate: 100/s, algorithm: {algorithm}, warm_up: 9s");
        let engine = engine(policy(&text), &clock);
        let passed = each_second(&engine, &clock, 12);
        for (second, passed) in (1..).zip(&passed[..9]) {
            // A tenth more each second, and a burst of as much; what was spent of one counts in the next.
            let part = second * 10;
            assert!(
                *passed <= 2 * part,
                "{algorithm}: {passed} in second {second}"
            );
            assert!(
                *passed + 2 >= part,
                "{algorithm}: {passed} in second {second}"
            );
        }
        // From the tenth on it is the rule alone that limits.
        for passed in &passed[10..] {
            assert!((98..=102).contains(passed), "{algorithm}: {passed:?}");
        }
        let all: u64 = passed[..9].iter().sum();
        // The sum of the parts, and one burst.
        assert!((440..=450 + 100).contains(&all), "{algorithm}: {all}");
    }
}

#[test]
fn a_small_rate_is_cut_exactly() {
    // A tenth of one a second is one in ten seconds.
    let clock = Manual::new();
    let engine = engine(policy("rate: 1/s, warm_up: 900s"), &clock);
    let passed: u64 = each_second(&engine, &clock, 90).iter().sum();
    assert!((9..=10).contains(&passed), "{passed}");
}

#[test]
fn what_decides_and_what_is_left_is_told_of_the_part() {
    let clock = Manual::new();
    let engine = engine(policy("rate: 100/s burst 200, warm_up: 9s"), &clock);
    let facts = Facts::new().with("user", "1");
    let verdict = engine.decide(&facts);
    assert_eq!(verdict.decision().remaining, 19);
    let kind = verdict.limit().expect("the part").kind().to_string();
    assert_eq!(kind, "100 per 10s burst 20");
    let left = engine.remaining(&facts);
    let told: Vec<_> = left
        .iter()
        .map(|left| (left.is_warm_up, left.decision.remaining))
        .collect();
    assert_eq!(told, [(false, 199), (true, 19)]);
    drop(verdict);
    clock.advance(Duration::from_secs(9));
    let verdict = engine.decide(&facts);
    assert_eq!(
        verdict.limit().expect("the rate").kind().to_string(),
        "100/s burst 200"
    );
    assert_eq!(engine.remaining(&facts).len(), 1);
}

#[test]
fn a_request_that_costs_more_than_the_part_passes_nevertheless() {
    let clock = Manual::new();
    let engine = engine(
        policy("rate: 100/s, cost: {fact: units}, warm_up: 9s"),
        &clock,
    );
    let facts = Facts::new().with("user", "1").with("units", "60");
    assert!(engine.decide(&facts).allowed().is_some());
    // It has taken all of the part, which comes back in a second.
    let one = Facts::new().with("user", "1").with("units", "1");
    let refused = engine.decide(&one);
    assert_eq!(refused.decision().wait_or_max(), Duration::from_millis(100));
}

#[test]
fn a_reload_warms_up_what_is_new_and_nothing_again() {
    let clock = Manual::new();
    let warm = "rate: 100/s, warm_up: 9s";
    let engine = engine(policy(warm), &clock);
    let facts = Facts::new().with("user", "1");
    let part = |engine: &TestEngine| {
        let left = engine.remaining(&facts);
        left.iter()
            .find(|left| left.is_warm_up)
            .map(|left| left.kind.to_string())
    };
    assert_eq!(part(&engine).as_deref(), Some("100 per 10s burst 10"));
    clock.advance(Duration::from_secs(4));
    // The same rule goes on where it was, also with another rate.
    engine.reload(policy(warm)).expect("a policy");
    assert_eq!(part(&engine).as_deref(), Some("500 per 10s burst 50"));
    engine
        .reload(policy("rate: 200/s, warm_up: 9s"))
        .expect("a policy");
    assert_eq!(part(&engine).as_deref(), Some("1000 per 10s burst 100"));
    clock.advance(Duration::from_secs(5));
    engine.reload(policy(warm)).expect("a policy");
    assert_eq!(part(&engine), None, "it is warm");
    // One that is in force when it is told to warm up is warm.
    engine.reload(policy("rate: 100/s")).expect("a policy");
    engine.reload(policy(warm)).expect("a policy");
    assert_eq!(part(&engine), None);
    // One that comes back has gone cold.
    engine.reload(Policy::default()).expect("a policy");
    engine.reload(policy(warm)).expect("a policy");
    assert_eq!(part(&engine).as_deref(), Some("100 per 10s burst 10"));
}

/// The state of the warm-up gate.
fn gate(engine: &TestEngine) -> Option<String> {
    let facts = Facts::new().with("user", "1");
    let left = engine.remaining(&facts);
    let gate = left.iter().find(|left| left.is_warm_up);
    gate.map(|left| left.kind.to_string())
}

#[test]
fn another_length_leaves_a_rule_as_warm_as_it_was() {
    let clock = Manual::new();
    let engine = engine(policy("rate: 100/s, warm_up: 9s"), &clock);
    clock.advance(Duration::from_secs(4));
    assert_eq!(gate(&engine).as_deref(), Some("500 per 10s burst 50"));
    for length in ["90s", "900s", "9s"] {
        let next = policy(&format!("rate: 100/s, warm_up: {length}"));
        engine.reload(next).expect("a policy");
        let told = gate(&engine);
        assert_eq!(told.as_deref(), Some("500 per 10s burst 50"), "{length}");
    }
    clock.advance(Duration::from_secs(5));
    assert_eq!(gate(&engine), None, "it is warm");
    let longer = policy("rate: 100/s, warm_up: 90s");
    engine.reload(longer).expect("a policy");
    assert_eq!(gate(&engine), None, "and stays so");
}

#[test]
fn a_clock_that_is_set_back_leaves_a_rule_as_warm_as_it_was() {
    let clock = Manual::starting_at(Timestamp::from_secs(10_000));
    let engine = engine(policy("rate: 100/s, warm_up: 9s"), &clock);
    clock.advance(Duration::from_secs(4));
    assert_eq!(gate(&engine).as_deref(), Some("500 per 10s burst 50"));
    clock.set(Timestamp::from_secs(5_000));
    assert_eq!(gate(&engine).as_deref(), Some("500 per 10s burst 50"));
    clock.advance(Duration::from_secs(5));
    assert_eq!(gate(&engine), None, "it is warm");
    clock.set(Timestamp::from_secs(1));
    assert_eq!(gate(&engine), None, "and stays so");
}

#[test]
fn what_is_unlimited_has_no_rate_to_grow() {
    let mut policy = policy("rate: 1/h, warm_up: 9s");
    policy.rules[0].limits.unlimited = true;
    let engine = engine(policy, &Manual::new());
    let facts = Facts::new().with("user", "1");
    assert!((0..10).all(|_| engine.decide(&facts).allowed().is_some()));
}

#[test]
fn gates_are_not_counted_among_the_limits_of_a_request() {
    let clock = Manual::new();
    let bounds = Bounds {
        max_checks: 2,
        ..Bounds::default()
    };
    let engine = engine(policy("rate: [100/s, 1000/m], warm_up: 9s"), &clock).with_bounds(bounds);
    let facts = Facts::new().with("user", "1");
    assert!(engine.decide(&facts).allowed().is_some());
}

#[test]
fn what_an_estimate_came_to_counts_in_the_gate_too() {
    let rule = "rate: 1000/s, cost: {fact: units, default: 10, settle_within: 60s}, warm_up: 90s";
    let clock = Manual::new();
    let engine = engine(policy(rule), &clock);
    let facts = Facts::new().with("user", "1");
    let left = || {
        let left = engine.remaining(&facts);
        let gate = left.iter().find(|left| left.is_warm_up);
        gate.map(|left| left.decision.remaining)
    };
    let mut permits = engine
        .decide(&facts)
        .allowed()
        .expect("room")
        .into_permits();
    assert_eq!(left(), Some(90));
    permits.settle(1);
    assert_eq!(left(), Some(99), "the rest comes back");
    let mut permits = engine
        .decide(&facts)
        .allowed()
        .expect("room")
        .into_permits();
    permits.settle(299);
    // What was underestimated is owed, up to a full bucket: of the rule there is still room, but not of its tenth.
    let verdict = engine.decide(&facts);
    assert_eq!(verdict.decision().limit, 100);
    assert!(verdict.denied().is_some(), "nothing is left");
    clock.advance(Duration::from_millis(1_100));
    assert!(engine.decide(&facts).allowed().is_some());
}

#[test]
fn estimates_that_are_settled_grow_by_tenths_too() {
    let clock = Manual::new();
    let rule = "rate: 100/s, cost: {default: 1, settle_within: 60s}, warm_up: 9s";
    let engine = engine(policy(rule), &clock);
    let passed = each_second(&engine, &clock, 12);
    for (second, passed) in (1..).zip(&passed[..9]) {
        let part = second * 10;
        assert!(*passed <= 2 * part, "{passed} in second {second}");
        assert!(*passed + 2 >= part, "{passed} in second {second}");
    }
    let all: u64 = passed[..9].iter().sum();
    assert!((440..=450 + 100).contains(&all), "{all}");
}
