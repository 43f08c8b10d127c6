//! Requests with several values of one fact: no value hides another, and none lets another pass.

use std::time::Duration;

use tollgate::clock::Manual;
use tollgate_engine::Facts;
use tollgate_engine::document::Format;
use tollgate_engine::orders::{Act, NewOrder, Target};
use tollgate_engine::policy::Policy;

use crate::common::engine;

fn policy(text: &str) -> Policy {
    Policy::from_text(text, Format::Yaml)
        .expect("a policy")
        .policy
}

fn of<'a>(fact: &'a str, value: &'a str) -> Facts<'a> {
    Facts::new().with("ip", "198.51.100.7").with(fact, value)
}

/// Both orders of two values.
fn orders_of(values: [&str; 2]) -> [[&str; 2]; 2] {
    [values, [values[1], values[0]]]
}

#[test]
fn a_rule_takes_the_place_of_another_for_its_own_value_alone() {
    let text = "
limits:
- {name: free, key: ip, rate: 1/h}
- {name: gold, match: {plan: gold}, key: ip, rate: 100/h, replaces: [free]}
";
    for [first, second] in orders_of(["gold", "free"]) {
        let engine = engine(policy(text), &Manual::new());
        let other = [of("plan", second)];
        let both = of("plan", first).also(&other);
        assert!(engine.decide(&both).passed().is_some());
        assert!(
            engine.decide(&both).refused().is_some(),
            "{first}, {second}"
        );
        // Whose values are all gold is.
        let other = [of("plan", "gold")];
        let gold = of("plan", "gold").also(&other);
        assert!((0..50).all(|_| engine.decide(&gold).passed().is_some()));
    }
}

#[test]
fn a_bypass_of_one_value_lets_no_other_pass() {
    for [first, second] in orders_of(["good", "evil"]) {
        for rule in [None, Some("all")] {
            let policy = policy("limits: [{name: all, match: {app: '*'}, key: ip, rate: 1/h}]");
            let engine = engine(policy, &Manual::new());
            let target = match rule {
                None => Target::from_text(None, "app=good").expect("a key"),
                Some(_) => Target::from_text(None, "app=good*").expect("a key"),
            };
            let order = NewOrder::new(Act::Bypass, target, Duration::from_secs(3_600));
            engine.order(order).expect("an order");
            let other = [of("app", second)];
            let both = of("app", first).also(&other);
            assert!(engine.decide(&both).passed().is_some());
            assert!(
                engine.decide(&both).refused().is_some(),
                "{first}, {second}"
            );
            let other = [of("app", "good"), of("app", "good, good").joined()];
            let good = of("app", "good").also(&other);
            assert!((0..5).all(|_| engine.decide(&good).passed().is_some()));
        }
    }
}

#[test]
fn the_dearest_of_several_costs_is_charged() {
    for [first, second] in orders_of(["1", "90"]) {
        let policy = policy("limits: [{name: all, key: ip, rate: 100/h, cost: {fact: tokens}}]");
        let engine = engine(policy, &Manual::new());
        let other = [of("tokens", second)];
        let both = of("tokens", first).also(&other);
        assert_eq!(engine.decide(&both).decision().remaining, 10);
    }
}
