//! Operators' orders where a store counts: each process has its own, over counters that all share.

use std::time::Duration;

use tollgate::Rate;
use tollgate_engine::document::Format;
use tollgate_engine::facts::Descriptor;
use tollgate_engine::orders::{Act, NewOrder, Replacement, Target};
use tollgate_engine::verdict::Reason;
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
        passed += usize::from(verdict.refused().is_none());
    }
    passed
}

fn order(engine: &Engine<Redis>, act: Act, target: Target) {
    let order = NewOrder::new(act, target, HOUR);
    engine.order(order).expect("an order");
}

fn other_rate(rate: Rate) -> Act {
    Act::Override(Replacement {
        rate: Some(rate),
        ..Replacement::default()
    })
}

#[tokio::test]
async fn a_process_has_its_own_orders_over_counters_of_all() {
    let server = Server::start();
    let text = "limits: [{name: a, key: user, rate: 4/h}]";
    let (here, there) = (engine(&server, text), engine(&server, text));
    let key = |user: &str| Target::key("a", [("user", user)]);
    order(&here, Act::Block, key("eve"));
    order(&here, Act::Bypass, key("vip"));
    let eve = Facts::new().with("user", "eve");
    let Ok(verdict) = here.decide_async(&eve).await;
    assert_eq!(verdict.reason(), Some(Reason::Blocked));
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
    let Ok(reset) = here.reset_async(&key("ada")).await;
    assert_eq!(reset.expect("a key").rules, ["a"]);
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
    order(&here, Act::Block, key.clone());
    assert_eq!(of_ten(&here, "ada").await, 0);
    here.withdraw_from(&key, &Act::Block).expect("an order");
    here.withdraw_from(&key, &other_rate(Rate::zero()))
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
    order(&here, Act::Block, target("eve"));
    order(&here, other_rate(Rate::per_hour(5)), target("ada"));
    for (user, most) in [("eve", 0), ("ada", 5), ("bob", 2)] {
        let mut passed = 0;
        for _ in 0..10 {
            let entries = [("user", user)];
            let descriptors = [Descriptor::new(&entries)];
            let Ok(verdict) = here.decide_descriptors_async("edge", &descriptors, 1).await;
            passed += usize::from(verdict.refused().is_none());
        }
        assert_eq!(passed, most, "{user}");
    }
}
