//! Answers while a store is unreachable, by every failure policy, and the recovery without help.

use std::time::Duration;

use crate::common::{LIMIT, PATIENT, POLICIES, Subject, eventually};
use futures_util::future::join_all;
use tollgate::Rate;
use tollgate_engine::backend::LimitKind;
use tollgate_engine::document::Format;
use tollgate_engine::policy::OnStoreFailure;
use tollgate_engine::{Engine, Facts, Policy};
use tollgate_redis::{FailureKind, Redis, RedisLimiter};
use tollgate_testkit::redis::{Isolated, Server};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_is_killed_and_comes_back_empty() {
    let server = Server::start();
    let mut subject = Subject::new(&server.url()).await;
    subject
        .story(|| server.kill(), || server.restart_empty())
        .await;
    // And once more: nothing is used up by it.
    subject
        .story(|| server.kill(), || server.restart_empty())
        .await;
    subject.failed_by(FailureKind::Refused);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_hangs() {
    let server = Server::start();
    let mut subject = Subject::new(&server.url()).await;
    subject.story(|| server.pause(), || server.resume()).await;
    subject.failed_by(FailureKind::TimedOut);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_takes_no_writes_for_a_while() {
    let server = Server::start();
    let mut subject = Subject::new(&server.url()).await;
    let pause = || {
        server.command(&["CLIENT", "PAUSE", "60000", "WRITE"]);
    };
    let unpause = || {
        server.command(&["CLIENT", "UNPAUSE"]);
    };
    subject.story(pause, unpause).await;
    subject.failed_by(FailureKind::TimedOut);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_behind_a_network_that_is_cut() {
    let isolated = Isolated::start();
    let mut subject = Subject::new(&isolated.server().url()).await;
    subject
        .story(|| isolated.partition(), || isolated.heal())
        .await;
    subject.failed_by(FailureKind::TimedOut);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scripts_that_are_flushed_are_told_anew_and_nobody_notices() {
    let server = Server::start();
    let mut subject = Subject::new(&server.url()).await;
    for _ in 0..10 {
        server.command(&["SCRIPT", "FLUSH"]);
        subject.carries_on().await;
    }
    subject.recovers().await;
    assert_eq!(subject.redis.stats().fallback.errors, 0);
    assert_eq!(subject.redis.stats().round_trip_errors, 0);
    assert!(subject.told_in_order().is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_restarts_empty_counts_from_zero() {
    let server = Server::start();
    let mut subject = Subject::new(&server.url()).await;
    let limiter = subject.fresh(OnStoreFailure::Closed);
    for _ in 0..3 {
        assert!(subject.decide(&limiter, LIMIT).await.allowed().is_some());
        assert!(subject.decide(&limiter, LIMIT).await.denied().is_some());
        server.restart_empty();
        subject.carries_on().await;
        subject.recovers().await;
        // What was known to be refused isn't asked about until then.
        limiter.refund("k", 0).await.unwrap();
    }
    subject.told_in_order();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_leased_is_spent_and_then_each_policy_decides() {
    const BURST: u64 = 1000;
    let server = Server::start();
    let mut subject = Subject::new(&server.url()).await;
    let leased: Vec<_> = POLICIES
        .into_iter()
        .map(|policy| {
            let limiter = subject
                .redis
                .limiter(&format!("{policy:?}"), Rate::per_day(BURST));
            (
                policy,
                limiter.leased().on_store_failure(policy).build().unwrap(),
            )
        })
        .collect();
    for round in 0..2 {
        let mut admitted = vec![0; leased.len()];
        for (_, limiter) in &leased {
            eventually("the store", async || {
                let answer = subject.decide(limiter, 1).await;
                answer.fallback.is_none() && answer.denied().is_none()
            })
            .await;
        }
        server.pause();
        for ((policy, limiter), admitted) in leased.iter().zip(&mut admitted) {
            // What this node holds lasts for a lease's life at most.
            eventually("the policy", async || {
                let answer = subject.decide(limiter, 1).await;
                *admitted += u64::from(answer.denied().is_none() && answer.fallback.is_none());
                assert!(answer.fallback.is_none_or(|chosen| chosen == *policy));
                answer.fallback.is_some()
            })
            .await;
            for _ in 0..3 {
                let answer = subject.decide(limiter, 1).await;
                assert_eq!(answer.fallback, Some(*policy));
                assert_eq!(answer.denied().is_none(), *policy != OnStoreFailure::Closed);
            }
        }
        assert!(
            admitted.iter().all(|admitted| *admitted <= BURST / 10),
            "{admitted:?}"
        );
        assert!(subject.redis.is_fallback_active(), "{round}");
        server.resume();
        for (policy, limiter) in &leased {
            eventually("the store again", async || {
                let answer = subject.decide(limiter, 1).await;
                assert!(answer.fallback.is_none_or(|chosen| chosen == *policy));
                answer.fallback.is_none() && answer.denied().is_none()
            })
            .await;
        }
        assert!(!subject.redis.is_fallback_active(), "{round}");
    }
    subject.recovers().await;
    subject.told_in_order();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crowd_is_answered_in_time_too() {
    let server = Server::start();
    let mut subject = Subject::new(&server.url()).await;
    let limiter = subject.fresh(OnStoreFailure::Closed);
    for (harm, heal) in [
        (Server::pause as fn(&Server), Server::resume as fn(&Server)),
        (Server::kill, Server::restart_empty),
    ] {
        harm(&server);
        let crowd = (0..64).map(async |_| {
            for _ in 0..10 {
                // Bounded, or it panics.
                let answer = subject.decide(&limiter, 1).await;
                assert_eq!(answer.fallback, Some(OnStoreFailure::Closed));
                assert!(answer.denied().is_some());
            }
        });
        join_all(crowd).await;
        heal(&server);
        subject.recovers().await;
    }
    subject.told_in_order();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slot_that_the_store_forgot_is_taken_again_or_told_to_be_lost() {
    let server = Server::start();
    let builder = Redis::builder(&server.url()).unwrap().timeout(PATIENT);
    let redis = builder
        .permit_ttl(Duration::from_millis(300))
        .build()
        .unwrap();
    let limiter = redis.limiter_with_kind("jobs", LimitKind::Concurrency(1));
    let limiter = limiter.build().unwrap();
    let held = limiter.check("k").await;
    assert!(held.denied().is_none() && held.fallback.is_none());
    server.restart_empty();
    eventually(
        "a renewal that finds nothing",
        async || matches!(limiter.peek("k").await, Ok(peek) if peek.remaining == 0),
    )
    .await;
    assert_eq!((redis.stats().permits, redis.stats().lost_permits), (1, 0));
    // It is gone again, and this time another one is faster.
    let mut other = limiter.check("k").await;
    while other.denied().is_some() {
        server.command(&["FLUSHALL"]);
        other = limiter.check("k").await;
    }
    eventually("a renewal that finds no room", async || {
        redis.stats().lost_permits == 1
    })
    .await;
    // What is given back is one's own.
    drop(held);
    eventually("that to be told", async || redis.stats().permits == 1).await;
    assert!(limiter.check("k").await.denied().is_some());
    drop(other);
    eventually("a free slot", async || {
        limiter.peek("k").await.unwrap().remaining == 1
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_one_limit_refused_is_not_noted_as_spent_of_another() {
    let server = Server::start();
    let builder = Redis::builder(&server.url()).unwrap();
    let builder = builder.timeout(PATIENT).deny_cache(0).node_count(1);
    let limits = "limits: [{name: all, rate: 20/h}, {name: user, key: user, rate: 1/h}]";
    let policy = Policy::from_text(limits, Format::Yaml).unwrap().policy;
    let engine = Engine::new(policy, builder.build().unwrap()).unwrap();
    let [ann, bob] = ["ann", "bob"].map(|name| Facts::new().with("user", name));
    let mut passed = 0;
    for _ in 0..40 {
        let verdict = engine.decide_async(&ann).await.unwrap();
        assert_eq!(verdict.fallback(), None);
        passed += u32::from(verdict.denied().is_none());
    }
    assert_eq!(passed, 1);
    server.kill();
    let verdict = engine.decide_async(&bob).await.unwrap();
    assert_eq!(verdict.fallback(), Some(OnStoreFailure::Local));
    assert!(verdict.denied().is_none(), "{:?}", verdict.decision());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_who_waits_for_as_long_as_it_takes_is_answered() {
    let server = Server::start();
    let builder = Redis::builder(&server.url()).unwrap().node_count(1);
    let redis = builder.timeout(Duration::MAX).build().unwrap();
    for leased in [false, true] {
        let limiter = redis.limiter("logins", Rate::per_hour(5));
        let limiter = if leased { limiter.leased() } else { limiter };
        let answer = limiter.build().unwrap().check("k").await;
        assert!(answer.denied().is_none() && answer.fallback.is_none());
    }
}

/// How many of twice as many as a limit lets pass do.
async fn passed(limiter: &RedisLimiter) -> u64 {
    let mut passed = 0;
    for _ in 0..2 * LIMIT {
        let answer = limiter.try_check("k", 1).await;
        passed += u64::from(answer.expect("an answer").allowed().is_some());
    }
    passed
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_is_made_to_forget_admits_one_burst_more() {
    let server = Server::start();
    let builder = Redis::builder(&server.url()).unwrap().timeout(PATIENT);
    let redis = builder.deny_cache(0).node_count(1).build().unwrap();
    let limiter = redis.limiter("forgotten", Rate::per_day(LIMIT));
    let limiter = limiter.build().unwrap();
    for _ in 0..3 {
        assert_eq!(passed(&limiter).await, LIMIT);
        assert_eq!(passed(&limiter).await, 0);
        server.command(&["FLUSHALL"]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_that_is_evicted_is_forgotten_and_one_that_is_not_stays() {
    // A hundred keys of a kilobyte, again and again.
    let fill = "for i = 1, 100 do redis.call('SET', 'filler:' .. ARGV[1] .. ':' .. i, \
                string.rep('x', 1000)) end";
    for policy in ["allkeys-lru", "noeviction"] {
        let server = Server::builder().arg("maxmemory-policy", policy).start();
        let builder = Redis::builder(&server.url()).unwrap().timeout(PATIENT);
        let redis = builder.deny_cache(0).node_count(1).build().unwrap();
        let limiter = redis.limiter("evicted", Rate::per_day(LIMIT));
        let limiter = limiter.build().unwrap();
        assert_eq!(passed(&limiter).await, LIMIT);
        let used: u64 = server.info("memory", "used_memory").parse().unwrap();
        let most = (used + 1_000_000).to_string();
        server.command(&["CONFIG", "SET", "maxmemory", &most]);
        let mut client = server.client().unwrap();
        let is_there = || server.command(&["KEYS", "tollgate:*"]).items().len() == 1;
        let mut rounds = 0;
        while is_there()
            && client
                .command(&["EVAL", fill, "0", &rounds.to_string()])
                .is_ok()
        {
            rounds += 1;
            assert!(rounds < 1000, "{policy}");
        }
        match policy {
            "noeviction" => {
                // A refusal writes nothing, and needs no room.
                assert_eq!(passed(&limiter).await, 0);
                let error = limiter.try_check("another", 1).await.unwrap_err();
                assert_eq!(error.kind(), FailureKind::OutOfMemory, "{error}");
                server.command(&["CONFIG", "SET", "maxmemory", "0"]);
                assert_eq!(passed(&limiter).await, 0);
            }
            _ => assert_eq!(passed(&limiter).await, LIMIT, "{policy}"),
        }
    }
}
