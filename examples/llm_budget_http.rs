//! The tokens of a model's response are known when it has been sent. An estimate is reserved while the response is
//! written, and the unused part is refunded at the end of the body.

use std::net::SocketAddr;

use axum::routing::post;
use axum::{Extension, Router};
use tokio::net::TcpListener;
use tollgate::Rate;
use tollgate_tower::{RateLimitLayer, Request, Settle, SettlingRatePerKey, UsageReporter, keys};

type BoxError = Box<dyn std::error::Error>;

/// The most that a response can cost, if the client doesn't state it.
const ESTIMATE: u64 = 4_000;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), BoxError> {
    // 10,000 tokens for each API key: a bit more than two estimates.
    let limits = SettlingRatePerKey::new(Rate::per_hour(10_000), keys::Header::new("x-api-key"))?;
    let limit = RateLimitLayer::new(limits.named("tokens")).configure(|guard| {
        let estimate = |head: &tollgate_tower::RequestHead| {
            let told = head
                .single_line("x-max-tokens")
                .and_then(|line| str::from_utf8(line).ok());
            told.and_then(|told| told.parse().ok()).unwrap_or(ESTIMATE)
        };
        guard.cost(estimate).settle(Settle::ReportedByHandler)
    });
    let app = Router::new()
        .route("/complete", post(complete))
        .layer(limit);
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}/complete", listener.local_addr()?);
    let app = app.into_make_service_with_connect_info::<SocketAddr>();
    tokio::spawn(async move { axum::serve(listener, app).await });

    let client = reqwest::Client::new();
    let mut served = 0;
    loop {
        let request = client.post(&url).header("x-api-key", "ada");
        let answer = request.body("tell me a story").send().await?;
        if answer.status() == 429 {
            println!("refused: {}", answer.text().await?);
            break;
        }
        answer.text().await?;
        served += 1;
    }
    // By the estimate alone, only two would have passed.
    println!(
        "{served} answers of 1,000 tokens each, of a budget of 10,000 and an estimate of {ESTIMATE}"
    );
    assert_eq!(served, 7);
    // A request that declares more than the whole limit can never pass, and its response says so.
    let request = client
        .post(&url)
        .header("x-api-key", "bob")
        .header("x-max-tokens", "20000");
    let never = request.send().await?;
    assert!(never.status().as_u16() == 429 && !never.headers().contains_key("retry-after"));
    println!("never: {}", never.text().await?);
    Ok(())
}

/// Reports the model's usage as it grows.
async fn complete(Extension(usage): Extension<UsageReporter>) -> String {
    let mut story = String::new();
    for word in ["once ", "upon ", "a ", "time"] {
        story.push_str(word);
        usage.add(250);
    }
    story
}
