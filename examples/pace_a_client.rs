//! A client that sends at most 100 a second, and gives up when the wait would be too long.

use std::time::Duration;

use tollgate::{Limiter, Rate, RateDenied};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), RateDenied> {
    let limiter = Limiter::new(Rate::per_second(100).burst(10));
    let mut waited = Duration::ZERO;
    for _ in 0..30 {
        waited += limiter.acquire().await?;
    }
    println!("30 requests sent, {waited:.0?} spent waiting");

    // Ten more would wait 100 ms: with a timeout of 20 ms this fails immediately.
    match limiter
        .acquire_n(10)
        .timeout(Duration::from_millis(20))
        .await
    {
        Err(RateDenied::DeadlineExceeded(decision)) => {
            println!("gave up: ready in {:.0?}", decision.wait_or_max())
        }
        other => println!("unexpected: {other:?}"),
    }
    Ok(())
}
