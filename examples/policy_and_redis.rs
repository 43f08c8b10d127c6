//! Two instances of a service share the limits of one policy file through Redis, and go on when it is unreachable.
//!
//! `cargo run --example policy_and_redis` starts its own Redis.

use std::net::SocketAddr;

use axum::Router;
use axum::routing::get;
use tokio::net::TcpListener;
use tollgate_engine::{Engine, Policy};
use tollgate_redis::Redis;
use tollgate_testkit::redis::Server;
use tollgate_testkit::temp_folder::TempFolder;
use tollgate_tower::{PolicyLimits, RateLimitLayer};

type BoxError = Box<dyn std::error::Error>;

const POLICY: &str = "
limits:
- {name: searches, match: {path: /search}, key: ip, rate: 3/h}
- {name: exports, match: {path: /export}, key: ip, rate: 3/h, on_store_failure: closed}
- {name: everything, key: ip, rate: 1000/h, on_store_failure: open}
";

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), BoxError> {
    let store = Server::start();
    let folder = TempFolder::new("policy-and-redis");
    let file = folder.path("policy.yaml");
    std::fs::write(&file, POLICY)?;
    let instances = [
        instance(&store.url(), &file).await?,
        instance(&store.url(), &file).await?,
    ];

    let client = reqwest::Client::new();
    let mut statuses = Vec::new();
    for turn in 0..6 {
        let url = format!("{}/search", instances[turn % 2]);
        statuses.push(client.get(url).send().await?.status().as_u16());
    }
    println!("searches on two instances in turn: {statuses:?}");
    assert_eq!(statuses, [200, 200, 200, 429, 429, 429]);

    // An unreachable store is no denial: each rule states what happens then.
    store.kill();
    let status = async |path: &str| {
        let answer = client.get(format!("{}{path}", instances[0])).send().await?;
        Ok::<u16, reqwest::Error>(answer.status().as_u16())
    };
    let (export, other) = (status("/export").await?, status("/").await?);
    println!("without the store: {export} for exports, {other} for most else");
    assert_eq!((export, other), (503, 200));
    // A client that was denied for an hour still is.
    assert_eq!(status("/search").await?, 429);
    Ok(())
}

/// An instance of the service, which reads the policy and counts in the store.
async fn instance(store: &str, policy: &std::path::Path) -> Result<String, BoxError> {
    let redis = Redis::builder(store)?.build()?;
    let engine = Engine::new(Policy::from_path(policy)?.policy, redis)?;
    let app = Router::new()
        .route("/", get(|| async { "hello" }))
        .route("/search", get(|| async { "found" }))
        .route("/export", get(|| async { "rows" }))
        .layer(RateLimitLayer::new(PolicyLimits::new(engine)));
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}", listener.local_addr()?);
    let app = app.into_make_service_with_connect_info::<SocketAddr>();
    tokio::spawn(async move { axum::serve(listener, app).await });
    Ok(url)
}
