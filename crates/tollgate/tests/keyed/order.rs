//! Times given in any order: no key ever gets more than its bound.

use std::time::Duration;

use tollgate::clock::Manual;
use tollgate::{KeyedLimiter, Rate, WhenFull};
use tollgate_testkit::traffic::Random;

use crate::{BASE, index, nanos};

const KEYS: usize = 300;

/// Asks at random times of `span` and compares what each key got with the bound of the whole span.
fn random_times(capacity: usize, span: Duration, longest_wait: Duration, seed: u64) {
    let rate = Rate::every(Duration::from_millis(100)).burst(5);
    let limiter = KeyedLimiter::builder(rate, capacity)
        .at_cap(WhenFull::DenyNew)
        .longest_wait(longest_wait)
        .clock(Manual::starting_at(BASE))
        .build()
        .expect("a rate that fits");
    let mut random = Random::new(seed);
    let mut admitted = [0u64; KEYS];
    for turn in 0..150_000u32 {
        // The times drift, so that keys go idle and come back, and jump about a lot.
        let drift = span.mul_f64(f64::from(turn) / 150_000.0);
        let jump = Duration::from_nanos(random.below(nanos(span)));
        let since = if random.below(3) == 0 { jump } else { drift };
        let key = index(random.below(KEYS as u64));
        let cost = 1 + random.below(3);
        if limiter.key(&key).check_at(BASE + since, cost).is_allowed() {
            admitted[key] += cost;
        }
    }
    let bound = 5 + nanos(span) / 100_000_000;
    for (key, admitted) in admitted.into_iter().enumerate() {
        assert!(admitted <= bound, "key {key}: {admitted} of {bound}");
    }
    assert!(admitted.iter().sum::<u64>() > bound, "{admitted:?}");
}

#[test]
fn explicit_times_in_random_order_never_exceed_the_bound() {
    let minute = Duration::from_secs(60);
    for (seed, capacity) in [20, 200, 1_000].into_iter().enumerate() {
        random_times(capacity, Duration::from_secs(4), minute, seed as u64);
    }
}

#[test]
fn times_that_go_back_further_than_the_longest_wait_gain_nothing() {
    for (seed, capacity) in [20, 1_000].into_iter().enumerate() {
        random_times(
            capacity,
            Duration::from_secs(40),
            Duration::ZERO,
            seed as u64,
        );
    }
}
