//! Common limits, each on a clock that the program moves, so that the numbers are always the same.

use std::time::Duration;

use tollgate::clock::{Clock, Manual};
use tollgate::{Algorithm, KeyedLimiter, Limiter, Rate, StoredKeyLimiter};

type BoxError = Box<dyn std::error::Error>;

const SECOND: Duration = Duration::from_secs(1);

fn main() -> Result<(), BoxError> {
    payment_client()?;
    worker()?;
    user()?;
    bucket_before_a_meter()?;
    fan_out()
}

/// A client of a payment provider: 100 a second, bursts of 200.
fn payment_client() -> Result<(), BoxError> {
    let clock = Manual::new();
    let provider = Limiter::with_clock(Rate::per_second(100).burst(200), clock.clone());
    assert_eq!((0..300).filter(|_| provider.allow()).count(), 200);
    clock.advance(SECOND);
    assert_eq!((0..300).filter(|_| provider.allow()).count(), 100);
    println!("payment client: 200 at once, then 100 a second");
    Ok(())
}

/// A worker that may start 1,000 jobs a minute, in one burst if necessary.
fn worker() -> Result<(), BoxError> {
    let clock = Manual::new();
    let jobs = Limiter::with_clock(Rate::per_minute(1_000), clock.clone());
    assert_eq!((0..2_000).filter(|_| jobs.allow()).count(), 1_000);
    // It waits in the queue instead of being denied, and a wait that is too long fails immediately.
    let wait = jobs.reserve(1)?;
    assert_eq!(wait.delay(), Duration::from_millis(60));
    let patience = Duration::from_millis(50);
    let hasty = jobs.acquire().timeout(patience).wait_blocking();
    let Err(refused) = hasty else {
        return Err("it should take longer than that".into());
    };
    println!(
        "worker: 1,000 at once, the next in {:?}; {refused}",
        wait.delay()
    );
    Ok(())
}

/// Each user: 100 a minute, bursts of 100.
fn user() -> Result<(), BoxError> {
    let clock = Manual::new();
    let users = KeyedLimiter::builder(Rate::per_minute(100), 1_000_000);
    let users = users.clock(clock.clone()).build()?;
    assert_eq!((0..150).filter(|_| users.allow("ada")).count(), 100);
    assert!(users.allow("bob"), "others have their own");
    clock.advance(Duration::from_millis(600));
    assert!(users.allow("ada") && !users.allow("ada"));
    println!("user: 100 at once, then one every 600 ms");
    Ok(())
}

/// A token bucket for each address, in front of a leaky meter to the backend. Clients may burst, and the backend gets
/// no more than it can take. If the second limit denies a request, the charge to the first is refunded.
fn bucket_before_a_meter() -> Result<(), BoxError> {
    let clock = Manual::new();
    let bucket = StoredKeyLimiter::<String>::builder(Rate::per_second(10).burst(20), 10_000);
    let bucket = bucket
        .algorithm(Algorithm::TokenBucket)
        .clock(clock.clone())
        .build()?;
    let meter = Limiter::builder(Rate::per_second(50).burst(30));
    let meter = meter
        .algorithm(Algorithm::LeakyBucket)
        .clock(clock.clone())
        .build()?;
    let serve = |address: &str| {
        let client = bucket.key(address);
        if !client.allow() {
            return "too many of one";
        }
        if !meter.allow() {
            client.refund(1);
            return "too many of all";
        }
        "served"
    };
    let mut counts = std::collections::BTreeMap::new();
    for address in ["192.0.2.1", "192.0.2.2", "192.0.2.3"] {
        for _ in 0..25 {
            *counts.entry(serve(address)).or_insert(0) += 1;
        }
    }
    println!("bucket before a meter: {counts:?}");
    assert_eq!(counts["served"], 30);
    assert_eq!(counts["too many of one"], 5);
    assert_eq!(counts["too many of all"], 40);
    assert_eq!(bucket.key("192.0.2.3").peek().remaining, 20, "given back");
    Ok(())
}

/// One `acquire_n(100)` before a fan-out of 100: a single wait, and all of them go together or none.
fn fan_out() -> Result<(), BoxError> {
    let clock = Manual::new();
    let calls = Limiter::with_clock(Rate::per_second(1_000).burst(100), clock.clone());
    calls.acquire_n(100).wait_blocking()?;
    let before = clock.now();
    let waiting = calls.reserve(100)?;
    assert_eq!(waiting.delay(), Duration::from_millis(100));
    clock.advance(waiting.delay());
    println!(
        "fan-out: 100 calls after one wait of {:?}",
        clock.now() - before
    );
    Ok(())
}
