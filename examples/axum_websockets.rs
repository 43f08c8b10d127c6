//! Websockets: each client may have two at the same time. A layer sees only the handshake, so the handler holds the
//! permit.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::ws::{WebSocket, WebSocketUpgrade};
use axum::extract::{ConnectInfo, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use tokio::net::TcpListener;
use tollgate::{KeyedConcurrencyLimiter, Rate};
use tollgate_tower::RateLimitLayer;

type BoxError = Box<dyn std::error::Error>;
type Sockets = Arc<KeyedConcurrencyLimiter<IpAddr>>;

async fn upgrade(
    State(sockets): State<Sockets>,
    ConnectInfo(client): ConnectInfo<SocketAddr>,
    upgrade: WebSocketUpgrade,
) -> Response {
    let Ok(permit) = sockets.key_owned(&client.ip()).try_acquire() else {
        return (StatusCode::TOO_MANY_REQUESTS, "two sockets are open\n").into_response();
    };
    // The task owns the permit from here on. If the client disconnects before the upgrade, both are dropped.
    upgrade.on_upgrade(move |socket| async move {
        echo(socket).await;
        permit.success();
    })
}

async fn echo(mut socket: WebSocket) {
    while let Some(Ok(message)) = socket.recv().await {
        if socket.send(message).await.is_err() {
            return;
        }
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), BoxError> {
    let sockets: Sockets = Arc::new(KeyedConcurrencyLimiter::new(2, 10_000));
    let app = Router::new()
        .route("/ws", get(upgrade))
        .with_state(Arc::clone(&sockets))
        // A rate limit on attempts as well.
        .layer(RateLimitLayer::per_client(Rate::per_minute(60)));
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}/ws", listener.local_addr()?);
    let app = app.into_make_service_with_connect_info::<SocketAddr>();
    tokio::spawn(async move { axum::serve(listener, app).await });

    let client = reqwest::Client::new();
    let handshake = || {
        let request = client.get(&url).header("connection", "upgrade");
        let request = request.header("upgrade", "websocket");
        let request = request.header("sec-websocket-version", "13");
        let request = request.header("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ==");
        request.send()
    };
    let mut open = Vec::new();
    for _ in 0..2 {
        let answer = handshake().await?;
        assert_eq!(answer.status(), 101);
        open.push(answer.upgrade().await?);
    }
    let third = handshake().await?;
    assert_eq!(third.status(), 429);
    println!(
        "two are open, and a third is told {}: {}",
        third.status(),
        third.text().await?.trim()
    );

    drop(open);
    let closed = async {
        while !sockets.is_empty() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), closed).await?;
    let fourth = handshake().await?;
    assert_eq!(fourth.status(), 101);
    println!(
        "when they have ended, the next one is told {}",
        fourth.status()
    );
    Ok(())
}
