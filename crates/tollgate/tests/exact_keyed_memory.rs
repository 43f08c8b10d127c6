//! The memory of an exact-key table stays within its stated bound, as the allocator counts it.

use std::time::Duration;

use tollgate::clock::Manual;
use tollgate::{Algorithm, Rate, StoredKeyLimiter, Tier, WhenFull, core::WindowAlignment};
use tollgate_testkit::allocation_counter::{CountingAllocator, live_bytes};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// What the counters of a limiter take, which don't belong to its table.
const COUNTERS: usize = 64 << 10;

/// What was allocated since, less what was freed. The thread may have freed what another allocated,
/// so the count itself may lie below zero.
fn since(before: usize) -> usize {
    live_bytes().wrapping_sub(before)
}

/// Fills a table beyond its capacity, blocks as many keys as it takes, and changes its rate: the bytes
/// that it came to use at most, and its bound.
fn filled(algorithm: Algorithm, rate: Rate, capacity: usize) -> (usize, usize) {
    let before = live_bytes();
    let limiter: StoredKeyLimiter<u64, Manual> = StoredKeyLimiter::builder(rate, capacity)
        .algorithm(algorithm)
        .at_cap(WhenFull::DenyNew)
        .clock(Manual::new())
        .build()
        .expect("a rate that fits");
    let mut most = 0;
    let keys = capacity as u64 * 3 / 2;
    for round in 0..rate.count() {
        for key in 0..keys {
            let _ = limiter.allow(&key);
        }
        limiter.clock().advance(Duration::from_nanos(1 + round));
        most = most.max(since(before));
    }
    assert!(limiter.len() >= capacity);
    (0..15).for_each(|_| limiter.set_rate(rate).expect("a rate that fits"));
    most = most.max(since(before));
    for key in 0..2 * keys {
        let _ = limiter.key(&key).block_for(Duration::from_secs(60));
    }
    most = most.max(since(before));
    (most, limiter.memory_bound())
}

#[test]
fn a_full_table_stays_within_its_bound() {
    for algorithm in [
        Algorithm::Gcra,
        Algorithm::TokenBucket,
        Algorithm::LeakyBucket,
        Algorithm::FixedWindow(WindowAlignment::FirstHit),
        Algorithm::SlidingCounter,
        Algorithm::SlidingLog,
    ] {
        for capacity in [100, 20_000] {
            let (used, bound) = filled(algorithm, Rate::per_hour(5), capacity);
            let case = format!("{algorithm:?} {capacity}: {used} of {bound}");
            assert!(used <= bound + COUNTERS, "{case}");
            // And the bound is one to plan by: no more than twice what is used.
            assert!(capacity < 1_000 || used * 2 > bound, "{case}");
        }
    }
}

#[test]
fn an_empty_table_takes_next_to_nothing() {
    let before = live_bytes();
    let limiter = StoredKeyLimiter::<u64>::new(Rate::per_second(1), 1_000_000);
    let used = since(before);
    assert!(used * 100 < limiter.memory_bound(), "{used}");
}

#[test]
fn a_check_of_a_key_that_is_there_allocates_nothing() {
    let limiter = StoredKeyLimiter::<String>::new(Rate::per_second(1_000_000), 100);
    let tier = Tier::new(limiter.algorithm(), Rate::per_hour(5)).expect("a rate that fits");
    let mut decisions = Vec::with_capacity(4);
    limiter.key("user:42").penalize(100_000).expect("a slot");
    let _ = limiter.key("user:43").at(&tier).unwrap().check_n(3);
    let before = live_bytes();
    for _ in 0..1_000 {
        let _ = limiter.allow("user:42");
        let _ = limiter.check_n("user:42", 2);
        limiter.check_many(&[("user:42", 1), ("new", 0)], &mut decisions);
        let _ = limiter.key("user:43").at(&tier).unwrap().check_n(1);
        limiter.key("user:42").refund(1);
    }
    assert_eq!(since(before), 0);
}
