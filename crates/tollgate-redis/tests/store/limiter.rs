//! One limit in a real store, by every verb.

use std::time::Duration;

use tollgate::quota::Quota;
use tollgate::{Algorithm, Outcome, Rate, Timestamp, core::WindowAlignment};
use tollgate_engine::backend::{Backend, LimitKind, Refund, StandaloneLimit};
use tollgate_redis::{Redis, StoreError};
use tollgate_testkit::redis::{Server, wait_until};

/// Generous: these tests are about answers, not about how soon they come.
const PATIENT: Duration = Duration::from_secs(5);

fn connect(server: &Server) -> Redis {
    let builder = Redis::builder(&server.url()).expect("a server's own URL");
    builder
        .timeout(PATIENT)
        .node_count(1)
        .build()
        .expect("a runtime")
}

#[tokio::test]
async fn a_limit_holds_across_connections() {
    let server = Server::start();
    let (one, other) = (connect(&server), connect(&server));
    let limit = |redis: &Redis| redis.limiter("logins", Rate::per_hour(5)).build().unwrap();
    let (one, other) = (limit(&one), limit(&other));
    let mut allowed = 0;
    for _ in 0..5 {
        allowed += u32::from(one.check("ada").await.allowed().is_some());
        allowed += u32::from(other.check("ada").await.allowed().is_some());
    }
    assert_eq!(allowed, 5);
    let refused = one.check("ada").await;
    assert_eq!(refused.decision.outcome, Outcome::Denied);
    assert_eq!(refused.fallback, None);
    let wait = refused.decision.wait_or_max();
    assert!(wait > Duration::from_secs(700) && wait <= Duration::from_secs(720));
    assert!(one.check("grace").await.allowed().is_some());
}

#[tokio::test]
async fn every_algorithm_admits_its_count() {
    let server = Server::start();
    let redis = connect(&server);
    for algorithm in [
        Algorithm::Gcra,
        Algorithm::TokenBucket,
        Algorithm::LeakyBucket,
        Algorithm::FixedWindow(WindowAlignment::default()),
        Algorithm::FixedWindow(WindowAlignment::FirstHit),
        Algorithm::SlidingLog,
        Algorithm::SlidingCounter,
    ] {
        let limiter = redis.limiter("all", Rate::per_day(7)).algorithm(algorithm);
        let limiter = limiter.build().unwrap();
        let mut allowed = 0;
        for _ in 0..10 {
            allowed += u32::from(limiter.check("k").await.allowed().is_some());
        }
        assert_eq!(allowed, 7, "{algorithm:?}");
        assert_eq!(limiter.peek("k").await.unwrap().remaining, 0);
        limiter.refund("k", 3).await.unwrap();
        assert_eq!(limiter.peek("k").await.unwrap().remaining, 3);
        assert_eq!(limiter.allow_at_most("k", 5).await.unwrap(), 3);
        assert_eq!(limiter.allow_at_most("k", 5).await.unwrap(), 0);
        limiter.reset("k").await.unwrap();
        assert_eq!(
            limiter.peek("k").await.unwrap().remaining,
            7,
            "{algorithm:?}"
        );
        let above = limiter.check_n("k", 8).await;
        assert_eq!(above.decision.outcome, Outcome::Never);
    }
}

#[tokio::test]
async fn quotas_count_by_the_calendar_and_by_parts() {
    let server = Server::start();
    let redis = connect(&server);
    let at = |secs: u64| Timestamp::from_secs(1_717_243_200 + secs); // 1 June 2024, noon
    for (quota, later) in [
        (Quota::per_day(100), 12 * 3_600),
        (
            Quota::rolling(100, Duration::from_secs(86_400)).expect("a period"),
            86_400 + 1_440,
        ),
    ] {
        let limiter = redis.limiter_with_kind("quota", LimitKind::Quota(quota.clone()));
        let limiter = limiter.build().unwrap();
        let spent = limiter.check_at(at(0), "t", 60).await.unwrap();
        assert_eq!(spent.remaining, 40, "{quota}");
        let refused = limiter.check_at(at(1), "t", 50).await.unwrap();
        assert_eq!(refused.outcome, Outcome::Denied, "{quota}");
        let wait = refused.wait_or_max().as_secs();
        assert!(wait <= later && wait + 1_441 > later, "{quota}: {wait}");
        let again = limiter
            .check_at(at(1) + refused.wait_or_max(), "t", 50)
            .await;
        assert!(again.unwrap().is_allowed(), "{quota}");
        assert_eq!(
            limiter.check_at(at(2), "t", 101).await.unwrap().outcome,
            Outcome::Never
        );
    }
    // By the store's own clock.
    let limiter = redis.limiter_with_kind("now", LimitKind::Quota(Quota::per_month(3)));
    let limiter = limiter.build().unwrap();
    let mut allowed = 0;
    for _ in 0..5 {
        allowed += u32::from(limiter.check("t").await.allowed().is_some());
    }
    assert_eq!(allowed, 3);
    limiter.refund("t", 2).await.unwrap();
    assert_eq!(limiter.peek("t").await.unwrap().remaining, 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slots_are_held_until_they_are_dropped() {
    let server = Server::start();
    let (one, other) = (connect(&server), connect(&server));
    let slots = |redis: &Redis| {
        let limiter = redis.limiter_with_kind("jobs", LimitKind::Concurrency(2));
        limiter.build().unwrap()
    };
    let (here, there) = (slots(&one), slots(&other));
    let (first, second) = (here.check("k").await, there.check("k").await);
    assert!(first.denied().is_none() && second.denied().is_none());
    let full = here.check("k").await;
    assert_eq!(
        (full.denied().is_none(), full.decision.remaining),
        (false, 0)
    );
    // Looking takes none, and what costs nothing runs nevertheless.
    assert_eq!(here.peek("k").await.unwrap().remaining, 0);
    assert!(here.check_n("k", 0).await.denied().is_some());
    assert_eq!(one.stats().permits, 1);
    drop(first);
    wait_until(PATIENT, "the slot is free again", || {
        server.command(&["EVAL", ZCARDS, "0"]).integer() == Some(1)
    });
    assert!(there.check("k").await.allowed().is_some());
    drop(second);
}

/// How many holders all sets have together.
const ZCARDS: &str = "local sum = 0 for _, key in ipairs(redis.call('KEYS', '*')) do \
     sum = sum + redis.call('ZCARD', key) end return sum";

#[tokio::test]
async fn a_dead_holders_slot_runs_out() {
    let server = Server::start();
    let life = Duration::from_millis(300);
    let builder = || {
        Redis::builder(&server.url())
            .unwrap()
            .timeout(PATIENT)
            .permit_ttl(life)
    };
    let alive = builder().build().unwrap();
    let alive = alive
        .limiter_with_kind("jobs", LimitKind::Concurrency(2))
        .build()
        .unwrap();
    let kept = alive.check("k").await;
    assert!(kept.denied().is_none());
    // A runtime that ends takes its renewals with it, as a process that is killed does.
    let url = server.url();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let answer = runtime.block_on(async {
            let redis = Redis::builder(&url)
                .unwrap()
                .timeout(PATIENT)
                .permit_ttl(life);
            let redis = redis.build().unwrap();
            let limiter = redis
                .limiter_with_kind("jobs", LimitKind::Concurrency(2))
                .build()
                .unwrap();
            limiter.check("k").await
        });
        assert!(answer.denied().is_none());
        std::mem::forget(answer);
        runtime.shutdown_background();
    })
    .join()
    .unwrap();
    assert!(alive.check("k").await.denied().is_some());
    let again = tokio::time::timeout(PATIENT, async {
        loop {
            let again = alive.check("k").await;
            if again.denied().is_none() {
                return again;
            }
            tokio::task::yield_now().await;
        }
    });
    let _again = again.await.expect("the dead one's slot ran out");
    // The one that is alive still has its own.
    assert!(alive.check("k").await.denied().is_some());
    drop(kept);
}

#[tokio::test]
async fn paced_callers_act_one_interval_apart() {
    let server = Server::start();
    let redis = connect(&server);
    let rate = Rate::per_second(100).burst(1);
    let limiter = redis.limiter("downstream", rate).build().unwrap();
    let second = Duration::from_secs(1);
    let mut delays = Vec::new();
    for _ in 0..5 {
        delays.push(limiter.reserve("k", 1, second).await.unwrap().unwrap());
    }
    for (number, delay) in delays.iter().enumerate() {
        let ideal = Duration::from_millis(10) * u32::try_from(number).unwrap();
        // Time passes between the calls.
        assert!(*delay <= ideal, "{number}: {delay:?}");
    }
    assert!(delays[4] > Duration::from_millis(10), "{delays:?}");
    let short = Duration::from_millis(1);
    assert_eq!(limiter.reserve("k", 1, short).await.unwrap(), None);
    let window = redis
        .limiter("w", Rate::per_second(1))
        .algorithm(Algorithm::SlidingLog);
    let error = window
        .build()
        .unwrap()
        .reserve("k", 1, second)
        .await
        .unwrap_err();
    assert!(matches!(error, StoreError::Limit(_)), "{error}");
}

#[tokio::test]
async fn a_refusal_is_repeated_without_asking() {
    let server = Server::start();
    let redis = connect(&server);
    let limiter = redis.limiter("near", Rate::per_hour(1)).build().unwrap();
    assert!(limiter.check("k").await.allowed().is_some());
    assert!(limiter.check("k").await.denied().is_some());
    let before = server.command_calls("evalsha") + server.command_calls("eval");
    for _ in 0..100 {
        assert!(limiter.check("k").await.denied().is_some());
    }
    let after = server.command_calls("evalsha") + server.command_calls("eval");
    assert_eq!((after - before, redis.stats().repeated_denials), (0, 100));
    limiter.refund("k", 1).await.unwrap();
    assert!(
        limiter.check("k").await.allowed().is_some(),
        "what was given back here is seen"
    );
}

#[tokio::test]
async fn leased_tokens_are_spent_here() {
    let server = Server::start();
    let redis = connect(&server);
    let rate = Rate::per_hour(36_000).burst(10_000);
    let limiter = redis.limiter("leased", rate).leased().build().unwrap();
    let mut allowed = 0;
    for _ in 0..20_000 {
        allowed += u64::from(limiter.check("k").await.allowed().is_some());
    }
    let stats = redis.stats();
    // Ten a second come back meanwhile.
    assert!((10_000..10_200).contains(&allowed), "{allowed}");
    assert!(stats.round_trips < 500, "{stats:?}");
    assert_eq!(stats.fallback, Default::default());
}

/// Two nodes whose costs are nearly the burst: what isn't enough for one may not be kept from the other.
#[tokio::test]
async fn leases_that_are_not_enough_do_not_block_each_other() {
    let server = Server::start();
    let (one, other) = (connect(&server), connect(&server));
    let rate = Rate::per_second(2_000).burst(100);
    let limiter = |redis: &Redis| redis.limiter("large", rate).leased().build().unwrap();
    let (one, other) = (limiter(&one), limiter(&other));
    let mut passed = [0, 0];
    let asking = async {
        while passed.iter().sum::<u32>() < 20 {
            passed[0] += u32::from(one.check_n("k", 95).await.allowed().is_some());
            passed[1] += u32::from(other.check_n("k", 95).await.allowed().is_some());
            tokio::task::yield_now().await;
        }
    };
    let asked = tokio::time::timeout(PATIENT, asking).await;
    assert!(asked.is_ok(), "they wait for each other: {passed:?}");
}

#[tokio::test]
async fn a_slow_answer_is_waited_for_as_long_as_was_said() {
    let server = Server::start();
    let redis = connect(&server);
    let limiter = redis.limiter("slow", Rate::per_hour(1)).build().unwrap();
    let _ = limiter.peek("k").await.unwrap();
    server.command(&["CLIENT", "PAUSE", "1500", "ALL"]);
    let answer = limiter.try_check("k", 1).await.unwrap();
    assert!(answer.denied().is_none());
    assert_eq!(redis.stats().connects, 1, "the connection was kept");
}

#[tokio::test]
async fn what_came_back_before_another_failed_is_not_refused_from_memory() {
    let server = Server::start();
    let redis = connect(&server);
    let limit = |name: &str| {
        let (rate, algorithm) = (Rate::per_hour(1), Algorithm::Gcra);
        StandaloneLimit::new(name, LimitKind::Rate { rate, algorithm }).unwrap()
    };
    let (foreign, own) = (limit("foreign"), limit("own"));
    let facts = StandaloneLimit::facts("k");
    let (foreign, own) = (foreign.check(&facts, 1), own.check(&facts, 1));
    let allowed = async |check| redis.ask(&[check], None).await.unwrap().allowed;
    assert!(allowed(foreign).await);
    let keys = server.command(&["KEYS", "*"]);
    let key = keys.items()[0].text().unwrap();
    server.command(&["SET", &key, "of somebody else"]);
    assert!(allowed(own).await && !allowed(own).await);
    let Ok(_) = redis.refund(&[own, foreign], Refund::Cost).await;
    assert_eq!(redis.stats().foreign_keys, 1, "the second failed");
    assert!(allowed(own).await, "the first came back");
}
