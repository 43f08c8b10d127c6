//! Resets and refunds of limits with outstanding tokens: leased ones, and those with estimates.

use std::time::Duration;

use tollgate::Rate;
use tollgate_engine::backend::RefundResult;
use tollgate_engine::document::Format;
use tollgate_engine::verdict::{AllowedRequest, Permits};
use tollgate_engine::{Engine, Facts, Policy};
use tollgate_redis::Redis;
use tollgate_testkit::redis::Server;

use super::{connect, keys};

/// A hundred, of which none comes back while a test runs.
const EACH: [&str; 4] = [
    "rate: 100/d, counting: leased",
    "rate: 100/d, counting: leased, algorithm: leaky, cost: {fact: cost, settle_within: 60s}",
    "rate: 100/d, algorithm: token-bucket, cost: {fact: cost, settle_within: 60s}",
    "rate: 100/d, cost: {fact: cost, settle_within: 60s}",
];

fn engine(server: &Server, text: &str) -> Engine<Redis> {
    let text = format!("limits: [{text}]");
    let policy = Policy::from_text(&text, Format::Yaml).unwrap_or_else(|error| panic!("{error}"));
    Engine::new(policy.policy, connect(server)).expect("a policy")
}

fn rule(what: &str) -> String {
    let cost = if what.contains("cost") {
        ""
    } else {
        ", cost: {fact: cost}"
    };
    format!("{{name: a, key: user, {what}{cost}}}")
}

async fn ask(engine: &Engine<Redis>, cost: u64) -> Option<Permits> {
    let cost = cost.to_string();
    let facts = Facts::new().with("user", "ada").with("cost", &cost);
    let Ok(verdict) = engine.decide_async(&facts).await;
    assert_eq!(verdict.fallback(), None);
    verdict.allowed().map(AllowedRequest::into_permits)
}

async fn left(engine: &Engine<Redis>) -> u64 {
    let facts = Facts::new().with("user", "ada").with("cost", "0");
    let Ok(found) = engine.peek_async(&facts).await;
    found.decision().remaining
}

/// What all have that ask one by one, as much as there is.
async fn all_that_is_there(engines: &[&Engine<Redis>]) -> u64 {
    let mut passed = 0;
    for engine in engines {
        while let Some(mut permits) = ask(engine, 1).await {
            permits.settle(1);
            passed += 1;
        }
    }
    passed
}

#[tokio::test]
async fn a_reset_of_a_key_in_use_forgets_what_was_spent_and_keeps_what_is_held() {
    for what in EACH {
        let server = Server::start();
        let (here, there) = (engine(&server, &rule(what)), engine(&server, &rule(what)));
        let mut permits = ask(&here, 60).await.expect("there is room");
        permits.settle(60);
        let held = ask(&there, 10).await.expect("there is room");
        let before = left(&here).await;
        assert!(before <= 30, "{what}: {before}");
        let facts = Facts::new().with("user", "ada").with("cost", "1");
        assert_eq!(
            here.reset_request_async(&facts).await,
            Ok(RefundResult::Refunded),
            "{what}"
        );
        assert!(!here.backend().is_fallback_active(), "{what}");
        // Whatever the other node holds still, it and what is there are the burst.
        let there_are = all_that_is_there(&[&here, &there]).await;
        let is_held = what.contains("settle");
        let most = if is_held { 90 } else { 100 };
        assert!((85..=most).contains(&there_are), "{what}: {there_are}");
        drop(held);
        assert_eq!(keys(&server).len(), 1, "{what}");
    }
}

#[tokio::test]
async fn a_refund_gives_back_what_was_spent_and_no_more() {
    for what in EACH {
        let server = Server::start();
        let engine = engine(&server, &rule(what));
        let mut permits = ask(&engine, 60).await.expect("there is room");
        permits.settle(60);
        for (cost, expected) in [("20", 60), ("30", 90), ("60", 100)] {
            let facts = Facts::new().with("user", "ada").with("cost", cost);
            assert_eq!(
                engine.refund_async(&facts).await,
                Ok(RefundResult::Refunded),
                "{what}"
            );
            assert_eq!(left(&engine).await, expected, "{what}");
        }
        assert_eq!(all_that_is_there(&[&engine]).await, 100, "{what}");
    }
}

#[tokio::test]
async fn a_leased_limiter_is_refunded_and_reset() {
    let server = Server::start();
    let redis = connect(&server);
    let limiter = redis.limiter("a", Rate::per_day(10)).leased();
    let limiter = limiter.build().expect("a limit");
    for give in ["refund", "reset"] {
        while limiter.check("k").await.allowed().is_some() {}
        match give {
            "refund" => limiter.refund("k", 10).await.expect("an answer"),
            _ => limiter.reset("k").await.expect("an answer"),
        }
        let mut passed = 0;
        while limiter.check("k").await.allowed().is_some() {
            passed += 1;
        }
        assert_eq!(passed, 10, "{give}");
    }
}

#[tokio::test]
async fn one_key_that_is_not_ours_keeps_no_reset_from_the_others() {
    let server = Server::start();
    let text = "{name: a, key: user, rate: 3/d}, {name: b, key: user, rate: 3/d, counting: leased}";
    let (engine, other) = (engine(&server, text), engine(&server, text));
    let facts = Facts::new().with("user", "ada");
    for _ in 0..3 {
        let Ok(verdict) = engine.decide_async(&facts).await;
        assert!(verdict.allowed().is_some());
    }
    let exact = keys(&server);
    let exact = exact
        .iter()
        .find(|key| key.contains("rule/a"))
        .expect("one");
    server.command(&["SET", exact, "somebody's"]);
    assert_eq!(
        engine.reset_request_async(&facts).await,
        Ok(RefundResult::Lost)
    );
    // That is no reason to take the store for broken.
    assert!(!engine.backend().is_fallback_active());
    server.command(&["DEL", exact]);
    let mut passed = 0;
    while let Ok(verdict) = other.decide_async(&facts).await
        && verdict.allowed().is_some()
    {
        passed += 1;
    }
    assert_eq!(passed, 3);
}

#[tokio::test]
async fn who_is_denied_is_told_when_what_was_spent_beyond_is_paid() {
    let server = Server::start();
    // A token takes 30 ms.
    let what = "rate: 2000/m burst 6000, cost: {fact: cost, settle_within: 60s}";
    let engine = engine(&server, &rule(what));
    let mut permits = ask(&engine, 6000).await.expect("there is room");
    permits.settle(12_000);
    // Settled off the path of requests.
    let facts = Facts::new().with("user", "ada").with("cost", "1");
    let wait = || async {
        let Ok(verdict) = engine.decide_async(&facts).await;
        verdict
            .denied()
            .map(|refused| refused.decision().wait_or_max())
    };
    let told = wait().await.expect("nothing is left");
    let due = Duration::from_secs(180);
    assert!(told <= due + Duration::from_secs(1), "{told:?}");
    assert!(told + Duration::from_secs(5) > due, "{told:?}");
}

#[tokio::test]
async fn who_is_denied_is_told_the_longest_wait_of_all_limits() {
    let server = Server::start();
    let what = "rate: 2000/m burst 100, quota: 100/month, cost: {fact: cost, settle_within: 60s}";
    let engine = engine(&server, &rule(what));
    let mut permits = ask(&engine, 100).await.expect("there is room");
    permits.settle(100);
    let facts = Facts::new().with("user", "ada").with("cost", "50");
    let Ok(verdict) = engine.decide_async(&facts).await;
    let told = verdict
        .denied()
        .map(|refused| refused.decision().wait_or_max());
    // A month may be nearly over, but for a moment.
    assert!(told > Some(Duration::from_secs(5)), "{told:?}");
}
