//! A limit for each user: tiers at the call, a block, and a flood of new keys that changes nothing.

use std::error::Error;
use std::time::Duration;

use tollgate::clock::Manual;
use tollgate::{Algorithm, KeyedLimiter, Rate, Tier};

fn main() -> Result<(), Box<dyn Error>> {
    let limiter = KeyedLimiter::builder(Rate::per_second(2), 10_000)
        .clock(Manual::new())
        .build()?;
    let served = |user: &str| (0..10).filter(|_| limiter.allow(user)).count();
    println!(
        "ada gets {} of 10, bob gets {} of 10",
        served("ada"),
        served("bob")
    );

    // A tier is compiled once. Any function of the key may choose it.
    let enterprise = Tier::new(Algorithm::Gcra, Rate::per_second(1_000))?;
    let decision = limiter.key("acme").at(&enterprise)?.check_n(500);
    println!(
        "acme: allowed {}, {} left",
        decision.is_allowed(),
        decision.remaining
    );

    limiter
        .key("mallory")
        .block_for(Duration::from_secs(3_600))?;
    println!(
        "mallory retries after {:?}",
        limiter.check("mallory").wait_or_max()
    );

    // A hundred thousand made-up keys: memory doesn't grow, and no client evades its limit by them.
    let flood = (0..100_000)
        .filter(|made_up| limiter.allow(made_up))
        .count();
    println!(
        "of the flood {flood} passed; ada {}, mallory {}",
        served("ada"),
        served("mallory")
    );
    println!(
        "at most {} KiB, {:?}",
        limiter.memory_bound() / 1024,
        limiter.stats()
    );
    Ok(())
}
