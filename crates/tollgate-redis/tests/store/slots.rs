//! Permits of requests that give up, or for which the store is too slow: none leaks.

use std::time::Duration;

use tollgate::Rate;
use tollgate_engine::backend::LimitKind;
use tollgate_redis::{Redis, RedisLimiter};
use tollgate_testkit::redis::Server;

fn connect(server: &Server, timeout: Duration) -> (Redis, RedisLimiter) {
    let builder = Redis::builder(&server.url()).expect("a server's own URL");
    let redis = builder
        .timeout(timeout)
        .node_count(1)
        .build()
        .expect("a runtime");
    let jobs = redis.limiter_with_kind("jobs", LimitKind::Concurrency(2));
    let jobs = jobs.build().expect("slots are for the store");
    (redis, jobs)
}

/// Waits until all permits are free, for far less than their expiry.
async fn all_are_free(jobs: &RedisLimiter) {
    let free = async {
        while !matches!(jobs.peek("k").await, Ok(decision) if decision.remaining == 2) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let freed = tokio::time::timeout(Duration::from_secs(20), free).await;
    freed.expect("slots that nobody has are free");
}

#[tokio::test]
async fn a_request_that_is_given_up_leaves_no_slot_behind() {
    let server = Server::start();
    let (_redis, jobs) = connect(&server, Duration::from_secs(10));
    all_are_free(&jobs).await;
    server.pause();
    let brief = Duration::from_millis(20);
    for _ in 0..2 {
        let on_timeout = tokio::time::timeout(brief, jobs.try_check("k", 1)).await;
        assert!(on_timeout.is_err());
    }
    server.resume();
    all_are_free(&jobs).await;
}

#[tokio::test]
async fn a_store_that_is_slow_for_a_while_learns_what_has_ended() {
    let server = Server::start();
    let (redis, jobs) = connect(&server, Duration::from_millis(50));
    all_are_free(&jobs).await;
    let held = jobs.try_check("k", 1).await.unwrap();
    assert!(held.denied().is_none());
    server.pause();
    // It gets no answer in time, but may get a slot. With the peek, as many calls are under way as may be.
    assert!(jobs.try_check("k", 1).await.is_err());
    assert!(jobs.peek("k").await.is_err());
    drop(held);
    // Both were to be given back meanwhile, in vain.
    tokio::time::sleep(Duration::from_millis(100)).await;
    server.resume();
    all_are_free(&jobs).await;
    assert_eq!((redis.stats().permits, redis.stats().lost_permits), (0, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn closing_gives_everything_back() {
    const MANY: u32 = 1000;
    let server = Server::start();
    let builder = Redis::builder(&server.url()).unwrap();
    let redis = builder.timeout(Duration::from_secs(10)).build().unwrap();
    let jobs = redis.limiter_with_kind("many", LimitKind::Concurrency(MANY));
    let jobs = jobs.build().unwrap();
    let leased = redis.limiter("leased", Rate::per_day(1000)).leased();
    assert!(
        leased
            .build()
            .unwrap()
            .try_check("k", 1)
            .await
            .unwrap()
            .allowed()
            .is_some()
    );
    let mut held = Vec::new();
    for _ in 0..MANY {
        held.push(jobs.try_check("k", 1).await.unwrap());
    }
    assert!(held.iter().all(|pass| pass.denied().is_none()));
    // Some have just ended, and others are never dropped, as when a process exits.
    held.truncate(10);
    let (_, other) = connect(&server, Duration::from_secs(10));
    redis.close().await;
    assert_eq!(redis.stats().permits, 0);
    assert_eq!(redis.stats().leased_tokens, 0);
    let keys = server.command(&["KEYS", "*"]);
    let mut left = Vec::new();
    for key in keys.items() {
        let key = key.text().unwrap();
        let held = server.client().unwrap().command(&["ZCARD", &key]);
        // A lease is one value, and what is returned of it leaves what was spent.
        left.extend(
            held.ok()
                .and_then(|held| held.integer())
                .map(|held| (key, held)),
        );
    }
    assert_eq!(left, []);
    all_are_free(&other).await;
    // A pass that is dropped later takes nothing from whoever has the slot by then.
    drop(held);
    let again = jobs.try_check("k", 1).await.unwrap();
    assert!(again.denied().is_none());
    assert_eq!(jobs.peek("k").await.unwrap().remaining, u64::from(MANY) - 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn closing_without_a_store_ends() {
    let server = Server::start();
    let (redis, jobs) = connect(&server, Duration::from_millis(50));
    all_are_free(&jobs).await;
    let _held = jobs.try_check("k", 1).await.unwrap();
    server.pause();
    let closed = tokio::time::timeout(Duration::from_secs(20), redis.close()).await;
    closed.expect("in bounded time");
}
