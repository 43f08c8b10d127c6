//! Upgraded connections: a websocket.

use std::sync::Arc;

use axum::Router;
use axum::extract::ws::{WebSocket, WebSocketUpgrade};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use tollgate::{ConcurrencyLimiter, Rate};
use tollgate_tower::{ConcurrencyLimit, RateLimitLayer, keys};

use super::{Http1, serve, wait_until};
use crate::kit::per_key;

const HANDSHAKE: &str = "GET /ws HTTP/1.1\r\nhost: here\r\nconnection: upgrade\r\nupgrade: websocket\r\n\
                         sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";

async fn echo(mut socket: WebSocket) {
    while let Some(Ok(message)) = socket.recv().await {
        if socket.send(message).await.is_err() {
            return;
        }
    }
}

async fn upgrade(upgrade: WebSocketUpgrade) -> impl IntoResponse {
    upgrade.on_upgrade(echo)
}

/// Sends a text of two letters, and reads it again.
async fn echoes(client: &mut Http1) {
    // The last frame of a text (0x81) of two letters that are masked (0x80) with four zeros.
    client
        .send_bytes(&[0x81, 0x80 | 2, 0, 0, 0, 0, b'h', b'i'])
        .await;
    assert_eq!(client.bytes(4).await, [0x81, 2, b'h', b'i']);
}

#[tokio::test]
async fn a_handshake_is_a_request_and_what_comes_after_it_passes() {
    let (limits, _) = per_key(Rate::per_minute(1), keys::ClientAddress::new());
    let slots = ConcurrencyLimit::new(5, keys::ClientAddress::new());
    let limiter = Arc::clone(slots.limiter());
    let app = Router::new()
        .route("/ws", get(upgrade))
        .layer(RateLimitLayer::new(limits))
        .layer(RateLimitLayer::new(slots));
    let served = serve(app).await;
    let mut client = Http1::to(&served).await;
    client.send(HANDSHAKE).await;
    let head = client.head().await;
    assert_eq!(head.status, 101, "{head:?}");
    assert_eq!(head.field("upgrade"), Some("websocket"));
    for _ in 0..3 {
        echoes(&mut client).await;
    }
    // The answer to the handshake has ended, and its slot is free.
    wait_until("a free slot", || limiter.is_empty()).await;
    let mut second = Http1::to(&served).await;
    second.send(HANDSHAKE).await;
    assert_eq!(second.head().await.status, 429);
}

/// A permit that the handler moves along is held for as long as the connection is open, however it closes.
#[tokio::test]
async fn a_permit_of_the_handler_is_held_until_the_connection_ends() {
    let limiter = Arc::new(ConcurrencyLimiter::new(1));
    let sockets = Arc::clone(&limiter);
    let upgrade = async move |upgrade: WebSocketUpgrade| -> Response {
        let Ok(permit) = sockets.try_acquire_owned() else {
            return StatusCode::SERVICE_UNAVAILABLE.into_response();
        };
        upgrade.on_upgrade(move |socket| async move {
            echo(socket).await;
            drop(permit);
        })
    };
    let app = Router::new()
        .route("/ws", get(upgrade))
        .layer(RateLimitLayer::concurrency(9, keys::ClientAddress::new()));
    let served = serve(app).await;
    for _ in 0..3 {
        let mut client = Http1::to(&served).await;
        client.send(HANDSHAKE).await;
        assert_eq!(client.head().await.status, 101);
        echoes(&mut client).await;
        let mut second = Http1::to(&served).await;
        second.send(HANDSHAKE).await;
        assert_eq!(second.head().await.status, 503);
        assert_eq!(limiter.available(), 0);
        drop(client);
        wait_until("a free permit", || limiter.available() == 1).await;
    }
}
