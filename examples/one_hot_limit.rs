//! One limit that every thread hits: stripes keep threads apart, a cached clock reads in 1 ns.

use std::thread;

use tollgate::clock::{Cached, Monotonic};
use tollgate::{Clock, LimitError, Limiter, Rate};

fn main() -> Result<(), LimitError> {
    let limiter = Limiter::builder(Rate::per_second(1_000_000_000).burst(10_000_000))
        .striped()
        .clock(Cached::new())
        .build()?;
    let clock = Monotonic::new();
    let start = clock.now();
    let served: usize = thread::scope(|scope| {
        let threads: Vec<_> = (0..2)
            .map(|_| scope.spawn(|| (0..1_000_000).filter(|_| limiter.allow()).count()))
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().expect("no panic"))
            .sum()
    });
    let elapsed = clock.now() - start;
    println!("{served} of 2000000 checks passed in {elapsed:.0?}");
    println!(
        "the clock was at most {:.1?} stale",
        limiter.clock().staleness()
    );
    Ok(())
}
