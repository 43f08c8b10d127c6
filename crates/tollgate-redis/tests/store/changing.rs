//! Policies that change and tenants that change tiers, in a store: no window allows more than the loosest limit.

use std::time::Duration;

use tollgate::Rate;
use tollgate::clock::Manual;
use tollgate_engine::document::Format;
use tollgate_engine::{Engine, Facts, Policy};
use tollgate_redis::Redis;
use tollgate_testkit::redis::Server;

fn policy(text: &str) -> Policy {
    let read = Policy::from_text(text, Format::Yaml);
    read.expect("a policy").policy
}

/// An engine on a clock that is set by hand.
fn engine(server: &Server, text: &str) -> (Engine<Redis>, Manual) {
    let clock = Manual::new();
    clock.advance(Duration::from_secs(1_700_000_000));
    let builder = Redis::builder(&server.url()).expect("a server's own URL");
    let builder = builder.clock(clock.clone()).timeout(Duration::from_secs(5));
    let redis = builder.build().expect("a runtime");
    (Engine::new(policy(text), redis).expect("a policy"), clock)
}

/// Asks a hundred times in each of so many steps of half a second: how many passed, of how many.
async fn passed(
    (engine, clock): &(Engine<Redis>, Manual),
    steps: u32,
    loosest: Rate,
    mut facts: impl FnMut(u32) -> Facts<'static>,
) -> (u64, u64) {
    let (step, mut passed) = (Duration::from_millis(500), 0);
    for number in 0..steps {
        let facts = facts(number);
        for _ in 0..100 {
            let verdict = engine.decide_async(&facts).await.expect("no error");
            assert_eq!(verdict.fallback(), None);
            passed += u64::from(verdict.denied().is_none());
        }
        clock.advance(step);
    }
    let length = step * (steps - 1);
    let period = loosest.period().expect("a period").as_nanos();
    let gives = u128::from(loosest.count()) * length.as_nanos() / period;
    let most = loosest.burst_size() + u64::try_from(gives).expect("not so many");
    (passed, most)
}

#[tokio::test]
async fn reloads_back_and_forth_wipe_nothing() {
    let server = Server::start();
    for algorithm in ["gcra", "token-bucket", "leaky"] {
        server.command(&["FLUSHALL"]);
        let of = |rate: &str| {
            format!("limits: [{{name: a, key: user, rate: {rate}, algorithm: {algorithm}}}]")
        };
        let node = engine(&server, &of("100/m"));
        // For two seconds each.
        let policies = ["100/m", "60/m"].map(|rate| policy(&of(rate)));
        let told = passed(&node, 30, Rate::per_minute(100), |step| {
            let next = policies[step as usize / 4 % 2].clone();
            node.0.reload(next).expect("a policy");
            Facts::new().with("user", "ada")
        });
        let (passed, most) = told.await;
        assert!(passed <= most, "{algorithm}: {passed} of {most}");
        assert!(passed > 100, "{algorithm}: {passed} of {most}");
    }
}

#[tokio::test]
async fn a_tenant_in_two_tiers_has_what_the_larger_one_has() {
    let server = Server::start();
    let text = "{tiers: {free: {rate: 10/m}, paid: {rate: 60/m}}, tier_fact: tier}";
    let node = engine(&server, text);
    // As much as there is by the one, and then by the other for as long as that takes for one.
    let told = passed(&node, 60, Rate::per_minute(60), |step| {
        let tier = if step % 14 == 0 { "paid" } else { "free" };
        Facts::new().with("tenant", "acme").with("tier", tier)
    });
    let (passed, most) = told.await;
    assert!(passed <= most, "{passed} of {most}");
    assert!(passed > 60, "{passed} of {most}");
}
