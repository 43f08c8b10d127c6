//! A store whose runtime is gone returns an error, and so does one that is used outside of a runtime.

use std::time::Duration;

use futures_util::FutureExt;
use tollgate::Rate;
use tollgate_engine::backend::RefundResult;
use tollgate_engine::policy::OnStoreFailure;
use tollgate_redis::{Redis, StoreError};
use tollgate_testkit::redis::Server;

#[test]
fn a_store_without_its_runtime_says_so_at_once() {
    let server = Server::start();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let (logins, slots) = runtime.block_on(async {
        let builder = Redis::builder(&server.url()).unwrap();
        let redis = builder.timeout(Duration::from_secs(60)).build().unwrap();
        let logins = redis
            .limiter("logins", Rate::per_second(5))
            .build()
            .unwrap();
        let kind = tollgate_engine::backend::LimitKind::Concurrency(2);
        let slots = redis.limiter_with_kind("slots", kind).build().unwrap();
        assert!(
            logins
                .try_check("ada", 1)
                .await
                .unwrap()
                .allowed()
                .is_some()
        );
        let held = slots.try_check("ada", 1).await.unwrap();
        (logins, held)
    });
    drop(runtime);
    // Dropped outside of any runtime.
    drop(slots);
    let other = tokio::runtime::Runtime::new().unwrap();
    let answer = other.block_on(logins.try_check("ada", 1));
    assert_eq!(answer.unwrap_err(), StoreError::Stopped);
}

#[test]
fn who_asks_outside_of_a_runtime_is_told_so() {
    let server = Server::start();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let (redis, logins, leased) = {
        let _entered = runtime.enter();
        let redis = Redis::connect(&server.url()).unwrap();
        let limiter = |name| redis.limiter(name, Rate::per_hour(5));
        let logins = limiter("logins").build().unwrap();
        let leased = limiter("searches").leased().build().unwrap();
        (redis.clone(), logins, leased)
    };
    for limiter in [&logins, &leased] {
        let asked = limiter.try_check("ada", 1).now_or_never();
        assert_eq!(asked.unwrap().unwrap_err(), StoreError::NoRuntime);
    }
    let ready = redis.ready(Duration::from_secs(60)).now_or_never();
    assert_eq!(ready, Some(Err(StoreError::NoRuntime)));
    // It is a failure like others, for which the limit has said what is to be done.
    let answer = logins.check("ada").now_or_never().unwrap();
    assert_eq!(answer.fallback, Some(OnStoreFailure::Local));
    assert_eq!(redis.close().now_or_never(), Some(RefundResult::Lost));
    assert_eq!(
        StoreError::NoRuntime.to_string(),
        "a store is asked from within a Tokio runtime with time enabled, and this is none: await it in one \
         that was built with Builder::enable_all"
    );
    // Nothing was charged in the store.
    let left = runtime.block_on(logins.try_check("ada", 0)).unwrap();
    assert_eq!(
        left.decision.remaining, 4,
        "one was decided without the store, and told to it"
    );
}

#[tokio::test]
async fn who_closes_without_a_store_is_told_that_nothing_was_given_back() {
    let server = Server::start();
    let redis = Redis::connect(&server.url()).unwrap();
    let searches = redis.limiter("searches", Rate::per_hour(100_000)).leased();
    let searches = searches.build().unwrap();
    while redis.stats().leased_tokens == 0 {
        assert!(searches.check("ada").await.allowed().is_some());
    }
    drop(server);
    assert_eq!(redis.close().await, RefundResult::Lost);
}

#[tokio::test]
async fn who_closes_is_told_that_all_was_given_back() {
    let server = Server::start();
    let redis = Redis::connect(&server.url()).unwrap();
    let searches = redis.limiter("searches", Rate::per_hour(100_000)).leased();
    let searches = searches.build().unwrap();
    while redis.stats().leased_tokens == 0 {
        assert!(searches.check("ada").await.allowed().is_some());
    }
    assert_eq!(redis.close().await, RefundResult::Refunded);
}
