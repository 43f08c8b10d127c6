//! A store that fails and recovers on command, under each failure policy.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tollgate::clock::Manual;
use tollgate::{Decision, Rate};
use tollgate_engine::backend::LimitKind;
use tollgate_engine::document::Format;
use tollgate_engine::policy::OnStoreFailure;
use tollgate_engine::verdict::AllowedRequest;
use tollgate_engine::{DecideOptions, Engine, Facts, Policy};
use tollgate_redis::{FailureKind, Fault, Redis, RedisStats};
use tollgate_testkit::redis::Server;

use crate::common::{DEADLINE, LIMIT, PATIENT, POLICIES};

/// A store that is stopped, by each policy: the decisions without it.
async fn without(
    redis: &Redis,
) -> Vec<(
    OnStoreFailure,
    Vec<(bool, Option<OnStoreFailure>, Decision)>,
)> {
    let mut told = Vec::new();
    for policy in POLICIES {
        let limiter = redis.limiter(&format!("{policy:?}"), Rate::per_day(LIMIT));
        let limiter = limiter.on_store_failure(policy).build().expect("a limit");
        let mut answers = Vec::new();
        for cost in [1, 2, 3, 1, 0, 100] {
            let answer = limiter.check_n("k", cost).await;
            let decision = Decision::new(
                answer.decision.outcome,
                answer.decision.limit,
                answer.decision.remaining,
                // What time does to it.
                Duration::ZERO,
                Duration::ZERO,
            );
            answers.push((answer.denied().is_none(), answer.fallback, decision));
        }
        told.push((policy, answers));
    }
    told
}

#[tokio::test]
async fn what_a_store_that_is_down_leaves_to_each_policy_is_the_same_without_one() {
    let server = Server::start();
    let chosen = |url: &str| Redis::builder(url).unwrap().node_count(4).timeout(PATIENT);
    let store = chosen(&server.url()).build().unwrap();
    store.ready(DEADLINE).await.unwrap();
    server.kill();
    let killed = without(&store).await;
    let memory = chosen("redis://any").in_memory(Manual::new());
    assert_eq!(memory.ready(DEADLINE).await, Ok(()));
    memory.fake_store().unwrap().inject_fault(Fault::Down);
    assert_eq!(without(&memory).await, killed);
    let [store, memory] = [store, memory].map(|redis| (redis.is_fallback_active(), redis.stats()));
    assert_eq!((memory.0, memory.1.fallback), (store.0, store.1.fallback));
    assert!(memory.0 && memory.1.fallback.errors == 24);
}

#[tokio::test]
async fn each_fault_has_its_kind_and_ends_when_it_is_told_to() {
    let clock = Manual::new();
    let told = Arc::new(Mutex::new(Vec::new()));
    let heard = Arc::clone(&told);
    let builder = Redis::builder("redis://any")
        .unwrap()
        .on_event(move |event| {
            heard.lock().unwrap().push(format!("{event:?}"));
        });
    let redis = builder.timeout(PATIENT).in_memory(clock.clone());
    let store = redis.fake_store().unwrap();
    let limiter = redis.limiter("calls", Rate::per_day(LIMIT));
    let limiter = limiter
        .on_store_failure(OnStoreFailure::Open)
        .build()
        .unwrap();
    for (fault, kind, text) in [
        (
            Fault::Down,
            FailureKind::Refused,
            "the store can't be reached: a test has put it down",
        ),
        (
            Fault::Slow,
            FailureKind::TimedOut,
            "the store gave no answer within 5s",
        ),
        (
            Fault::ReadOnly,
            FailureKind::ReadOnly,
            "the store answered with an error: READONLY a test has made it so",
        ),
    ] {
        let before = redis.stats();
        store.inject_fault(fault);
        for _ in 0..3 {
            let answer = limiter.check("k").await;
            assert_eq!(
                (answer.denied().is_none(), answer.fallback),
                (true, Some(OnStoreFailure::Open))
            );
            clock.advance(Duration::from_secs(1));
        }
        let error = limiter.try_check("k", 1).await.unwrap_err();
        assert_eq!((error.kind(), &*error.to_string()), (kind, text));
        assert_eq!(limiter.refund("k", 0).await, Err(error.clone()));
        assert_eq!(redis.ready(DEADLINE).await, Err(error));
        assert!(redis.is_fallback_active());
        let stats = redis.stats();
        let [.., failure] = &stats.failures[..] else {
            panic!("a failure: {stats:?}");
        };
        let failure = stats
            .failures
            .iter()
            .find(|one| one.kind == kind)
            .unwrap_or(failure);
        assert_eq!(
            (failure.kind, failure.count, &*failure.first_error),
            (kind, 5, text)
        );
        assert_eq!(failure.duration(), Duration::from_secs(3));
        assert_eq!(failure.failing_for, Some(Duration::from_secs(3)));
        // Each is counted once, those without a failure policy too.
        let sum = |stats: &RedisStats| stats.failures.iter().map(|one| one.count).sum::<u64>();
        let errors = stats.fallback.errors - before.fallback.errors;
        assert_eq!((errors, sum(&stats) - sum(&before)), (3, 5));
        store.clear_fault();
        assert!(limiter.check("k").await.fallback.is_none());
        let stats = redis.stats();
        assert!(!redis.is_fallback_active());
        assert!(
            stats
                .failures
                .iter()
                .all(|failure| failure.failing_for.is_none())
        );
    }
    let told = told.lock().unwrap();
    let count = |what: &str| told.iter().filter(|event| event.starts_with(what)).count();
    assert_eq!(
        (count("FallbackStarted"), count("FallbackEnded")),
        (3, 3),
        "{told:?}"
    );
    assert!(
        told.iter()
            .any(|event| event.contains("a test has put it down")),
        "{told:?}"
    );
}

#[tokio::test]
async fn what_a_slow_store_was_asked_is_carried_out() {
    let redis = Redis::in_memory(Manual::new());
    let limiter = redis
        .limiter("calls", Rate::per_day(LIMIT))
        .build()
        .unwrap();
    let store = redis.fake_store().unwrap();
    for (fault, left) in [
        (Fault::Down, LIMIT),
        (Fault::ReadOnly, LIMIT),
        (Fault::Slow, LIMIT - 2),
    ] {
        store.inject_fault(fault);
        assert!(limiter.try_check("k", 2).await.is_err());
        store.clear_fault();
        assert_eq!(
            limiter.peek("k").await.unwrap().remaining,
            left,
            "{fault:?}"
        );
    }
}

#[tokio::test]
async fn a_circuit_breaks_and_closes_by_the_clock_of_the_test() {
    let clock = Manual::new();
    let redis = Redis::in_memory(clock.clone());
    let store = redis.fake_store().unwrap();
    let limiter = redis.limiter("calls", Rate::per_second(1_000));
    let limiter = limiter
        .on_store_failure(OnStoreFailure::CircuitBreak)
        .build()
        .unwrap();
    store.inject_fault(Fault::Slow);
    let mut checks = 0;
    while redis.stats().fallback.trips == 0 {
        let _ = limiter.check("k").await;
        clock.advance(Duration::from_millis(20));
        checks += 1;
        assert!(checks < 10_000, "it doesn't break");
    }
    // It isn't asked any more, though it would answer.
    store.clear_fault();
    let before = redis.stats().queries;
    let answer = limiter.check("k").await;
    assert_eq!(answer.fallback, Some(OnStoreFailure::CircuitBreak));
    assert_eq!(redis.stats().queries, before);
    clock.advance(Duration::from_secs(120));
    assert!(limiter.check("k").await.fallback.is_none());
    assert!(!redis.is_fallback_active());
}

#[tokio::test]
async fn a_store_that_lost_its_memory_starts_full() {
    let redis = Redis::in_memory(Manual::new());
    let limiter = redis.limiter("calls", Rate::per_day(LIMIT));
    let limiter = limiter.build().unwrap();
    let slots = redis.limiter_with_kind("slots", LimitKind::Concurrency(1));
    let slots = slots.build().unwrap();
    for _ in 0..2 {
        assert!(limiter.check_n("k", LIMIT).await.allowed().is_some());
        let held = slots.check("k").await;
        assert!(held.denied().is_none() && slots.check("k").await.denied().is_some());
        // Known by now, and repeated without asking.
        assert!(limiter.check("k").await.denied().is_some());
        let questions = redis.stats().queries;
        assert!(limiter.check("k").await.denied().is_some());
        assert_eq!(redis.stats().queries, questions);
        redis.fake_store().unwrap().clear();
        // The one that holds it doesn't know.
        assert!(slots.check("k").await.allowed().is_some());
    }
}

#[tokio::test]
async fn a_refusal_that_is_known_is_told_while_the_store_is_down() {
    let clock = Manual::new();
    let redis = Redis::in_memory(clock.clone());
    let limiter = redis.limiter("logins", Rate::per_minute(1));
    let limiter = limiter
        .on_store_failure(OnStoreFailure::Closed)
        .build()
        .unwrap();
    assert!(
        limiter.check("k").await.allowed().is_some() && limiter.check("k").await.denied().is_some()
    );
    redis.fake_store().unwrap().inject_fault(Fault::Down);
    let is_told = async || {
        let answer = limiter.check("k").await;
        answer.denied().is_some() && answer.fallback.is_none()
    };
    assert!(is_told().await);
    assert!(!redis.is_fallback_active(), "nothing was asked");
    // A second later the store is asked again, and that it fails is seen. The denial holds all the same.
    clock.advance(Duration::from_secs(1));
    for _ in 0..3 {
        assert!(is_told().await);
        assert!(redis.is_fallback_active());
    }
    assert_eq!(redis.stats().fallback.errors, 1, "once a second");
    clock.advance(Duration::from_secs(59));
    assert_eq!(
        limiter.check("k").await.fallback,
        Some(OnStoreFailure::Closed)
    );
    assert_eq!(redis.stats().repeated_denials, 4);
}

#[tokio::test]
async fn a_denial_that_is_known_asks_nothing_and_holds_without_the_store_where_limits_are_listed() {
    const POLICY: &str = "
limits:
- {name: searches, key: user, rate: 3/h, on_store_failure: local}
- {name: all, rate: 1000/h, on_store_failure: open}
";
    let redis = Redis::in_memory(Manual::new());
    let policy = Policy::from_text(POLICY, Format::Yaml).unwrap().policy;
    let engine = Engine::new(policy, redis.clone()).unwrap();
    let facts = Facts::new().with("user", "ada");
    let is_allowed = async || {
        let on = DecideOptions::new().listing_limits();
        let Ok(verdict) = engine.decide_with_conditions(on, &facts).await;
        verdict.expect("no reload").allowed().is_some()
    };
    for number in 0..4 {
        assert_eq!(is_allowed().await, number < 3);
    }
    let questions = redis.stats().queries;
    assert!(!is_allowed().await);
    assert_eq!(redis.stats().queries, questions, "the store was asked");
    redis.fake_store().unwrap().inject_fault(Fault::Down);
    assert!(!is_allowed().await);
}

#[tokio::test]
async fn estimates_are_held_and_settled_without_the_store_too() {
    const POLICY: &str = "
limits:
- {name: local, match: {path: /local}, rate: 1000/h, cost: {fact: max, settle_within: 60s}}
- {name: open, match: {path: /open}, rate: 1000/h, cost: {fact: max, settle_within: 60s}, on_store_failure: open}
- {name: closed, match: {path: /closed}, quota: 1000/day, cost: {fact: max, settle_within: 60s}}
";
    let redis = Redis::in_memory(Manual::new());
    let policy = Policy::from_text(POLICY, Format::Yaml).unwrap().policy;
    let engine = Engine::new(policy, redis.clone()).unwrap();
    let ask = async |path: &str, max: &str| {
        let facts = Facts::new().with("path", path).with("max", max);
        let Ok(verdict) = engine.decide_async(&facts).await;
        verdict.allowed().map(AllowedRequest::into_permits)
    };
    let left = async |path: &str| {
        let facts = Facts::new().with("path", path).with("max", "0");
        let Ok(findings) = engine.peek_async(&facts).await;
        *findings.decision()
    };
    ask("/local", "400").await.expect("room").settle(100);
    assert_eq!(left("/local").await.remaining, 900);
    redis.fake_store().unwrap().inject_fault(Fault::Down);
    // This node is all of the fleet; what the store had admitted is noted as it was held.
    let mut held = ask("/local", "500").await.expect("room");
    assert!(left("/local").await.remaining <= 400);
    assert!(ask("/local", "500").await.is_none());
    held.settle(0);
    assert!(ask("/local", "500").await.is_some(), "it came back");
    assert!(left("/open").await.is_unlimited());
    assert!(!left("/closed").await.is_allowed());
    ask("/open", "900").await.expect("it is open").settle(100);
    assert!(ask("/closed", "1").await.is_none());
    redis.fake_store().unwrap().clear_fault();
    // What was spent without the store is told to it.
    assert!(ask("/local", "0").await.is_some());
    assert!(left("/local").await.remaining <= 500);
    ask("/closed", "900").await.expect("it is back").settle(100);
    assert_eq!(left("/closed").await.remaining, 900);
}

#[tokio::test]
async fn a_refusal_is_remembered_by_the_client_alone_whatever_the_engine_is_told() {
    let policy = "limits: [{name: all, rate: 1/h}]";
    let policy = Policy::from_text(policy, Format::Yaml).unwrap().policy;
    for (near, repeated, asked) in [(10, 3, 2), (0, 0, 2)] {
        let builder = Redis::builder("redis://any").unwrap().deny_cache(near);
        let redis = builder.in_memory(Manual::new());
        let engine = Engine::new(policy.clone(), redis.clone()).unwrap();
        let engine = engine.with_deny_cache(10);
        let facts = Facts::new();
        for number in 0..5 {
            let Ok(verdict) = engine.decide_async(&facts).await;
            assert_eq!(verdict.allowed().is_some(), number == 0);
        }
        let stats = redis.stats();
        let seen = (stats.repeated_denials, stats.round_trips);
        assert_eq!(seen, (repeated, asked), "{near} remembered by the client");
    }
}
