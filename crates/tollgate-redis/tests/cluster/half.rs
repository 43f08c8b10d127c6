//! A hash slot in migration from one node to another: batched requests are sent separately.

use std::sync::Arc;

use crate::common::{DEADLINE, PATIENT, eventually};
use crate::owner_and_other;
use futures_util::future::join_all;
use tollgate::Rate;
use tollgate_engine::document::Format;
use tollgate_engine::{Engine, Facts, Policy};
use tollgate_redis::Redis;
use tollgate_testkit::redis::{Cluster, Server, hash_slot};

/// Concurrent clients, each with a limit of its own, and the number of their requests.
const TASKS: u64 = 8;
const EACH: u64 = 70;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn merged_questions_about_a_slot_half_way_are_all_answered() {
    let cluster = Cluster::start();
    let builder = Redis::builder(&cluster.url()).unwrap();
    let redis = builder.timeout(PATIENT).node_count(1).deny_cache(0);
    let redis = redis.build().unwrap();
    let limiters = (0..TASKS).map(|number| {
        let name = format!("half {number}");
        let limiter = redis.limiter(&name, Rate::per_day(1000)).build();
        Arc::new(limiter.unwrap())
    });
    let limiters: Vec<_> = limiters.collect();
    for limiter in &limiters {
        assert!(
            limiter
                .try_check("half", 1)
                .await
                .unwrap()
                .allowed()
                .is_some()
        );
    }
    let slot = hash_slot("{key=half}");
    let (_, other) = owner_and_other(&cluster, slot);
    let migration = cluster.begin_migration(slot, other);
    // Some are here and some there.
    assert_eq!(migration.move_keys(3), 3);
    let before = redis.stats();
    let asking = limiters.iter().map(|limiter| {
        let limiter = Arc::clone(limiter);
        tokio::spawn(async move {
            let mut failed = 0;
            for _ in 0..EACH {
                failed += u64::from(limiter.try_check("half", 1).await.is_err());
            }
            failed
        })
    });
    let failed: u64 = join_all(asking).await.into_iter().map(Result::unwrap).sum();
    assert_eq!(failed, 0, "of {}", TASKS * EACH);
    let now = redis.stats();
    assert_eq!(now.queries - before.queries, TASKS * EACH);
    while migration.move_keys(10) > 0 {}
    migration.finish();
    for limiter in &limiters {
        let left = limiter.peek("half").await.unwrap().remaining;
        assert_eq!(left, 1000 - 1 - EACH);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_whose_keys_are_half_way_waits_until_they_are_together() {
    let cluster = Cluster::start();
    let redis = Redis::builder(&cluster.url()).unwrap();
    let redis = redis.timeout(DEADLINE).node_count(1).build().unwrap();
    let policy = "limits: [{name: a, key: user, rate: 100/h}, {name: b, key: user, rate: 100/h}]";
    let policy = Policy::from_text(policy, Format::Yaml).unwrap().policy;
    let engine = Arc::new(Engine::new(policy, redis).unwrap());
    let facts = Facts::new().with("user", "half");
    assert!(
        engine
            .decide_async(&facts)
            .await
            .unwrap()
            .allowed()
            .is_some()
    );
    let slot = hash_slot("{user=half}");
    let (_, other) = owner_and_other(&cluster, slot);
    let migration = cluster.begin_migration(slot, other);
    assert_eq!(migration.move_keys(1), 1);
    let own = Arc::clone(&engine);
    let asked = tokio::spawn(async move {
        let facts = Facts::new().with("user", "half");
        let verdict = own.decide_async(&facts).await.unwrap();
        (verdict.fallback(), verdict.decision().remaining)
    });
    eventually("someone to be told to try again", async || {
        let has = |node: &Server| {
            let counted = node
                .client()
                .and_then(|mut one| one.info("errorstats", "errorstat_TRYAGAIN"));
            counted.is_ok()
        };
        cluster.masters().any(has)
    })
    .await;
    while migration.move_keys(10) > 0 {}
    migration.finish();
    assert_eq!(asked.await.unwrap(), (None, 98));
}
