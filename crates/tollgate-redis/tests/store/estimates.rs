//! Estimates on a store: visible to the fleet while they are held, and replaced by the actual cost in the end.

use std::time::Duration;

use tollgate::stack::SettlementTiming;
use tollgate_engine::document::Format;
use tollgate_engine::verdict::{AllowedRequest, Permits};
use tollgate_engine::{Engine, Facts, Policy};
use tollgate_redis::Redis;
use tollgate_testkit::redis::Server;

use super::common::eventually;
use super::{connect, keys};

const LLM: &str =
    "limits: [{name: tokens, key: tenant, rate: 10000/h, cost: {fact: max, settle_within: 60s}}]";

fn engine(text: &str, redis: Redis) -> Engine<Redis> {
    let policy = Policy::from_text(text, Format::Yaml).unwrap_or_else(|error| panic!("{error}"));
    Engine::new(policy.policy, redis).expect("a policy")
}

async fn ask(engine: &Engine<Redis>, max: u64) -> Option<Permits> {
    let max = max.to_string();
    let facts = Facts::new().with("tenant", "acme").with("max", &max);
    let Ok(verdict) = engine.decide_async(&facts).await;
    assert_eq!(verdict.fallback(), None);
    verdict.allowed().map(AllowedRequest::into_permits)
}

async fn left(engine: &Engine<Redis>) -> u64 {
    let facts = Facts::new().with("tenant", "acme").with("max", "0");
    let Ok(findings) = engine.peek_async(&facts).await;
    findings.decision().remaining
}

/// Until as much is left.
async fn until_left(engine: &Engine<Redis>, expected: u64) {
    let what = format!("{expected} to be left");
    eventually(&what, async || left(engine).await == expected).await;
}

/// A policy for each way of counting, with a count of 10,000 that doesn't come back while a test runs.
fn every_way() -> Vec<String> {
    let mut all: Vec<_> = [
        "gcra",
        "gcra, counting: leased",
        "token-bucket",
        "leaky, counting: leased",
        "fixed-window",
        "sliding-window",
        "sliding-log",
    ]
    .map(|algorithm| LLM.replace("/h", &format!("/d, algorithm: {algorithm}")))
    .into();
    all.push(LLM.replace("rate: 10000/h", "quota: 10000/month"));
    all.push(LLM.replace("rate: 10000/h", "quota: 10000 in any 30d"));
    all
}

#[tokio::test]
async fn what_was_not_spent_comes_back_and_what_was_underestimated_is_owed() {
    let server = Server::start();
    for text in every_way() {
        server.command(&["FLUSHALL"]);
        let engine = engine(&text, connect(&server));
        let mut permits = ask(&engine, 4_000).await.expect("room");
        until_left(&engine, 6_000).await;
        permits.settle(1_500);
        until_left(&engine, 8_500).await;
        drop(permits);
        let mut permits = ask(&engine, 1_000).await.expect("room");
        permits.settle(3_000);
        until_left(&engine, 5_500).await;
        drop(ask(&engine, 500).await);
        until_left(&engine, 5_000).await;
        ask(&engine, 500).await.expect("room").cancel();
        until_left(&engine, 5_000).await;
        assert!(ask(&engine, 5_001).await.is_none(), "{text}");
        engine.backend().close().await;
    }
}

#[tokio::test]
async fn nodes_see_what_others_hold_and_that_it_came_back() {
    let server = Server::start();
    let (one, other) = (engine(LLM, connect(&server)), engine(LLM, connect(&server)));
    let mut permits = ask(&one, 6_000).await.expect("room");
    assert_eq!(left(&other).await, 4_000);
    assert!(ask(&other, 5_000).await.is_none());
    permits.settle(1_000);
    until_left(&other, 9_000).await;
    let held = ask(&other, 9_000).await.expect("all that is left");
    assert!(ask(&one, 1).await.is_none());
    held.cancel();
    until_left(&one, 9_000).await;
}

#[tokio::test]
async fn a_decision_tells_what_is_left_in_the_store() {
    let server = Server::start();
    let engine = engine(LLM, connect(&server));
    let facts = Facts::new().with("tenant", "acme").with("max", "100");
    let Ok(passed) = engine.decide_async(&facts).await;
    assert_eq!(passed.decision().remaining, 9_900);
    assert!(!passed.is_near_limit());
    let facts = Facts::new().with("tenant", "acme").with("max", "9950");
    let Ok(refused) = engine.decide_async(&facts).await;
    assert_eq!(
        (refused.denied().is_some(), refused.decision().remaining),
        (true, 9_900)
    );
}

#[tokio::test]
async fn what_a_node_holds_of_a_key_is_one_record_however_many_requests_hold_some() {
    let server = Server::start();
    let engine = engine(LLM, connect(&server));
    let mut held = Vec::new();
    for _ in 0..50 {
        held.push(ask(&engine, 100).await.expect("room"));
    }
    let [key] = &keys(&server)[..] else {
        panic!("one key: {:?}", keys(&server));
    };
    let bytes = server.command(&["STRLEN", key]).integer().unwrap();
    assert_eq!(bytes, 24 + 40, "the level and one holder");
    drop(held);
    until_left(&engine, 5_000).await;
}

#[tokio::test]
async fn what_is_held_for_longer_than_a_lease_lives_still_comes_back() {
    let server = Server::start();
    let redis = Redis::builder(&server.url()).unwrap();
    let redis = redis.timeout(Duration::from_secs(5)).node_count(1);
    let redis = redis
        .lease_duration(Duration::from_millis(200))
        .build()
        .unwrap();
    let engine = engine(LLM, redis);
    let mut permits = ask(&engine, 4_000).await.expect("room");
    let [key] = &keys(&server)[..] else {
        panic!("one key: {:?}", keys(&server));
    };
    // Renewed, again and again.
    let (mut seen, mut renewals) = (server.command(&["GET", key]), 0);
    eventually("renewals", async || {
        let now = server.command(&["GET", key]);
        renewals += i32::from(now != seen);
        seen = now;
        renewals >= 6
    })
    .await;
    permits.settle(1_500);
    until_left(&engine, 8_500).await;
}

#[tokio::test]
async fn what_comes_back_of_a_key_beyond_the_most_that_are_kept_is_others_again() {
    let server = Server::start();
    for text in [LLM, &LLM.replace("/h", "/h, counting: leased")] {
        server.command(&["FLUSHALL"]);
        let redis = Redis::builder(&server.url()).unwrap().max_leased_keys(0);
        let redis = redis.timeout(Duration::from_secs(5)).node_count(1).build();
        let one = engine(text, redis.unwrap());
        let other = engine(text, connect(&server));
        ask(&one, 4_000).await.expect("room").settle(1_500);
        until_left(&other, 8_500).await;
        ask(&one, 100).await.expect("room").settle(600);
        until_left(&other, 7_900).await;
    }
}

#[tokio::test]
async fn all_or_none_and_nothing_stays_held_of_what_was_refused() {
    let server = Server::start();
    let text = "limits:\n\
         - {name: tokens, key: tenant, rate: 10000/h, cost: {fact: max, settle_within: 60s}}\n\
         - {name: budget, key: tenant, quota: 5000/month, cost: {fact: max, settle_within: 60s}}\n\
         - {name: calls, key: tenant, rate: 2/h}";
    let engine = engine(text, connect(&server));
    let tokens = Facts::new().with("tenant", "acme").with("max", "4999");
    let Ok(refused) = engine.peek_async(&tokens).await;
    assert!(refused.decision().is_allowed());
    assert!(ask(&engine, 5_001).await.is_none(), "above the budget");
    for _ in 0..2 {
        ask(&engine, 2_000).await.expect("room").settle(0);
    }
    assert!(ask(&engine, 1).await.is_none(), "two calls");
    // Nothing is held of any of them.
    let engine = self::engine(&text.replace("2/h", "9/h"), connect(&server));
    eventually("all of the budget", async || {
        let most = Facts::new().with("tenant", "acme").with("max", "5000");
        let Ok(findings) = engine.peek_async(&most).await;
        findings.decision().is_allowed()
    })
    .await;
}

#[tokio::test]
async fn requests_wait_for_their_turn_by_a_store_too() {
    let server = Server::start();
    let text = "limits: [{name: mails, rate: 50/s burst 1, over: wait 20s}]";
    let (one, other) = (
        engine(text, connect(&server)),
        engine(text, connect(&server)),
    );
    let facts = Facts::new();
    let asking = (0..20).map(|number| [&one, &other][number % 2].decide_async(&facts));
    let passed = futures_util::future::join_all(asking).await;
    for verdict in passed {
        let Ok(verdict) = verdict;
        assert!(verdict.allowed().is_some());
    }
    assert_eq!((one.waiter_count(), other.waiter_count()), (0, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_said_late_of_a_full_limit_is_charged_after_its_estimate_came_back() {
    let server = Server::start();
    for text in every_way() {
        let text = text.replace("60s", "1ms, unsettled: refund");
        server.command(&["FLUSHALL"]);
        let engine = engine(&text, connect(&server));
        let mut late = ask(&engine, 5_000).await.expect("there is room");
        let mut other = ask(&engine, 5_000).await.expect("there is room");
        // By a worker of the runtime, as a request is.
        let settled = tokio::spawn(async move { other.settle(5_000) });
        settled.await.expect("it ends");
        let is_over = async || late.time_left() == Some(Duration::ZERO);
        eventually("its time to be over", is_over).await;
        until_left(&engine, 0).await;
        let settled = tokio::spawn(async move { late.settle(4_000) });
        assert_eq!(settled.await.expect("it ends"), SettlementTiming::Late);
        let what = format!("1000 to be left of {text}");
        eventually(&what, async || left(&engine).await == 1_000).await;
    }
}
