//! HTTP/2: streams of one connection, and clients that reset them.

use std::sync::Arc;

use axum::Router;
use axum::routing::get;
use bytes::Bytes;
use http::Request;
use tokio::net::TcpStream;
use tollgate::Rate;
use tollgate_tower::{ConcurrencyLimit, RateLimitLayer, keys};

use super::http1::endless;
use super::{LONG, Served, serve, wait_until};
use crate::kit::per_key;

type Client = h2::client::SendRequest<Bytes>;

async fn connect(served: &Served) -> (Client, tokio::task::JoinHandle<()>) {
    let stream = TcpStream::connect(served.address).await;
    let (client, connection) = h2::client::handshake(stream.expect("a connection"))
        .await
        .expect("a handshake");
    let task = tokio::spawn(async move {
        // It ends when the client has gone.
        let _ = connection.await;
    });
    (client, task)
}

async fn get_stream(client: &Client, path: &str) -> http::Response<h2::RecvStream> {
    let mut client = client.clone().ready().await.expect("ready");
    let uri = format!("http://here{path}");
    let request = Request::get(uri).body(()).expect("a request");
    let (response, _) = client.send_request(request, true).expect("sent");
    response.await.expect("an answer")
}

#[tokio::test]
async fn streams_of_a_connection_are_one_client_and_read_lower_case_fields() {
    let (limits, _) = per_key(Rate::per_minute(2), keys::ClientAddress::new());
    let app = Router::new()
        .route("/", get(|| async { "hello" }))
        .layer(RateLimitLayer::new(limits));
    let served = serve(app).await;
    let (client, task) = connect(&served).await;
    let mut seen = Vec::new();
    for _ in 0..3 {
        let response = get_stream(&client, "/").await;
        let left = response.headers()["ratelimit"].to_str().expect("text");
        seen.push((response.status().as_u16(), left.to_owned()));
    }
    let statuses: Vec<_> = seen.iter().map(|one| one.0).collect();
    assert_eq!(statuses, [200, 200, 429], "{seen:?}");
    task.abort();
}

#[tokio::test]
async fn a_stream_that_is_reset_and_a_connection_that_is_closed_free_their_slots() {
    let limits = ConcurrencyLimit::new(2, keys::Connection);
    let limiter = Arc::clone(limits.limiter());
    let app = Router::new()
        .route("/", get(|| async { "hello" }))
        .route("/endless", get(|| async { endless() }))
        .layer(RateLimitLayer::new(limits));
    let served = serve(app).await;
    let (client, task) = connect(&served).await;
    let first = get_stream(&client, "/endless").await;
    let second = get_stream(&client, "/endless").await;
    assert_eq!(get_stream(&client, "/").await.status(), 429);
    // Another connection has slots of its own.
    let (other, other_task) = connect(&served).await;
    assert_eq!(get_stream(&other, "/").await.status(), 200);
    // Dropping a stream resets it.
    drop(first);
    let free = async || get_stream(&client, "/").await.status() == 200;
    let freed = async {
        while !free().await {
            tokio::task::yield_now().await;
        }
    };
    let freed = tokio::time::timeout(LONG, freed).await;
    freed.expect("the reset stream's slot is free in time");
    drop(second);
    drop((client, other));
    task.abort();
    other_task.abort();
    wait_until("free slots", || limiter.is_empty()).await;
}
