//! Operations that send nothing to the store, and answers while there is none.

use crate::common::{LIMIT, PATIENT, TIMEOUT, connect, eventually};
use tollgate::quota::Quota;
use tollgate::{Algorithm, Outcome, Rate};
use tollgate_engine::backend::{LimitKind, Memory};
use tollgate_engine::document::Format;
use tollgate_engine::policy::OnStoreFailure;
use tollgate_engine::verdict::Cause;
use tollgate_engine::{Engine, Facts, Policy};
use tollgate_redis::{BreakerThresholds, Redis};
use tollgate_testkit::redis::Server;

fn policy(text: &str) -> Policy {
    Policy::from_text(text, Format::Yaml)
        .expect("a policy")
        .policy
}

#[tokio::test]
async fn what_a_local_limit_refuses_sends_nothing() {
    let server = Server::start();
    let local = policy("limits: [{name: local, key: user, rate: 3/h}]");
    let local = Engine::new(local, Memory::new()).unwrap();
    let shared = policy("limits: [{name: shared, key: user, rate: 1000/h}]");
    let shared = Engine::new(shared, connect(&server.url())).unwrap();
    let facts = Facts::new().with("user", "ada");
    let mut before = 0;
    for number in 0..100 {
        if number == 3 {
            before = server.commands_processed();
        }
        let here = local.decide(&facts);
        assert_eq!(here.denied().is_none(), number < 3);
        if here.denied().is_none() {
            assert!(
                shared
                    .decide_async(&facts)
                    .await
                    .unwrap()
                    .allowed()
                    .is_some()
            );
        }
    }
    assert!(before > 0);
    assert_eq!(server.commands_processed(), before);
    assert_eq!(shared.backend().stats().queries, 3);
}

#[tokio::test]
async fn what_the_policy_alone_decides_sends_nothing() {
    let server = Server::start();
    let policy = policy(
        "{exempt: [{path: /healthz}], block: [{user: mallory}], limits: [
         {name: other, match: {path: /none}, key: user, rate: 1000/h},
         {name: none, match: {path: /none}, key: user, rate: zero},
         {name: some, match: {path: /api}, key: user, rate: 1000/h}]}",
    );
    let engine = Engine::new(policy, connect(&server.url())).unwrap();
    let facts =
        |user: &'static str, path: &'static str| Facts::new().with("user", user).with("path", path);
    assert!(
        engine
            .decide_async(&facts("ada", "/api"))
            .await
            .unwrap()
            .denied()
            .is_none()
    );
    let before = server.commands_processed();
    for (user, path, allowed) in [
        ("ada", "/healthz", true),
        ("mallory", "/api", false),
        ("ada", "/elsewhere", true),
        // One limit that never passes is enough: the other isn't asked.
        ("ada", "/none", false),
    ] {
        for _ in 0..10 {
            let facts = facts(user, path);
            let verdict = engine.decide_async(&facts).await.unwrap();
            assert_eq!(verdict.denied().is_none(), allowed, "{user} {path}");
        }
    }
    assert_eq!(server.commands_processed(), before);
    assert_eq!(engine.backend().stats().round_trips, 1);
}

#[tokio::test]
async fn a_refusal_that_is_known_sends_nothing_for_any_limit_of_a_request() {
    let server = Server::start();
    let policy = policy(
        "limits:
         - {name: wide, key: tenant, rate: 1000/h}
         - {name: narrow, key: user, rate: 2/h, algorithm: token-bucket}",
    );
    let engine = Engine::new(policy, connect(&server.url())).unwrap();
    let facts = Facts::new().with("tenant", "acme").with("user", "ada");
    for number in 0..3 {
        assert_eq!(
            engine
                .decide_async(&facts)
                .await
                .unwrap()
                .allowed()
                .is_some(),
            number < 2
        );
    }
    let before = server.commands_processed();
    for _ in 0..50 {
        let verdict = engine.decide_async(&facts).await.unwrap();
        assert_eq!(
            (verdict.denied().is_none(), verdict.cause()),
            (false, Cause::Rule("narrow"))
        );
        assert!(!verdict.decision().wait_or_max().is_zero());
    }
    assert_eq!(server.commands_processed(), before);
    assert_eq!(engine.backend().stats().repeated_denials, 50);
    // Another user of the same tenant is asked about, and the tenant was charged for what passed alone.
    let other = Facts::new().with("tenant", "acme").with("user", "grace");
    assert!(
        engine
            .decide_async(&other)
            .await
            .unwrap()
            .allowed()
            .is_some()
    );
    let wide = Facts::new().with("tenant", "acme");
    assert_eq!(
        engine
            .decide_async(&wide)
            .await
            .unwrap()
            .decision()
            .remaining,
        1000 - 4
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn known_refusals_dont_hide_that_the_store_is_away() {
    let server = Server::start();
    const ERRORS: u32 = 5;
    let breaker = BreakerThresholds {
        min_calls: ERRORS,
        ..BreakerThresholds::default()
    };
    let builder = Redis::builder(&server.url()).unwrap().timeout(TIMEOUT);
    let redis = builder.breaker(breaker).node_count(1).build().unwrap();
    let limiter = |name: &str, failure| {
        let limiter = redis.limiter(name, Rate::per_hour(LIMIT));
        limiter.on_store_failure(failure).build().unwrap()
    };
    let known = limiter("known", OnStoreFailure::Closed);
    let breaks = limiter("breaks", OnStoreFailure::CircuitBreak);
    eventually("the store", async || {
        breaks.check_n("k", 0).await.fallback.is_none()
    })
    .await;
    eventually("a refusal", async || {
        let answer = known.check_n("k", LIMIT).await;
        answer.denied().is_some() && answer.fallback.is_none()
    })
    .await;
    server.kill();
    eventually("a failure", async || {
        breaks.check("k").await.fallback.is_some()
    })
    .await;
    for _ in 0..ERRORS {
        let answer = known.check_n("k", LIMIT).await;
        // It still holds, and says nothing about the store.
        assert_eq!((answer.denied().is_none(), answer.fallback), (false, None));
        assert!(redis.is_fallback_active());
        let _ = breaks.check("k").await;
    }
    let stats = redis.stats();
    assert_eq!(stats.fallback.trips, 1, "{stats:?}");
    assert!(stats.repeated_denials >= u64::from(ERRORS));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_verdict_says_that_there_was_no_store() {
    let server = Server::start();
    let policy = policy(
        "limits:
         - {name: login, match: {path: /login}, key: user, rate: 1/h, on_store_failure: closed}
         - {name: read, match: {path: /read}, key: user, rate: 8/h, on_store_failure: open}
         - {name: write, match: {path: /write}, key: user, rate: 8/h, on_store_failure: local}
         - {name: paid, match: {path: /paid}, key: user, quota: 1/day}",
    );
    let builder = Redis::builder(&server.url()).unwrap().timeout(TIMEOUT);
    let engine = Engine::new(policy, builder.node_count(4).build().unwrap()).unwrap();
    let at = |path: &'static str| Facts::new().with("user", "ada").with("path", path);
    let (login, read, write, paid) = (at("/login"), at("/read"), at("/write"), at("/paid"));
    eventually("the store", async || {
        let verdict = engine.decide_async(&login).await.unwrap();
        verdict.fallback().is_none()
            && verdict.cause() == Cause::Rule("login")
            && verdict.denied().is_some()
    })
    .await;
    server.kill();
    eventually("a failure", async || {
        engine.decide_async(&read).await.unwrap().fallback() == Some(OnStoreFailure::Open)
    })
    .await;
    for facts in [&at("/login").with("user", "grace"), &paid] {
        let verdict = engine.decide_async(facts).await.unwrap();
        assert!(verdict.denied().is_some());
        assert_eq!(verdict.fallback(), Some(OnStoreFailure::Closed));
        assert!(
            matches!(verdict.cause(), Cause::StoreFailure(_)),
            "{:?}",
            verdict.cause()
        );
    }
    // A limit that is judged here refuses as a limit does.
    let mut allowed = 0;
    for _ in 0..LIMIT {
        let verdict = engine.decide_async(&write).await.unwrap();
        assert_eq!(verdict.fallback(), Some(OnStoreFailure::Local));
        assert_eq!(verdict.cause(), Cause::Rule("write"));
        allowed += u64::from(verdict.denied().is_none());
    }
    assert_eq!(allowed, LIMIT / 2);
    server.restart_empty();
    for facts in [&read, &write, &paid] {
        eventually("the store again", async || {
            engine
                .decide_async(facts)
                .await
                .unwrap()
                .fallback()
                .is_none()
        })
        .await;
    }
    assert!(!engine.backend().is_fallback_active());
}

#[tokio::test]
async fn another_version_algorithm_or_period_is_another_key() {
    let server = Server::start();
    let redis = || {
        let builder = Redis::builder(&server.url()).unwrap().timeout(PATIENT);
        builder.deny_cache(0).node_count(1).build().unwrap()
    };
    let rate = |rate, algorithm| LimitKind::Rate { rate, algorithm };
    let gcra = Algorithm::Gcra;
    // As many processes, each with its own idea of the same name.
    let kinds = [
        rate(Rate::per_day(LIMIT), gcra),
        rate(Rate::per_hour(LIMIT), gcra),
        rate(Rate::per_day(LIMIT), Algorithm::TokenBucket),
        rate(Rate::per_day(LIMIT), Algorithm::LeakyBucket),
        rate(Rate::per_day(LIMIT), Algorithm::SlidingLog),
        rate(Rate::per_day(LIMIT), Algorithm::SlidingCounter),
        rate(
            Rate::per_day(LIMIT),
            Algorithm::FixedWindow(Default::default()),
        ),
        LimitKind::Quota(Quota::per_day(LIMIT)),
        LimitKind::Quota(Quota::per_month(LIMIT)),
    ];
    let limiters: Vec<_> = kinds
        .iter()
        .map(|kind| {
            redis()
                .limiter_with_kind("same", kind.clone())
                .build()
                .unwrap()
        })
        .collect();
    let leased = redis()
        .limiter("same", Rate::per_day(LIMIT))
        .leased()
        .build()
        .unwrap();
    for round in 0..LIMIT + 2 {
        for (limiter, kind) in limiters.iter().zip(&kinds) {
            let answer = limiter.check("k").await;
            assert_eq!(answer.denied().is_none(), round < LIMIT, "{kind:?}");
        }
        assert_eq!(leased.check("k").await.allowed().is_some(), round < LIMIT);
    }

    // A newer process has written under the same names, but for the version.
    let keys = server.command(&["KEYS", "*"]);
    let keys: Vec<_> = keys.items().iter().map(|key| key.text().unwrap()).collect();
    assert_eq!(keys.len(), kinds.len() + 1);
    let mut newer = Vec::new();
    for key in &keys {
        assert!(key.starts_with("tollgate:2:"), "{key}");
        let other = key.replacen("tollgate:2:", "tollgate:3:", 1);
        server.command(&["RENAME", key, &other]);
        newer.push((server.command(&["DUMP", &other]), other));
    }
    server.command(&["SET", "tollgate:3:something", "else"]);
    let again = redis();
    for kind in &kinds {
        let limiter = again
            .limiter_with_kind("same", kind.clone())
            .build()
            .unwrap();
        let answer = limiter.check_n("k", LIMIT).await;
        assert_eq!(
            (answer.denied().is_none(), answer.fallback),
            (true, None),
            "{kind:?}"
        );
        assert_eq!(answer.decision.outcome, Outcome::Allowed);
        assert!(limiter.check("k").await.denied().is_some(), "{kind:?}");
    }
    assert_eq!(again.stats().foreign_keys, 0);
    // And its keys are as it left them.
    for (value, key) in newer {
        assert_eq!(server.command(&["DUMP", &key]), value);
    }
    assert_eq!(server.command(&["GET", "tollgate:3:something"]), "else");
}

#[tokio::test]
async fn nodes_learn_how_many_they_are_and_can_be_told_otherwise() {
    let server = Server::start();
    let connect = || Redis::connect(&server.url()).unwrap();
    let counts = async |nodes: &[&Redis], expect: u64| {
        let all = || nodes.iter().all(|node| node.stats().nodes == expect);
        eventually("the count", async || all()).await;
    };
    let first = connect();
    counts(&[&first], 1).await;
    let second = connect();
    counts(&[&second], 2).await;
    let third = connect();
    // Who comes last knows at once, and the others with their next sign of life.
    counts(&[&third], 3).await;
    first.set_node_count(12);
    assert_eq!(first.stats().nodes, 12);
    let told = Redis::builder(&server.url())
        .unwrap()
        .node_count(7)
        .build()
        .unwrap();
    assert_eq!(told.stats().nodes, 7);
    // All that is kept of it ends by itself.
    let key = "tollgate:2:nodes";
    assert_eq!(server.command(&["ZCARD", key]).integer(), Some(3));
    let left = server.command(&["PTTL", key]).integer().unwrap();
    assert!((1..=16_100).contains(&left), "{left}");
}

#[tokio::test]
async fn what_a_rule_that_is_counted_here_refuses_sends_nothing() {
    let server = Server::start();
    let policy = policy(
        "limits:
         - {name: address, key: ip, rate: 2/h, counting: local}
         - {name: user, key: user, rate: 1/h, counting: local}
         - {name: tenant, key: tenant, rate: 1000/h}
         - {name: slots, key: tenant, concurrency: 9}",
    );
    let engine = Engine::new(policy, connect(&server.url())).unwrap();
    let who = |ip, user| {
        Facts::new()
            .with("ip", ip)
            .with("user", user)
            .with("tenant", "acme")
    };
    let (ann, bob) = (who("192.0.2.1", "ann"), who("192.0.2.1", "bob"));
    for facts in [&ann, &bob] {
        assert!(
            engine
                .decide_async(facts)
                .await
                .unwrap()
                .allowed()
                .is_some()
        );
    }
    let before = server.commands_processed();
    for facts in [
        &ann,
        &bob,
        &who("192.0.2.2", "ann"),
        &who("192.0.2.1", "eve"),
    ] {
        let verdict = engine.decide_async(facts).await.unwrap();
        assert_eq!(
            (verdict.denied().is_none(), verdict.fallback()),
            (false, None)
        );
    }
    assert_eq!(server.commands_processed(), before);
    // Nor were those charged that the store keeps, nor is a slot held there.
    let other = who("192.0.2.3", "eve");
    let verdict = engine.decide_async(&other).await.unwrap();
    assert!(verdict.denied().is_none());
    assert_eq!(engine.backend().stats().permits, 1);
    drop(verdict);
    let tenant = Facts::new().with("tenant", "acme");
    let verdict = engine.decide_async(&tenant).await.unwrap();
    assert!(
        verdict.decision().remaining <= 9,
        "{:?}",
        verdict.decision()
    );
}
