//! A striped limit whose remainders move between a stripe and the shared word, on random schedules: three
//! threads on one stripe have more interleavings than can be tried.
#![cfg(shuttle)]

use std::sync::Arc;

use shuttle::scheduler::{PctScheduler, RandomScheduler};
use shuttle::{Config, Runner, thread};
use tollgate::clock::Manual;
use tollgate::{Limiter, Rate, Timestamp};

const NOW: Timestamp = Timestamp::from_secs(5);
const BURST: u64 = 32;

fn passes(limiter: &Limiter<Manual>, cost: u64) -> u64 {
    cost * u64::from(limiter.check_at(NOW, cost).is_allowed())
}

/// A lease is 4 tokens. Costs below it are spent from the stripe, a cost of 4 returns the stripe's remainder.
fn model() {
    let limiter = Limiter::builder(Rate::per_second(10_000_000).burst(BURST))
        .stripes(1)
        .clock(Manual::starting_at(NOW))
        .build();
    let limiter = Arc::new(limiter.expect("a rate that fits"));
    let mut total = passes(&limiter, 16) + passes(&limiter, 3);
    let bodies: [fn(&Limiter<Manual>) -> u64; 3] = [
        |limiter| passes(limiter, 3) + passes(limiter, 2),
        |limiter| passes(limiter, 4),
        |limiter| passes(limiter, 1),
    ];
    let threads = bodies.map(|body| {
        let limiter = Arc::clone(&limiter);
        thread::spawn(move || body(&limiter))
    });
    for thread in threads {
        total += thread.join().expect("no panic");
    }
    while passes(&limiter, 1) == 1 {
        total += 1;
    }
    assert!(total <= BURST, "{total} of {BURST}");
}

#[test]
fn a_rest_that_was_handed_back_is_not_spent_here_as_well() {
    const RUNS: usize = 30_000;
    Runner::new(PctScheduler::new_from_seed(7, 5, RUNS), Config::new()).run(model);
    Runner::new(RandomScheduler::new_from_seed(8, RUNS), Config::new()).run(model);
}
