//! A striped limiter whose stripes have leases when a hold begins: the leases are returned first, and no stripe takes
//! another until everything is settled.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use tollgate::clock::Manual;
use tollgate::{CompositeLimiter, Limit, Limiter, Rate};

/// A hundred tokens to a lease: one a hundredth of a microsecond.
const RATE: u64 = 100_000_000;
const BURST: u64 = 100_000;
const THREADS: usize = 4;
const MINUTE: Duration = Duration::from_secs(60);

fn limiter(clock: &Manual) -> Limiter<Manual> {
    let rate = Rate::per_second(RATE).burst(BURST);
    let striped = Limiter::builder(rate).stripes(THREADS);
    striped
        .clock(clock.clone())
        .build()
        .expect("a rate that fits")
}

/// How many pass in each of some threads, each with a stripe of its own.
fn passed(limiter: &Limiter<Manual>, most: u64) -> u64 {
    thread::scope(|scope| {
        let one = || (0..most).take_while(|_| limiter.allow()).count() as u64;
        let all: Vec<_> = (0..THREADS).map(|_| scope.spawn(one)).collect();
        all.into_iter()
            .map(|one| one.join().expect("no panic"))
            .sum()
    })
}

#[test]
fn leases_that_are_out_when_something_is_held_are_not_spent_beside_it() {
    let clock = Manual::new();
    let (limiter, stack) = (limiter(&clock), CompositeLimiter::new());
    let before = passed(&limiter, 3);
    assert_eq!(before, 12);
    let leased = BURST - limiter.peek().remaining;
    assert!(leased > before, "stripes have leases: {leased}");
    let rest = limiter.peek().remaining;
    let levels = [Limit::estimated("hot", &limiter, rest)];
    let hold = stack.hold(&levels, MINUTE).expect("as much as is left");
    assert!(before + passed(&limiter, BURST) + rest <= BURST);
    hold.settle(0);
    let after = passed(&limiter, BURST);
    assert!(before + after <= BURST, "{after}");
    // What the leases had is given up, and no more.
    assert!(after >= rest, "{after} of {rest}");
    clock.advance(Duration::from_secs(1));
    assert_eq!(limiter.peek().remaining, BURST);
    assert_eq!(passed(&limiter, 3), 12);
    assert!(
        BURST - limiter.peek().remaining > 12,
        "leases are taken again"
    );
}

/// A lease that was taken beyond what is out would still be there when all that was charged has drained.
#[test]
fn no_lease_is_taken_beyond_what_is_held() {
    let clock = Manual::new();
    let (limiter, stack) = (limiter(&clock), CompositeLimiter::new());
    let levels = [Limit::estimated("hot", &limiter, BURST / 2)];
    let hold = stack.hold(&levels, MINUTE).expect("a full bucket");
    assert_eq!(passed(&limiter, 3), 12);
    hold.settle(0);
    clock.advance(Duration::from_micros(50));
    assert_eq!(limiter.peek().remaining, BURST);
    assert_eq!(passed(&limiter, BURST), BURST);
}

#[test]
fn holds_beside_threads_that_spend_keep_the_bound() {
    let clock = Manual::new();
    let (limiter, stack) = (limiter(&clock), CompositeLimiter::new());
    let (is_over, spent) = (AtomicBool::new(false), AtomicU64::new(0));
    let mut elapsed = 0;
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    let own = (0..50).filter(|_| limiter.allow()).count() as u64;
                    spent.fetch_add(own, Ordering::Relaxed);
                }
            });
        }
        for step in 0..4_000_u64 {
            let cost = 1 + step * 7_919 % 5_000;
            let levels = [Limit::estimated("hot", &limiter, cost)];
            let hold = stack.hold(&levels, MINUTE);
            let nanos = step * 104_729 % 20_000;
            clock.advance(Duration::from_nanos(nanos));
            elapsed += nanos;
            if let Ok(hold) = hold {
                let own = cost * (step % 4) / 3;
                hold.settle(own);
                spent.fetch_add(own, Ordering::Relaxed);
            }
        }
        is_over.store(true, Ordering::Relaxed);
    });
    // One in ten nanoseconds.
    let may = BURST + elapsed / 10;
    let spent = spent.load(Ordering::Relaxed);
    assert!(spent <= may, "{spent} of {may}");
    clock.advance(Duration::from_secs(1));
    assert_eq!(limiter.peek().remaining, BURST);
}
