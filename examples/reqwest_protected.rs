//! A reqwest client that an overloaded or failing API can't hurt: an adaptive concurrency limit, a circuit breaker,
//! and retries within a budget.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use axum::Router;
use axum::http::StatusCode;
use axum::routing::get;
use tokio::net::TcpListener;
use tollgate::concurrency::PermitOutcome;
use tollgate_adaptive::breaker::{CircuitBreaker, Thresholds};
use tollgate_adaptive::protect::{
    Backoff, CallDenied, CallError, CallGuard, Retry, RetryAdvice, RetryBudget,
};
use tollgate_adaptive::{AdaptiveController, Bounds, Little};

type BoxError = Box<dyn std::error::Error>;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), BoxError> {
    let (url, calls) = api().await?;
    let client = reqwest::Client::new();

    // As many concurrent calls as the API can take, between 2 and 50.
    let bulkhead = AdaptiveController::new(Little::new(Bounds::new(2.0, 50.0)?)).concurrency();
    let backend = CallGuard::new()
        .breaker(Arc::new(CircuitBreaker::new(Thresholds::default())))
        .bulkhead(Arc::new(bulkhead.build()));
    // At most one retry for ten calls, so that retries don't overload an API that has just failed.
    let backoff = Backoff::new().waits(Duration::from_millis(1), Duration::from_millis(10));
    let retry = Retry::new(backoff).budget(Arc::new(RetryBudget::percent(10)));

    let fetch = async || {
        let call = || async { client.get(&url).send().await?.error_for_status() };
        let means = |result: &Result<reqwest::Response, reqwest::Error>| match result {
            Ok(_) => PermitOutcome::Success,
            // A bad request is no sign of the API's health.
            Err(error)
                if error
                    .status()
                    .is_some_and(|status| status.is_client_error()) =>
            {
                PermitOutcome::Ignored
            }
            Err(_) => PermitOutcome::Dropped,
        };
        let advise = |error: &CallError<reqwest::Error>| match error {
            CallError::Failed(error)
                if error.status().is_none_or(|status| status.is_server_error()) =>
            {
                RetryAdvice::Retry
            }
            // Calls that the open circuit breaker has stopped aren't retried: stopping them is its purpose.
            _ => RetryAdvice::Stop,
        };
        retry.call(|| backend.call(call, means), advise).await
    };

    // One in twenty calls fails, and is retried.
    let mut served = 0;
    for _ in 0..100 {
        served += u32::from(fetch().await.is_ok());
    }
    println!(
        "{served} of 100 were served, by {} calls",
        calls.load(Ordering::Relaxed)
    );
    assert!(served >= 95, "{served}");

    // The API fails for good: after some calls, nothing is sent any more.
    calls.store(BROKEN, Ordering::Relaxed);
    let mut kept_back = 0;
    for _ in 0..200 {
        if let Err(gave_up) = fetch().await
            && let CallError::NotCalled(CallDenied::Open(_)) = gave_up.error
        {
            kept_back += 1;
        }
    }
    println!("it broke: {kept_back} of 200 weren't even sent");
    assert!(kept_back > 0);
    Ok(())
}

/// From this number of calls on the API is broken.
const BROKEN: u32 = 1_000_000;

/// An API of which one call in twenty fails. Also counts its calls.
async fn api() -> Result<(String, Arc<AtomicU32>), BoxError> {
    let calls = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&calls);
    let answer = move || {
        let number = count.fetch_add(1, Ordering::Relaxed);
        let fails = number >= BROKEN || number % 20 == 19;
        std::future::ready(if fails {
            Err(StatusCode::SERVICE_UNAVAILABLE)
        } else {
            Ok("data")
        })
    };
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}/", listener.local_addr()?);
    let app = Router::new().route("/", get(answer));
    tokio::spawn(async move { axum::serve(listener, app).await });
    Ok((url, calls))
}
