//! A peek predicts a decision, and changes nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use proptest::prelude::*;
use tollgate::clock::Manual;
use tollgate_engine::Facts;
use tollgate_engine::observer::{Event, Observer};
use tollgate_engine::verdict::{AllowedRequest, DecisionDetails};

use super::engine;

const POLICY: &str = "
limits:
- {name: gcra, match: {path: /a}, key: user, rate: 4/s burst 5, cost: {fact: cost}}
- {name: bucket, match: {path: /b}, key: user, rate: 3/s burst 5, algorithm: token-bucket, cost: {fact: cost}}
- {name: window, match: {path: /c}, key: user, rate: 5/s, algorithm: fixed-window, cost: {fact: cost}}
- {name: log, match: {path: /d}, key: user, rate: 5/s, algorithm: sliding-log, cost: {fact: cost}}
- {name: quota, match: {path: /e}, key: user, quota: 9/day, cost: {fact: cost}}
- {name: slots, match: {path: /f}, key: user, concurrency: 2}
- {name: all, rate: 20/s, cost: {fact: cost}}
- {name: trial, rate: 1/s, mode: shadow}
block: [{user: eve}]
";

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn a_look_says_what_a_decision_would_and_changes_nothing(
        steps in prop::collection::vec((0..7usize, 0..3usize, 0..7u64, 0..900u64), 1..60),
    ) {
        let (clock, other) = (Manual::new(), Manual::new());
        let (looked_at, alone) = (engine(POLICY, &clock), engine(POLICY, &other));
        let mut held = Vec::new();
        for (path, user, cost, wait) in steps {
            for clock in [&clock, &other] {
                clock.advance(Duration::from_millis(wait));
            }
            let (path, cost) = (["/a", "/b", "/c", "/d", "/e", "/f", "/g"][path], cost.to_string());
            let user = ["ada", "bob", "eve"][user];
            let facts = Facts::new().with("path", path).with("user", user).with("cost", &cost);
            let peeked = looked_at.peek(&facts);
            let (decided, same) = (looked_at.decide(&facts), alone.decide(&facts));
            prop_assert_eq!(decided.decision(), same.decision());
            prop_assert_eq!(decided.denied().is_some(), same.denied().is_some());
            prop_assert_eq!(decided.denied().is_some(), !peeked.decision().is_allowed());
            if decided.denied().is_none() && path != "/f" {
                // What is left is as it was before, of the same limit.
                let cost: u64 = cost.parse().unwrap();
                let limit = |found: &DecisionDetails<'_>| found.limit().map(|limit| limit.counter().id);
                if limit(&peeked) == limit(&decided) {
                    prop_assert_eq!(peeked.decision().remaining, decided.decision().remaining + cost);
                }
            }
            let would = peeked.shadow_denials().map(|refusal| refusal.decision);
            let did = decided.shadow_denials().map(|refusal| refusal.decision);
            prop_assert_eq!(would.collect::<Vec<_>>(), did.collect::<Vec<_>>());
            if decided.denied().is_some() {
                prop_assert_eq!(decided.cause(), peeked.cause());
                prop_assert_eq!(decided.decision(), peeked.decision());
            }
            // Slots are held on, until there are many.
            held.push((decided.allowed().map(AllowedRequest::into_permits), same.allowed().map(AllowedRequest::into_permits)));
            if held.len() > 5 {
                held.remove(0);
            }
        }
    }
}

#[test]
fn a_look_tells_whether_the_cost_would_pass_and_when() {
    let clock = Manual::new();
    let engine = engine(POLICY, &clock);
    let facts = Facts::new()
        .with("path", "/a")
        .with("user", "ada")
        .with("cost", "4");
    let before = engine.peek(&facts);
    assert!(before.decision().is_allowed());
    assert_eq!(before.decision().remaining, 5);
    drop(engine.decide(&facts).allowed().expect("a full bucket"));
    let after = engine.peek(&facts);
    assert_eq!(
        (after.decision().is_allowed(), after.decision().remaining),
        (false, 1)
    );
    assert_eq!(after.decision().wait_or_max(), Duration::from_millis(750));
    assert_eq!(after.key().expect("by user").to_string(), "user=ada");
    clock.advance(Duration::from_secs(1));
    assert!(engine.peek(&facts).decision().is_allowed());
    assert!(engine.decide(&facts).allowed().is_some());
}

/// The number of recorded events.
#[derive(Clone, Default)]
struct Told(Arc<AtomicU64>);

impl Observer for Told {
    fn on_decision(&self, _: &Event<'_>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn a_look_at_slots_takes_none_and_an_observer_hears_nothing_of_it() {
    let told = Told::default();
    let engine = engine("limits: [{name: jobs, concurrency: 1}]", &Manual::new());
    let engine = engine.with_observer(told.clone());
    let facts = Facts::new();
    for _ in 0..3 {
        assert_eq!(engine.peek(&facts).decision().remaining, 1);
    }
    assert_eq!(told.0.load(Ordering::Relaxed), 0);
    let passed = engine.decide(&facts).allowed();
    assert_eq!(told.0.load(Ordering::Relaxed), 1);
    assert!(!engine.peek(&facts).decision().is_allowed());
    drop(passed);
    assert!(engine.peek(&facts).decision().is_allowed());
}

#[test]
fn a_look_tells_what_is_left_and_not_what_would_be() {
    for limit in [
        "rate: 9/d",
        "rate: 9/d, algorithm: token-bucket",
        "rate: 9/d, algorithm: fixed-window",
        "rate: 9/d, algorithm: sliding-log",
        "rate: 9/d, algorithm: sliding-window",
        "quota: 9/day",
        "quota: 9 in any 30d",
    ] {
        let text = format!("limits: [{{name: a, {limit}, cost: 4}}]");
        let engine = engine(&text, &Manual::new());
        let facts = Facts::new();
        assert_eq!(engine.peek(&facts).decision().remaining, 9, "{limit}");
        assert!(engine.decide(&facts).allowed().is_some());
        assert_eq!(engine.peek(&facts).decision().remaining, 5, "{limit}");
    }
}
