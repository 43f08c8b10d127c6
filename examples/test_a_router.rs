//! Tests a router behind a layer on a clock that the test moves: no test waits, and none depends on the speed of the
//! machine.

use std::net::SocketAddr;
use std::time::Duration;

use axum::body::Body;
use axum::http::Request;
use axum::{Router, routing::get};
use tollgate::{Rate, clock::Manual};
use tollgate_tower::{RateLimitLayer, RatePerKey, keys};
use tower::ServiceExt;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let clock = Manual::new();
    let limits = RatePerKey::with_clock(
        Rate::per_minute(1),
        keys::ClientAddress::new(),
        clock.clone(),
    )?;
    let app: Router = Router::new()
        .route("/", get(|| async { "hello" }))
        .layer(RateLimitLayer::new(limits));
    let client: SocketAddr = "192.0.2.1:1".parse()?;
    let mut statuses = Vec::new();
    for wait in [0, 0, 60] {
        clock.advance(Duration::from_secs(wait));
        let mut request = Request::new(Body::empty());
        // Where axum puts the address of a connection; a request in process has none.
        request.extensions_mut().insert(client);
        statuses.push(app.clone().oneshot(request).await?.status().as_u16());
    }
    assert_eq!(statuses, [200, 429, 200]);
    println!("{statuses:?}");
    Ok(())
}
