//! A loud and a quiet client share 100 a second: first in order of arrival, then fairly.

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tollgate::clock::{Manual, Tokio};
use tollgate::{FairLimiter, Limiter, Rate};

const RATE: Rate = Rate::per_second(100).burst(10);
const SECONDS: u64 = 10;

/// The quiet client sends ten requests a second, the loud one sends all the time.
fn first_come_first_served() -> [u64; 2] {
    let clock = Manual::new();
    let limiter = Limiter::with_clock(RATE, clock.clone());
    let [mut loud, mut quiet] = [0; 2];
    for milli in 0..SECONDS * 1_000 {
        loud += (0..20).filter(|_| limiter.allow()).count() as u64;
        if milli % 100 == 50 {
            quiet += u64::from(limiter.allow());
        }
        clock.advance(Duration::from_millis(1));
    }
    [loud, quiet]
}

/// Both clients in one fair queue. Also returns the longest wait of the quiet one.
async fn in_a_fair_queue() -> Result<([u64; 2], Duration), Box<dyn Error>> {
    let limiter = FairLimiter::builder(RATE).clock(Tokio::new()).build()?;
    let limiter = Arc::new(limiter);
    let loud = Arc::new(AtomicU64::new(0));
    for _ in 0..200 {
        let (limiter, loud) = (Arc::clone(&limiter), Arc::clone(&loud));
        tokio::spawn(async move {
            while limiter.acquire("loud").await.is_ok() {
                loud.fetch_add(1, Ordering::Relaxed);
            }
        });
    }
    let mut longest = Duration::ZERO;
    let mut quiet = 0;
    let mut ticks = tokio::time::interval(Duration::from_millis(100));
    for _ in 0..SECONDS * 10 {
        ticks.tick().await;
        longest = longest.max(limiter.acquire("quiet").await?);
        quiet += 1;
    }
    Ok(([loud.load(Ordering::Relaxed), quiet], longest))
}

#[tokio::main(flavor = "current_thread", start_paused = true)]
async fn main() -> Result<(), Box<dyn Error>> {
    let asked = SECONDS * 10;
    let [loud, quiet] = first_come_first_served();
    println!("as they come: loud {loud}, quiet {quiet} of the {asked} that it asked for");
    assert!(quiet <= asked / 10, "the plain limiter knows no clients");

    let ([loud, quiet], longest) = in_a_fair_queue().await?;
    println!(
        "fair:         loud {loud}, quiet {quiet} of {asked}, none waited longer than {longest:?}"
    );
    assert_eq!(quiet, asked);
    assert!(
        loud >= SECONDS * 90 - 10,
        "what the quiet one leaves is not wasted: {loud}"
    );
    assert!(
        longest <= Duration::from_millis(20),
        "a turn of the loud one, and its own"
    );
    Ok(())
}
