//! What is answered while a store is away, by every failure policy, and that it comes back by itself.

mod common;

use std::time::Duration;

use common::{PATIENT, POLICIES, Subject, eventually};
use futures_util::future::join_all;
use tollgate::Rate;
use tollgate_engine::backend::LimitKind;
use tollgate_engine::policy::OnStoreFailure;
use tollgate_redis::{FailureKind, Redis};
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
    subject.story(|| server.stop(), || server.cont()).await;
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
    assert_eq!(subject.redis.stats().failed_round_trips, 0);
    assert!(subject.told_in_order().is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_restarts_empty_counts_from_zero() {
    let server = Server::start();
    let mut subject = Subject::new(&server.url()).await;
    let limiter = subject.fresh(OnStoreFailure::Closed);
    for _ in 0..3 {
        assert!(subject.decide(&limiter, common::LIMIT).await.allowed);
        assert!(!subject.decide(&limiter, common::LIMIT).await.allowed);
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
                answer.fallback.is_none() && answer.allowed
            })
            .await;
        }
        server.stop();
        for ((policy, limiter), admitted) in leased.iter().zip(&mut admitted) {
            // What this node holds lasts for a lease's life at most.
            eventually("the policy", async || {
                let answer = subject.decide(limiter, 1).await;
                *admitted += u64::from(answer.allowed && answer.fallback.is_none());
                assert!(answer.fallback.is_none_or(|chosen| chosen == *policy));
                answer.fallback.is_some()
            })
            .await;
            for _ in 0..3 {
                let answer = subject.decide(limiter, 1).await;
                assert_eq!(answer.fallback, Some(*policy));
                assert_eq!(answer.allowed, *policy != OnStoreFailure::Closed);
            }
        }
        assert!(
            admitted.iter().all(|admitted| *admitted <= BURST / 10),
            "{admitted:?}"
        );
        assert!(subject.redis.fallback_active(), "{round}");
        server.cont();
        for (policy, limiter) in &leased {
            eventually("the store again", async || {
                let answer = subject.decide(limiter, 1).await;
                assert!(answer.fallback.is_none_or(|chosen| chosen == *policy));
                answer.fallback.is_none() && answer.allowed
            })
            .await;
        }
        assert!(!subject.redis.fallback_active(), "{round}");
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
        (Server::stop as fn(&Server), Server::cont as fn(&Server)),
        (Server::kill, Server::restart_empty),
    ] {
        harm(&server);
        let crowd = (0..64).map(async |_| {
            for _ in 0..10 {
                // Bounded, or it panics.
                let answer = subject.decide(&limiter, 1).await;
                assert_eq!(answer.fallback, Some(OnStoreFailure::Closed));
                assert!(!answer.allowed);
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
        .slot_life(Duration::from_millis(300))
        .build()
        .unwrap();
    let limiter = redis.limiter_of("jobs", LimitKind::Concurrency(1));
    let limiter = limiter.build().unwrap();
    let held = limiter.check("k").await;
    assert!(held.allowed && held.fallback.is_none());
    server.restart_empty();
    eventually(
        "a renewal that finds nothing",
        async || matches!(limiter.peek("k").await, Ok(peek) if peek.remaining == 0),
    )
    .await;
    assert_eq!((redis.stats().slots, redis.stats().lost_slots), (1, 0));
    // It is gone again, and this time another one is faster.
    let mut other = limiter.check("k").await;
    while !other.allowed {
        server.command(&["FLUSHALL"]);
        other = limiter.check("k").await;
    }
    eventually("a renewal that finds no room", async || {
        redis.stats().lost_slots == 1
    })
    .await;
    // What is given back is one's own.
    drop(held);
    eventually("that to be told", async || redis.stats().slots == 1).await;
    assert!(!limiter.check("k").await.allowed);
    drop(other);
    eventually("a free slot", async || {
        limiter.peek("k").await.unwrap().remaining == 1
    })
    .await;
}
