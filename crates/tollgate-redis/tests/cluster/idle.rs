//! Nodes for which this client has no requests: what it learns from them, and their connections.

use crate::common::{DEADLINE, eventually};
use crate::parts::{TIMEOUT, failing_beside, keys_of, limiter, without_failover};
use tollgate_engine::backend::LimitKind;
use tollgate_redis::Redis;
use tollgate_testkit::redis::{Cluster, hash_slot};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replacement_is_found_though_idle_connections_to_the_others_were_closed() {
    let cluster = Cluster::start();
    let masters: Vec<_> = cluster.masters().collect();
    let own = keys_of(&cluster, masters[0], 1).remove(0);
    let limiter = limiter(&cluster);
    eventually("the store", async || {
        limiter.try_check(&own, 1).await.is_ok()
    })
    .await;
    // As a server does with those that are silent for long, or that is restarted.
    let idle = || {
        let others = masters[1..].iter();
        others.map(|node| {
            node.command(&["CLIENT", "KILL", "TYPE", "normal"])
                .integer()
        })
    };
    eventually("a connection to each", async || {
        idle().all(|closed| closed > Some(0))
    })
    .await;
    let slot = hash_slot(format!("{{key={own}}}"));
    cluster.kill_master_of(slot);
    cluster.wait_until_ok(DEADLINE);
    eventually("who took its place", async || {
        limiter.try_check(&own, 1).await.is_ok()
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_has_forgotten_the_cluster_says_nothing_of_the_others() {
    let cluster = without_failover();
    let masters: Vec<_> = cluster.masters().collect();
    let (gone, others) = masters.split_first().expect("three masters");
    let dead = keys_of(&cluster, gone, 64);
    let healthy: Vec<_> = (others.iter())
        .flat_map(|node| keys_of(&cluster, node, 2))
        .collect();
    let limiter = limiter(&cluster);
    for key in healthy.iter().chain(&dead) {
        eventually("the store", async || {
            limiter.try_check(key, 1).await.is_ok()
        })
        .await;
    }
    gone.command(&["FLUSHALL"]);
    gone.command(&["CLUSTER", "RESET", "SOFT"]);
    let (failed, asked) = failing_beside(&healthy, &dead, limiter).await;
    assert!(failed * 100 <= asked, "{failed} of {asked} failed");
}

#[tokio::test]
async fn slots_of_healthy_nodes_are_given_back_beside_a_silent_one() {
    const MANY: u32 = 300;
    let cluster = without_failover();
    let masters: Vec<_> = cluster.masters().collect();
    let [gone, healthy] = [0, 1].map(|node| keys_of(&cluster, masters[node], 1).remove(0));
    let builder = Redis::builder(&cluster.url()).expect("a URL");
    let redis = builder.timeout(TIMEOUT).node_count(1).deny_cache(0).build();
    let redis = redis.expect("a runtime");
    let jobs = redis.limiter_with_kind("jobs", LimitKind::Concurrency(MANY));
    let jobs = jobs.build().expect("slots are for the store");
    let mut held = Vec::new();
    eventually("the store", async || jobs.peek(&gone).await.is_ok()).await;
    for _ in 0..MANY {
        held.push(jobs.try_check(&gone, 1).await.expect("a slot"));
    }
    let own = jobs.try_check(&healthy, 1).await.expect("a slot");
    masters[0].pause();
    // On one thread: all have ended before the first is said. Most are given back in vain, again and again.
    drop(own);
    drop(held);
    eventually(
        "the slot of a healthy node",
        async || matches!(jobs.peek(&healthy).await, Ok(seen) if seen.remaining == u64::from(MANY)),
    )
    .await;
    masters[0].resume();
    eventually(
        "those of the other",
        async || matches!(jobs.peek(&gone).await, Ok(seen) if seen.remaining == u64::from(MANY)),
    )
    .await;
}
