//! Real threads on one limiter: never more than the bound in total.

use std::time::Duration;

use tollgate::clock::{Cached, Manual, Monotonic};
use tollgate::{Algorithm, Clock, Limiter, Rate, core::WindowAlignment, limiter::Switch};
use tollgate_testkit::threads::run_together;

const THREADS: u32 = 4;

#[test]
fn at_one_instant_all_threads_share_one_burst() {
    for algorithm in [
        Algorithm::Gcra,
        Algorithm::TokenBucket,
        Algorithm::LeakyBucket,
        Algorithm::FixedWindow(WindowAlignment::default()),
        Algorithm::SlidingLog,
        Algorithm::SlidingCounter,
    ] {
        let limiter = Limiter::builder(Rate::per_second(10_000))
            .algorithm(algorithm)
            .clock(Manual::new())
            .build()
            .unwrap();
        let total = run_together(THREADS, |_| {
            (0..5_000).map(|_| u64::from(limiter.allow())).sum()
        });
        assert_eq!(total, 10_000, "{algorithm:?}");
    }
}

/// Law 2 over the whole run: what passed is at most the burst plus what time refilled.
/// `staleness` is asked after the run.
fn stays_within_its_bound<C: Clock>(limiter: &Limiter<C>, staleness: impl Fn() -> Duration) {
    let rate = limiter.rate();
    let clock = Monotonic::new();
    let start = clock.now();
    let total = run_together(THREADS, |number| {
        let costs = [1, 2, 1, 3];
        (0..100_000)
            .map(|call| {
                let cost = costs[(call + number as usize) % costs.len()];
                cost * u64::from(limiter.allow_n(cost))
            })
            .sum()
    });
    let elapsed = clock.now() - start + staleness();
    let bound = rate.burst_size() as f64 + rate.as_per_second() * elapsed.as_secs_f64() + 1.0;
    assert!((total as f64) <= bound, "{total} of {bound}");
    assert!(total >= rate.burst_size() / 2, "{total}");
}

#[test]
fn over_time_threads_stay_within_the_bound() {
    let rate = Rate::per_second(1_000_000).burst(1_000);
    stays_within_its_bound(&Limiter::new(rate), || Duration::ZERO);
    let striped = Limiter::builder(Rate::per_second(20_000_000).burst(100_000))
        .stripes(2)
        .build()
        .unwrap();
    stays_within_its_bound(&striped, || Duration::ZERO);
    let clock = Cached::new();
    let cached = Limiter::with_clock(rate, clock.clone());
    // A clock that lags at the start has caught up at the end, or the gap was measured.
    stays_within_its_bound(&cached, || clock.staleness());
}

#[test]
fn reserving_and_cancelling_under_threads_never_adds_tokens() {
    let limiter = Limiter::with_clock(Rate::per_second(1).burst(1_000), Manual::new());
    let total = run_together(THREADS, |number| {
        let mut kept = 0;
        for call in 0..2_000 {
            let Ok(slot) = limiter.reserve(1) else {
                continue;
            };
            if (call + number) % 3 == 0 && slot.delay().is_zero() {
                slot.keep();
                kept += 1;
            } else {
                slot.cancel();
            }
        }
        kept
    });
    assert!(total + limiter.peek().remaining <= 1_000, "{total}");
}

#[test]
fn live_changes_under_load_lose_and_invent_nothing() {
    // Only the interval changes, so what is spent must add up exactly at a frozen clock.
    let limiter = Limiter::with_clock(Rate::per_second(1).burst(10_000), Manual::new());
    let total = run_together(THREADS, |number| {
        if number == 0 {
            for turn in 1..500 {
                let rate = Rate::per_second(1 + turn % 2).burst(10_000);
                limiter.set_rate(rate).unwrap();
                limiter.set_switch(Switch::Enforce);
            }
            return 0;
        }
        (0..2_000).map(|_| u64::from(limiter.allow())).sum()
    });
    assert_eq!(total, 6_000);
    assert_eq!(limiter.peek().remaining, 4_000);
}
