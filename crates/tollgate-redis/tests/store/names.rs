//! A key's name follows from the rule: equal policies have equal keys, whatever policy was in force before and whoever
//! else uses the store.

use std::time::Duration;

use tollgate::Rate;
use tollgate_engine::document::Format;
use tollgate_engine::{Engine, Facts, Policy};
use tollgate_redis::Redis;
use tollgate_testkit::redis::Server;

use super::{connect, keys};

fn policy(text: &str) -> Policy {
    Policy::from_text(text, Format::Yaml)
        .expect("a policy")
        .policy
}

/// How many of so many requests pass.
async fn passed(engine: &Engine<Redis>, requests: u32) -> u32 {
    let facts = Facts::new().with("user", "ada").with("tenant", "acme");
    let mut passed = 0;
    for _ in 0..requests {
        let verdict = engine.decide_async(&facts).await.expect("no error");
        assert_eq!(verdict.fallback(), None);
        passed += u32::from(verdict.denied().is_none());
    }
    passed
}

#[tokio::test]
async fn engines_that_share_a_store_share_no_counter() {
    let server = Server::start();
    for counting in ["exact", "leased"] {
        let redis = connect(&server);
        let [api, login] = ["api", "login"].map(|name| {
            let text = format!("limits: [{{name: {name}, rate: 5/h, counting: {counting}}}]");
            Engine::new(policy(&text), redis.clone()).expect("a policy")
        });
        assert_eq!(passed(&api, 8).await, 5, "{counting}");
        assert_eq!(passed(&login, 8).await, 5, "{counting}");
        // What is refused by one is not by another.
        let text = format!("limits: [{{name: other, rate: 5/h, counting: {counting}}}]");
        let other = Engine::new(policy(&text), redis).expect("a policy");
        assert_eq!(passed(&other, 8).await, 5, "{counting}");
    }
}

#[tokio::test]
async fn a_node_that_was_reloaded_uses_the_keys_of_one_that_was_restarted() {
    let server = Server::start();
    let rule = |limits: &str| format!("limits: [{{name: a, key: [tenant, user], {limits}}}]");
    for counting in ["exact", "leased"] {
        for (before, after) in [
            // A rate more in front, rates in another order, another slot, another period, and back.
            ("rate: [5/h]", "rate: [100/s, 5/h]"),
            ("rate: [100/s, 5/h]", "rate: [5/h]"),
            ("rate: [100/s, 5/h]", "rate: [5/h, 100/s]"),
            ("rate: [100/s, 5/h, 7/h]", "rate: [9/d, 100/s, 5/h, 7/h]"),
            (
                "rate: [5/h], hash_tag: tenant",
                "rate: [5/h], hash_tag: user",
            ),
            ("rate: [5/h]", "rate: [5/d]"),
            ("rate: [5/h], algorithm: leaky", "rate: [5/h]"),
        ] {
            let of = |limits: &str| policy(&rule(&format!("{limits}, counting: {counting}")));
            let what = format!("{counting}: {before} to {after}");
            server.command(&["FLUSHALL"]);
            let reloaded = Engine::new(of(before), connect(&server)).expect("a policy");
            assert_eq!(passed(&reloaded, 1).await, 1);
            reloaded.reload(of(after)).expect("a policy");
            server.command(&["FLUSHALL"]);
            assert_eq!(passed(&reloaded, 1).await, 1, "{what}");
            let names = keys(&server);
            let restarted = Engine::new(of(after), connect(&server)).expect("a policy");
            // Together they have what one has: one was spent.
            let both = passed(&restarted, 8).await + passed(&reloaded, 8).await;
            assert_eq!(both, 4, "{what}");
            assert_eq!(keys(&server), names, "{what}");
        }
    }
}

#[tokio::test]
async fn tiers_with_other_limits_beside_it_count_a_rate_together() {
    let server = Server::start();
    let text = "{tiers: {free: {rate: [5/h]}, paid: {rate: [100/s, 8/h]}}, tier_fact: tier}";
    let engine = Engine::new(policy(text), connect(&server)).expect("a policy");
    let mut passed = [0; 2];
    for _ in 0..8 {
        for (tier, passed) in ["free", "paid"].into_iter().zip(&mut passed) {
            let facts = Facts::new().with("tenant", "acme").with("tier", tier);
            let verdict = engine.decide_async(&facts).await.expect("no error");
            *passed += u32::from(verdict.denied().is_none());
        }
    }
    assert_eq!(passed.iter().sum::<u32>(), 8, "{passed:?}");
}

#[tokio::test]
async fn a_leased_limit_of_another_period_is_another_lease() {
    let server = Server::start();
    let of = |rate: &str| {
        policy(&format!(
            "limits: [{{name: a, rate: {rate}, counting: leased}}]"
        ))
    };
    let busy = Engine::new(of("1000/h"), connect(&server)).expect("a policy");
    assert_eq!(passed(&busy, 100).await, 100);
    busy.reload(of("700/m")).expect("a policy");
    let fresh = Engine::new(of("700/m"), connect(&server)).expect("a policy");
    let (began, mut all) = (tokio::time::Instant::now(), 0);
    for _ in 0..20 {
        all += passed(&busy, 40).await + passed(&fresh, 40).await;
    }
    let most = 700 + 1 + 700 * began.elapsed().as_millis() / 60_000;
    assert!(u128::from(all) <= most, "{all} of {most}");
}

#[tokio::test]
async fn a_raised_leased_limit_is_seen_at_the_next_question() {
    let server = Server::start();
    let of = |rate: &str| {
        policy(&format!(
            "limits: [{{name: a, rate: {rate}, counting: leased}}]"
        ))
    };
    let engine = Engine::new(of("3/d"), connect(&server)).expect("a policy");
    assert_eq!(passed(&engine, 10).await, 3);
    engine.reload(of("100000/d")).expect("a policy");
    assert_eq!(passed(&engine, 80).await, 80);
}

#[tokio::test]
async fn a_leased_limit_that_is_reset_is_seen_at_the_next_question() {
    let server = Server::start();
    let redis = connect(&server);
    let [one, other] = [(); 2].map(|()| {
        let limiter = redis.limiter("a", Rate::per_day(3)).leased();
        limiter.build().expect("a limit")
    });
    let passed = async |limiter: &tollgate_redis::RedisLimiter| {
        let mut passed = 0;
        for _ in 0..10 {
            passed += u32::from(limiter.check("k").await.allowed().is_some());
        }
        passed
    };
    assert_eq!((passed(&one).await, passed(&other).await), (3, 0));
    one.reset("k").await.expect("an answer");
    assert_eq!((passed(&other).await, passed(&one).await), (3, 0));
    // Of a reset by another node, a node hears within a lease's life.
    let node = connect(&server);
    let away = node.limiter("a", Rate::per_day(3)).leased();
    let away = away.build().expect("a limit");
    away.reset("k").await.expect("an answer");
    let deadline = Duration::from_secs(20);
    let heard = async {
        while passed(&one).await == 0 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(deadline, heard).await.expect("heard");
}
