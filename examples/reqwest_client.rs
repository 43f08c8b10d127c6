//! A client of a rate-limited API: it slows down before it is denied, and retries a denied call when the API allows
//! it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use axum::Router;
use axum::http::StatusCode;
use axum::middleware::map_response;
use axum::response::Response;
use axum::routing::get;
use reqwest_middleware::ClientBuilder;
use tokio::net::TcpListener;
use tollgate::Rate;
use tollgate_reqwest::{HostPacer, MaxWait, PaceMiddleware, pace_error};
use tollgate_tower::RateLimitLayer;

type BoxError = Box<dyn std::error::Error>;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), BoxError> {
    let (url, refused) = api().await?;

    // Our own rate is far above the API's, so the API's advice counts. No response stops us for more than a minute.
    let pacer = HostPacer::builder(Rate::per_second(500))
        .max_wait(Duration::from_secs(30))
        .max_stop(Duration::from_secs(60))
        .build()?;
    let client = ClientBuilder::new(reqwest::Client::new())
        .with(PaceMiddleware::with_pacer(Arc::new(pacer)).retries(3))
        .build();
    for _ in 0..40 {
        let answer = client.get(&url).send().await?;
        assert_eq!(answer.status(), 200);
    }
    let refused = refused.load(Ordering::Relaxed);
    println!("40 calls were served, {refused} were refused on the way");

    // A call that may not wait fails immediately.
    let slow = PaceMiddleware::new(Rate::per_hour(1));
    let client = ClientBuilder::new(reqwest::Client::new())
        .with(slow)
        .build();
    client.get(&url).send().await?;
    let hasty = client
        .get(&url)
        .with_extension(MaxWait(Duration::from_millis(100)));
    match hasty.send().await {
        Ok(_) => return Err("it should have waited for an hour".into()),
        Err(error) => match pace_error(&error) {
            Some(stalled) => println!("not asked: {stalled}"),
            None => return Err(error.into()),
        },
    }
    Ok(())
}

/// An API that serves a burst of 20 and then 40 a second, and reports its limit. Also counts its denials.
async fn api() -> Result<(String, Arc<AtomicU32>), BoxError> {
    let refused = Arc::new(AtomicU32::new(0));
    let count = {
        let refused = Arc::clone(&refused);
        map_response(move |response: Response| {
            let is_refused = response.status() == StatusCode::TOO_MANY_REQUESTS;
            refused.fetch_add(u32::from(is_refused), Ordering::Relaxed);
            std::future::ready(response)
        })
    };
    let app = Router::new()
        .route("/", get(|| async { "data" }))
        .layer(RateLimitLayer::per_client(Rate::per_second(40).burst(20)))
        .layer(count);
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}/", listener.local_addr()?);
    let app = app.into_make_service_with_connect_info::<SocketAddr>();
    tokio::spawn(async move { axum::serve(listener, app).await });
    Ok((url, refused))
}
