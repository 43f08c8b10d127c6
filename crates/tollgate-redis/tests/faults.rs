//! What is answered while a store is away, by every failure policy, and that it comes back by itself.

mod common;

use common::{POLICIES, Subject, eventually};
use tollgate::Rate;
use tollgate_engine::policy::OnStoreFailure;
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
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_hangs() {
    let server = Server::start();
    let mut subject = Subject::new(&server.url()).await;
    subject.story(|| server.stop(), || server.cont()).await;
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
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_behind_a_network_that_is_cut() {
    let isolated = Isolated::start();
    let mut subject = Subject::new(&isolated.server().url()).await;
    subject
        .story(|| isolated.partition(), || isolated.heal())
        .await;
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
