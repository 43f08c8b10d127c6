//! Live changes: spent tokens stay spent, and an emergency can switch the limit off.

use tollgate::clock::Manual;
use tollgate::{LimitError, Limiter, Rate, limiter::Switch};

fn main() -> Result<(), LimitError> {
    let limiter = Limiter::with_clock(Rate::per_second(10), Manual::new());
    let _ = limiter.allow_n(8);
    println!("{}: {} left", limiter.rate(), limiter.peek().remaining);

    limiter.set_rate("100/s burst 50".parse().expect("a rate"))?;
    println!("{}: {} left", limiter.rate(), limiter.peek().remaining);

    limiter.set_switch(Switch::Bypass);
    println!(
        "bypassed: {} pass",
        (0..1_000).filter(|_| limiter.allow()).count()
    );

    limiter.set_switch(Switch::Enforce);
    println!(
        "enforced: {} pass",
        (0..1_000).filter(|_| limiter.allow()).count()
    );

    match limiter.set_rate(Rate::per_day(1).burst(1_000)) {
        Err(error) => println!("refused, nothing changed: {error}"),
        Ok(()) => println!("unexpected: accepted"),
    }
    Ok(())
}
