//! A store whose runtime is gone says so.

use std::time::Duration;

use tollgate::Rate;
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
        let slots = redis.limiter_of("slots", kind).build().unwrap();
        assert!(logins.try_check("ada", 1).await.unwrap().allowed);
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
