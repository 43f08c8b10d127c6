//! Lost replies of a cluster: a request is repeated only where that does no harm.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crate::common::proxy::{Act, Proxy};
use crate::common::{PATIENT, eventually};
use tollgate::Rate;
use tollgate_engine::backend::LimitKind;
use tollgate_redis::Redis;
use tollgate_testkit::redis::Server;

/// A cluster of one that loses every script's reply on command, and the number of scripts it ran then.
fn losing(server: &Server) -> (Proxy, Arc<AtomicBool>, Arc<AtomicU64>) {
    let (loses, lost) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicU64::new(0)),
    );
    let (own, count) = (Arc::clone(&loses), Arc::clone(&lost));
    let proxy = Proxy::start(server.address(), move |words| {
        if !words[0].starts_with("EVAL") || !own.load(Ordering::SeqCst) {
            return Act::Pass;
        }
        count.fetch_add(1, Ordering::SeqCst);
        Act::LoseReply
    });
    (proxy, loses, lost)
}

fn connect(proxy: &Proxy) -> Redis {
    let builder = Redis::builder(&proxy.cluster_url()).expect("a URL");
    let builder = builder.timeout(PATIENT).node_count(1).deny_cache(0);
    builder.build().expect("a runtime")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_given_back_is_given_once_and_what_is_charged_twice_at_most() {
    const BURST: u64 = 100;
    let server = Server::start();
    let (proxy, loses, lost) = losing(&server);
    let redis = connect(&proxy);
    let limiter = redis.limiter("lost", Rate::per_day(BURST)).build().unwrap();
    assert!(
        limiter
            .try_check("k", 50)
            .await
            .unwrap()
            .allowed()
            .is_some()
    );
    limiter.refund("k", 0).await.unwrap();
    // Whoever is asked something knows the script.
    loses.store(true, Ordering::SeqCst);
    limiter.refund("k", 10).await.unwrap_err();
    assert_eq!(lost.swap(0, Ordering::SeqCst), 1);
    limiter.try_check("k", 10).await.unwrap_err();
    let charged = lost.swap(0, Ordering::SeqCst);
    assert!((1..=2).contains(&charged), "{charged}");
    loses.store(false, Ordering::SeqCst);
    let mut left = None;
    eventually("the store", async || {
        left = limiter.peek("k").await.ok();
        left.is_some()
    })
    .await;
    assert_eq!(left.unwrap().remaining, BURST - 50 + 10 - charged * 10);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slot_whose_reply_was_lost_is_free_again() {
    let server = Server::start();
    let (proxy, loses, lost) = losing(&server);
    // Nobody waits for long, and slots live for far longer than this test may take.
    let builder = Redis::builder(&proxy.cluster_url()).unwrap().node_count(1);
    let builder = builder.timeout(Duration::from_millis(3)).deny_cache(0);
    let redis = builder
        .permit_ttl(Duration::from_secs(600))
        .build()
        .unwrap();
    let slots = redis.limiter_with_kind("jobs", LimitKind::Concurrency(2));
    let slots = slots.build().unwrap();
    let all_are_free = async || matches!(slots.peek("k").await, Ok(left) if left.remaining == 2);
    eventually("the store", all_are_free).await;
    for _ in 0..100 {
        // What is asked again after its asker gave up, and gave the slot back, would take it for nobody.
        loses.store(true, Ordering::SeqCst);
        let asked = slots.try_check("k", 1).await;
        loses.store(false, Ordering::SeqCst);
        drop(asked);
        eventually("free slots", all_are_free).await;
    }
    assert!(lost.load(Ordering::SeqCst) > 0);
}
