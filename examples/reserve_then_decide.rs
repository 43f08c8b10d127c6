//! Make a reservation, read its delay, then use it or cancel it.

use std::time::Duration;

use tollgate::{Limiter, Rate, RateDenied};

fn main() -> Result<(), RateDenied> {
    let limiter = Limiter::new(Rate::per_second(10).burst(1));
    limiter.reserve(1)?.wait_blocking();

    let slot = limiter.reserve(1)?;
    if slot.delay() > Duration::from_millis(20) {
        println!(
            "the slot is {:.0?} away: take another route, and give it back",
            slot.delay()
        );
        slot.cancel();
    }

    let slot = limiter.reserve(1)?;
    println!("this one is worth the wait: {:.0?}", slot.wait_blocking());
    Ok(())
}
