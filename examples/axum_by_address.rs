//! An axum service with a limit of three requests an hour for each client address. Health checks are exempt.

use std::net::SocketAddr;

use axum::Router;
use axum::routing::get;
use tokio::net::TcpListener;
use tollgate::Rate;
use tollgate_tower::RateLimitLayer;

type BoxError = Box<dyn std::error::Error>;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), BoxError> {
    let app = Router::new()
        .route("/", get(|| async { "hello\n" }))
        .route("/healthz", get(|| async { "ok\n" }))
        .layer(RateLimitLayer::per_client(Rate::per_hour(3)).exempt_probes());
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}", listener.local_addr()?);
    // The server has to report the address of each connection: without it, every request gets 500.
    let app = app.into_make_service_with_connect_info::<SocketAddr>();
    tokio::spawn(async move { axum::serve(listener, app).await });

    let client = reqwest::Client::new();
    let mut statuses = Vec::new();
    for _ in 0..5 {
        let answer = client.get(&url).send().await?;
        statuses.push(answer.status().as_u16());
        let field = |name| {
            answer
                .headers()
                .get(name)
                .and_then(|value| value.to_str().ok())
        };
        println!(
            "{}  ratelimit: {}  retry-after: {}",
            answer.status(),
            field("ratelimit").unwrap_or("-"),
            field("retry-after").unwrap_or("-"),
        );
        if answer.status().as_u16() == 429 {
            println!("  {}", answer.text().await?);
        }
    }
    assert_eq!(statuses, [200, 200, 200, 429, 429]);
    // A client that forges an address is still the same client.
    let forged = client.get(&url).header("x-forwarded-for", "192.0.2.1");
    assert_eq!(forged.send().await?.status(), 429);
    let probe = client.get(format!("{url}/healthz")).send().await?;
    assert_eq!(probe.status(), 200);
    println!("{}  /healthz", probe.status());
    Ok(())
}
