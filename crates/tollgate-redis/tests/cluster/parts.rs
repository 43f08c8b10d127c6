//! A cluster that fails in part: keys on healthy nodes are answered all the while.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crate::common::{DEADLINE, POLL, eventually};
use tokio::time::Instant;
use tollgate::Rate;
use tollgate_engine::policy::OnStoreFailure;
use tollgate_redis::{Redis, RedisLimiter, StoreError};
use tollgate_testkit::redis::{Cluster, Server, hash_slot};

/// Long enough for a healthy node on a busy machine.
pub(crate) const TIMEOUT: Duration = Duration::from_millis(250);
/// The concurrent requests for keys of the dead node.
const CROWD: usize = 64;
/// Questions to each healthy node at least, and failures at the dead one.
const ENOUGH: u64 = 150;

/// A cluster that doesn't replace whom it loses: for as long as a test takes, and longer.
pub(crate) fn without_failover() -> Cluster {
    let cluster = Cluster::start();
    for node in cluster.nodes() {
        node.command(&["CONFIG", "SET", "cluster-node-timeout", "600000"]);
    }
    cluster
}

pub(crate) fn limiter(cluster: &Cluster) -> RedisLimiter {
    let builder = Redis::builder(&cluster.url()).expect("a URL");
    let redis = builder.timeout(TIMEOUT).node_count(1).deny_cache(0).build();
    let redis = redis.expect("a runtime");
    let limiter = redis.limiter("part", Rate::per_hour(1_000_000));
    // However many fail at the dead one, no circuit breaks for the others.
    let limiter = limiter.on_store_failure(OnStoreFailure::CircuitBreak);
    limiter.build().expect("a limit")
}

/// So many keys that a node has.
pub(crate) fn keys_of(cluster: &Cluster, node: &Server, count: usize) -> Vec<String> {
    let keys = (0..).map(|number| format!("k{number}"));
    let is_its = |key: &String| {
        let slot = hash_slot(format!("{{key={key}}}"));
        cluster.master_of(slot).port() == node.port()
    };
    keys.filter(is_its).take(count).collect()
}

/// How many requests to the healthy nodes failed, of how many, while a crowd sends requests to the dead one.
pub(crate) async fn failing_beside(
    healthy: &[String],
    dead: &[String],
    limiter: RedisLimiter,
) -> (u64, u64) {
    let limiter = Arc::new(limiter);
    let is_over = Arc::new(AtomicBool::new(false));
    let refused = Arc::new(AtomicU64::new(0));
    let crowd: Vec<_> = (0..CROWD)
        .map(|number| {
            let (limiter, is_over) = (Arc::clone(&limiter), Arc::clone(&is_over));
            let (refused, key) = (Arc::clone(&refused), dead[number % dead.len()].clone());
            tokio::spawn(async move {
                while !is_over.load(Ordering::Relaxed) {
                    // First no answer comes, then it is known that none will.
                    assert!(limiter.check(&key).await.fallback.is_some());
                    let error = limiter.try_check(&key, 1).await.expect_err("nobody there");
                    let is_known = !matches!(error, StoreError::TimedOut { .. });
                    refused.fetch_add(u64::from(is_known), Ordering::Relaxed);
                    tokio::time::sleep(POLL).await;
                }
            })
        })
        .collect();
    let (mut failed, mut asked, began) = (0, 0, Instant::now());
    while asked < ENOUGH * healthy.len() as u64 || refused.load(Ordering::Relaxed) < ENOUGH {
        for key in healthy {
            let answer = limiter.check(key).await;
            failed += u64::from(answer.fallback.is_some());
            asked += 1;
        }
        assert!(began.elapsed() < DEADLINE, "{failed} of {asked} failed");
        tokio::time::sleep(POLL).await;
    }
    is_over.store(true, Ordering::Relaxed);
    for one in crowd {
        one.await.expect("every question to the dead node fails");
    }
    (failed, asked)
}

async fn healthy_nodes_answer(harm: fn(&Server), heal: fn(&Server)) {
    let cluster = without_failover();
    let masters: Vec<_> = cluster.masters().collect();
    let (gone, others) = masters.split_first().expect("three masters");
    let dead = keys_of(&cluster, gone, CROWD);
    let healthy: Vec<_> = (others.iter())
        .flat_map(|node| keys_of(&cluster, node, 2))
        .collect();
    let before = limiter(&cluster);
    for key in healthy.iter().chain(&dead) {
        eventually("the store", async || before.try_check(key, 1).await.is_ok()).await;
    }
    harm(gone);
    let (failed, asked) = failing_beside(&healthy, &dead, before).await;
    assert!(failed * 100 <= asked, "{failed} of {asked} failed");
    // And one who comes meanwhile finds them.
    let meanwhile = limiter(&cluster);
    let (failed, asked) = failing_beside(&healthy, &dead, meanwhile).await;
    assert!(failed * 100 <= asked, "{failed} of {asked} failed at start");
    let late = limiter(&cluster);
    heal(gone);
    for key in &dead {
        eventually("the dead one", async || {
            late.try_check(key, 1).await.is_ok()
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn healthy_nodes_answer_beside_a_silent_one() {
    healthy_nodes_answer(Server::pause, Server::resume).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn healthy_nodes_answer_beside_a_dead_one() {
    healthy_nodes_answer(Server::kill, Server::restart_empty).await;
}
