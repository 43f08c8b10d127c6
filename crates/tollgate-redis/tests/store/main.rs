//! The contents of the store: names, expiries and sizes of keys, and changes of limits. Decisions equal those in
//! memory, and the observed answers of a peer's scripts.

mod alike;
mod before;
mod changing;
#[path = "../common/mod.rs"]
mod common;
mod descriptors;
mod estimates;
mod forgiven;
mod limiter;
mod names;
mod orders;
mod redis_rate;
mod resets;
mod slots;

use std::time::Duration;

use tollgate::quota::Quota;
use tollgate::{Algorithm, Rate, core::WindowAlignment};
use tollgate_engine::backend::LimitKind;
use tollgate_engine::document::Format;
use tollgate_engine::{Engine, Facts, Policy};
use tollgate_redis::Redis;
use tollgate_testkit::redis::Server;

fn connect(server: &Server) -> Redis {
    let builder = Redis::builder(&server.url()).expect("a server's own URL");
    let builder = builder.timeout(Duration::from_secs(5));
    builder.node_count(1).build().expect("a runtime")
}

fn keys(server: &Server) -> Vec<String> {
    let keys = server.command(&["KEYS", "*"]);
    let mut keys: Vec<_> = (keys.items().iter()).filter_map(|key| key.text()).collect();
    keys.sort();
    keys
}

const ALGORITHMS: [Algorithm; 7] = [
    Algorithm::Gcra,
    Algorithm::TokenBucket,
    Algorithm::LeakyBucket,
    Algorithm::FixedWindow(WindowAlignment::FirstHit),
    Algorithm::FixedWindow(WindowAlignment::Boundary(tollgate::Timestamp::ZERO)),
    Algorithm::SlidingLog,
    Algorithm::SlidingCounter,
];

#[tokio::test]
async fn a_key_lives_until_it_is_idle_and_not_much_longer() {
    let server = Server::start();
    let redis = connect(&server);
    for algorithm in ALGORITHMS {
        server.command(&["FLUSHALL"]);
        let limiter = redis.limiter("life", Rate::per_minute(10));
        let limiter = limiter.algorithm(algorithm).build().unwrap();
        for cost in [1, 3, 6] {
            let decision = limiter.check_n("k", cost).await.decision;
            assert!(decision.is_allowed(), "{algorithm:?}");
            let [key] = &keys(&server)[..] else {
                panic!("one key: {:?}", keys(&server));
            };
            let left = server.command(&["PTTL", key]).integer().unwrap();
            let left = Duration::from_millis(u64::try_from(left).expect("it expires"));
            // It was asked a moment later.
            let asked_later = Duration::from_millis(500);
            assert!(
                left + asked_later >= decision.reset_after,
                "{algorithm:?}: {left:?}"
            );
            let second = Duration::from_secs(1);
            assert!(
                left <= decision.reset_after + second,
                "{algorithm:?}: {left:?}"
            );
        }
    }
}

#[tokio::test]
async fn a_refusal_writes_nothing() {
    let server = Server::start();
    let builder = Redis::builder(&server.url()).unwrap().deny_cache(0);
    let redis = builder
        .timeout(Duration::from_secs(5))
        .node_count(1)
        .build()
        .unwrap();
    for algorithm in ALGORITHMS {
        let limiter = redis.limiter("writes", Rate::per_hour(5));
        let limiter = limiter.algorithm(algorithm).build().unwrap();
        assert!(limiter.check_n("k", 4).await.allowed().is_some());
        let changes = || server.info("persistence", "rdb_changes_since_last_save");
        let before = changes();
        for cost in [2, 5, 6, 0] {
            let _ = limiter.check_n("k", cost).await;
        }
        assert_eq!(changes(), before, "{algorithm:?}");
        assert!(limiter.check("k").await.allowed().is_some());
        assert_ne!(changes(), before, "{algorithm:?}");
    }
}

#[tokio::test]
async fn a_log_keeps_no_more_than_its_count() {
    let server = Server::start();
    let redis = connect(&server);
    let limiter = redis.limiter("log", Rate::per_hour(20));
    let limiter = limiter.algorithm(Algorithm::SlidingLog).build().unwrap();
    let checks = (0..100).map(|_| limiter.check("k"));
    let answers = futures_util::future::join_all(checks).await;
    assert_eq!(
        answers
            .iter()
            .filter(|answer| answer.denied().is_none())
            .count(),
        20
    );
    let [key] = &keys(&server)[..] else {
        panic!("one key");
    };
    let entries = server.command(&["ZCARD", key]).integer().unwrap();
    assert!(entries <= 20, "{entries}");
}

#[tokio::test]
async fn what_is_spent_counts_under_another_rate_and_burst() {
    let server = Server::start();
    let redis = connect(&server);
    for algorithm in [
        Algorithm::Gcra,
        Algorithm::TokenBucket,
        Algorithm::SlidingLog,
        Algorithm::SlidingCounter,
        Algorithm::FixedWindow(WindowAlignment::FirstHit),
    ] {
        let name = format!("{algorithm:?}");
        let limiter = |count| {
            let limiter = redis.limiter(&name, Rate::per_hour(count));
            limiter.algorithm(algorithm).build().unwrap()
        };
        assert!(limiter(10).check_n("k", 6).await.allowed().is_some());
        let left = limiter(100).check("k").await.decision.remaining;
        // What drains meanwhile is less than one.
        assert_eq!(left, 93, "{name}");
        let left = limiter(8).check("k").await.decision.remaining;
        assert_eq!(left, 0, "{name}");
    }
}

#[tokio::test]
async fn keys_tell_what_they_are_and_a_tenants_are_together() {
    let server = Server::start();
    let text = "
limits:
- {name: per-tenant, key: tenant, rate: 100/h}
- {name: per-user, key: [user, tenant], hash_tag: tenant, rate: 10/h}
- {name: all, rate: 1000/h}
";
    let policy = Policy::from_text(text, Format::Yaml)
        .expect("a policy")
        .policy;
    let engine = Engine::new(policy, connect(&server)).unwrap();
    let facts = Facts::new().with("tenant", "acme:{1}").with("user", "ada");
    for _ in 0..3 {
        let before = server.command_calls("evalsha") + server.command_calls("eval");
        assert!(
            engine
                .decide_async(&facts)
                .await
                .unwrap()
                .allowed()
                .is_some()
        );
        let after = server.command_calls("evalsha") + server.command_calls("eval");
        // The first may have to send the script.
        assert!(after - before <= 2, "one call for three limits");
    }
    assert_eq!(engine.backend().stats().round_trips, 3);
    let named: Vec<_> = keys(&server)
        .into_iter()
        .map(|key| {
            let mut parts: Vec<_> = key.splitn(4, ':').map(str::to_owned).collect();
            assert_eq!(
                (parts[0].as_str(), parts[1].as_str()),
                ("tollgate", "2"),
                "{key}"
            );
            assert_eq!(parts[2].len(), 8, "{key}");
            parts.swap_remove(3)
        })
        .collect();
    assert_eq!(
        named,
        [
            "{rule/all:0}:rule/all:0",
            "{tenant=acme%3A%7B1%7D}:rule/per-tenant:0",
            "{tenant=acme%3A%7B1%7D}:rule/per-user:0:user=ada",
        ]
    );
}

#[tokio::test]
async fn many_questions_at_once_share_calls() {
    let server = Server::start();
    let redis = connect(&server);
    let limiter = redis
        .limiter("merged", Rate::per_hour(1_000))
        .build()
        .unwrap();
    let names: Vec<_> = (0..500).map(|number| format!("k{number}")).collect();
    let checks = names.iter().map(|name| limiter.check(name));
    let answers = futures_util::future::join_all(checks).await;
    assert!(answers.iter().all(|answer| answer.denied().is_none()));
    let stats = redis.stats();
    assert_eq!(stats.queries, 500);
    assert!(stats.round_trips <= 20, "{stats:?}");
}

#[tokio::test]
async fn slots_and_quotas_leave_nothing_behind() {
    let server = Server::start();
    let builder = Redis::builder(&server.url()).unwrap().node_count(1);
    let life = Duration::from_millis(200);
    let redis = builder
        .timeout(Duration::from_secs(5))
        .permit_ttl(life)
        .build()
        .unwrap();
    let slots = redis
        .limiter_with_kind("s", LimitKind::Concurrency(3))
        .build()
        .unwrap();
    let quota = LimitKind::Quota(Quota::rolling(5, Duration::from_millis(100)).expect("a period"));
    let quota = redis.limiter_with_kind("q", quota).build().unwrap();
    let held = slots.check("k").await;
    assert!(held.denied().is_none() && quota.check("k").await.allowed().is_some());
    assert_eq!(keys(&server).len(), 2);
    std::mem::forget(held);
    drop((slots, quota, redis));
    let deadline = Duration::from_secs(5);
    tollgate_testkit::redis::wait_until(deadline, "all keys are gone", || keys(&server).is_empty());
}

#[tokio::test]
async fn a_failover_to_a_slower_clock_blocks_nobody_for_long() {
    let server = Server::start();
    let redis = connect(&server);
    let ahead = tollgate::Timestamp::from_secs(1_717_243_200);
    let behind = tollgate::Timestamp::from_secs(1_717_243_200 - 3_600);
    for algorithm in ALGORITHMS {
        let limiter = redis.limiter("clocks", Rate::per_minute(10));
        let limiter = limiter.algorithm(algorithm).build().unwrap();
        let spent = limiter.check_at(ahead, "k", 10).await.unwrap();
        assert!(spent.is_allowed(), "{algorithm:?}");
        // The clock of the new master is an hour behind: nothing extra, and a minute's wait at most.
        let refused = limiter.check_at(behind, "k", 1).await.unwrap();
        assert!(!refused.is_allowed(), "{algorithm:?}");
        let minutes = Duration::from_secs(2 * 60);
        assert!(
            refused.wait_or_max() <= minutes,
            "{algorithm:?}: {refused:?}"
        );
        let later = behind + refused.wait_or_max();
        let passed = limiter.check_at(later, "k", 1).await.unwrap();
        assert!(passed.is_allowed(), "{algorithm:?}: {passed:?}");
    }
}

#[tokio::test]
async fn leased_limiters_of_one_name_are_two_holders() {
    let server = Server::start();
    let redis = connect(&server);
    let hot = || redis.limiter("hot", Rate::per_second(1_000)).leased();
    let (one, other) = (hot().build().unwrap(), hot().build().unwrap());
    assert!(one.check("k").await.allowed().is_some() && other.check("k").await.allowed().is_some());
    let [key] = &keys(&server)[..] else {
        panic!("one key: {:?}", keys(&server));
    };
    // The level, and two that hold something of it: neither overwrites what the other said.
    let length = server.command(&["STRLEN", key]).integer();
    assert_eq!(length, Some(24 + 2 * 40));
}

#[tokio::test]
async fn a_policy_that_the_store_cannot_keep_is_not_put_in_force() {
    let server = Server::start();
    let read = |text: &str| {
        Policy::from_text(text, Format::Yaml)
            .expect("a policy")
            .policy
    };
    let large = "limits: [{name: visits, rate: 1000000/day, algorithm: sliding-window}]";
    let error = Engine::new(read(large), connect(&server)).unwrap_err();
    let told = error.to_string();
    assert!(told.starts_with("\"visits\": "), "{told}");
    assert!(told.ends_with("use a shorter window, or GCRA"), "{told}");
    let small = "limits: [{name: visits, rate: 1000/day}]";
    let engine = Engine::new(read(small), connect(&server)).unwrap();
    assert!(engine.reload(read(large)).is_err());
    let facts = Facts::new();
    assert_eq!(
        engine.decide_async(&facts).await.unwrap().decision().limit,
        1000
    );
}
