//! HTTP/1: successive connections, keep-alive, streams, and clients that disconnect.

use std::convert::Infallible;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::routing::get;
use bytes::Bytes;
use http_body::Frame;
use http_body_util::StreamBody;
use tollgate::Rate;
use tollgate_tower::{ConcurrencyLimit, RateLimitLayer, keys};

use super::{Http1, serve, wait_until};
use crate::kit::per_key;

/// Sends without an end.
struct Endless;

impl futures_core::Stream for Endless {
    type Item = Result<Frame<Bytes>, Infallible>;

    fn poll_next(
        self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Self::Item>> {
        let chunk = Bytes::from_static(&[b'x'; 4_096]);
        std::task::Poll::Ready(Some(Ok(Frame::data(chunk))))
    }
}

pub(super) fn endless() -> Body {
    Body::new(StreamBody::new(Endless))
}

#[tokio::test]
async fn connections_that_are_kept_alive_and_new_ones_are_one_client() {
    let (limits, clock) = per_key(Rate::per_minute(3), keys::ClientAddress::new());
    let app = Router::new()
        .route("/", get(|| async { "hello" }))
        .layer(RateLimitLayer::new(limits));
    let served = serve(app).await;
    let mut first = Http1::to(&served).await;
    let mut seen = Vec::new();
    for _ in 0..4 {
        let head = first.get("/").await;
        seen.push((head.status, head.field("retry-after").map(str::to_owned)));
    }
    let passed = (200, None);
    let refused = (429, Some("20".to_owned()));
    assert_eq!(seen, [passed.clone(), passed.clone(), passed, refused]);
    // A refusal leaves the connection as it was, and another one is the same client.
    let mut second = Http1::to(&served).await;
    let head = second.get("/").await;
    assert_eq!(
        head.field("ratelimit-policy"),
        Some("\"requests:3/m\";q=3;w=60")
    );
    assert_eq!(head.field("content-type"), Some("application/problem+json"));
    clock.advance(std::time::Duration::from_secs(20));
    assert_eq!(first.get("/").await.status, 200);
    assert_eq!(second.get("/").await.status, 429);
}

#[tokio::test]
async fn each_connection_may_have_a_limit_of_its_own() {
    let (limits, _) = per_key(Rate::per_minute(1), keys::Connection);
    let app = Router::new()
        .route("/", get(|| async { "hello" }))
        .layer(RateLimitLayer::new(limits));
    let served = serve(app).await;
    let (mut first, mut second) = (Http1::to(&served).await, Http1::to(&served).await);
    assert_eq!(first.get("/").await.status, 200);
    assert_eq!(first.get("/").await.status, 429);
    assert_eq!(second.get("/").await.status, 200);
}

/// The points at which a client disconnects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Gone {
    BeforeItsRequest,
    InItsRequest,
    BeforeTheAnswer,
    AfterTheHead,
    InTheBody,
}

#[tokio::test]
async fn a_client_may_go_away_at_any_point_and_its_slot_comes_back() {
    let limits = ConcurrencyLimit::new(1, keys::ClientAddress::new());
    let limiter = Arc::clone(limits.limiter());
    let app = Router::new()
        .route("/", get(|| async { "hello" }))
        .route(
            "/never",
            get(|| async { std::future::pending::<()>().await }),
        )
        .route("/endless", get(|| async { endless() }))
        .layer(RateLimitLayer::new(limits));
    let served = serve(app).await;
    for gone in [
        Gone::BeforeItsRequest,
        Gone::InItsRequest,
        Gone::BeforeTheAnswer,
        Gone::AfterTheHead,
        Gone::InTheBody,
    ] {
        let mut client = Http1::to(&served).await;
        let request = |path: &str| format!("GET {path} HTTP/1.1\r\nhost: here\r\n\r\n");
        match gone {
            Gone::BeforeItsRequest => {}
            Gone::InItsRequest => client.send("GET /endless HTT").await,
            Gone::BeforeTheAnswer => {
                client.send(&request("/never")).await;
                wait_until("its slot", || !limiter.is_empty()).await;
            }
            Gone::AfterTheHead | Gone::InTheBody => {
                client.send(&request("/endless")).await;
                assert_eq!(client.head().await.status, 200);
                if gone == Gone::InTheBody {
                    client.bytes(100_000).await;
                }
                // The slot is taken as long as it is sent.
                let mut other = Http1::to(&served).await;
                assert_eq!(other.get("/").await.status, 429, "{gone:?}");
            }
        }
        drop(client);
        wait_until("a free slot", || limiter.is_empty()).await;
        let mut next = Http1::to(&served).await;
        assert_eq!(next.get("/").await.status, 200, "{gone:?}");
        wait_until("a free slot", || limiter.is_empty()).await;
    }
}
