//! A clock that steps back: the step doesn't count as spent, whatever the rate is changed to.

use std::time::Duration;

use tollgate::clock::Manual;
use tollgate::{
    Algorithm, KeyedLimiter, Limiter, Rate, StoredKeyLimiter, Timestamp, core::WindowAlignment,
};

const START: Timestamp = Timestamp::from_secs(100_000_000);

const ALGORITHMS: [Algorithm; 6] = [
    Algorithm::Gcra,
    Algorithm::TokenBucket,
    Algorithm::LeakyBucket,
    Algorithm::FixedWindow(WindowAlignment::FirstHit),
    Algorithm::SlidingLog,
    Algorithm::SlidingCounter,
];

fn limiter(algorithm: Algorithm, rate: Rate, clock: &Manual) -> Limiter<Manual> {
    let builder = Limiter::builder(rate).algorithm(algorithm);
    builder
        .clock(clock.clone())
        .build()
        .expect("a rate that fits")
}

/// The same, made long before.
fn old_limiter(algorithm: Algorithm, rate: Rate, clock: &Manual) -> Limiter<Manual> {
    clock.set(START.shifted(START + Duration::from_secs(86_400), START));
    let limiter = limiter(algorithm, rate, clock);
    clock.set(START);
    limiter
}

/// One request a second at 100/s, then the clock steps back and the rate becomes 1/s: how long one has to wait.
fn wait_after(
    step: Duration,
    allow: impl Fn() -> Duration,
    slow: impl Fn(),
    clock: &Manual,
) -> Duration {
    for _ in 0..10 {
        assert_eq!(allow(), Duration::ZERO);
        clock.advance(Duration::from_secs(1));
    }
    assert_eq!(allow(), Duration::ZERO);
    let now = START + Duration::from_secs(10);
    clock.set(now.shifted(now + step, now));
    slow();
    allow()
}

#[test]
fn a_step_back_is_not_spent_when_the_rate_changes() {
    let (fast, slow) = (Rate::per_second(100), Rate::per_second(1));
    for algorithm in ALGORITHMS {
        // Beyond a minute and what a bucket lasts, states follow the clock; before that they wait until it has caught up.
        for (step, most) in [(5, 7), (30, 32), (3_600, 2), (86_400 * 300, 2)] {
            let step = Duration::from_secs(step);
            let clock = Manual::starting_at(START);
            let new = limiter(algorithm, fast, &clock);
            let old = old_limiter(algorithm, fast, &clock);
            for one in [new, old] {
                clock.set(START);
                let allow = || one.check().wait_or_max();
                let wait = wait_after(step, allow, || one.set_rate(slow).unwrap(), &clock);
                assert!(wait.as_secs() <= most, "{algorithm:?}, {step:?}: {wait:?}");
            }

            let clock = Manual::starting_at(START);
            let keys = StoredKeyLimiter::<String>::builder(fast, 100).algorithm(algorithm);
            let keys = keys.clock(clock.clone()).build().unwrap();
            let allow = || keys.check("ada").wait_or_max();
            let wait = wait_after(step, allow, || keys.set_rate(slow).unwrap(), &clock);
            assert!(
                wait.as_secs() <= most,
                "a key, {algorithm:?}, {step:?}: {wait:?}"
            );
        }
    }
}

#[test]
fn a_step_back_is_not_spent_of_what_was_booked() {
    let clock = Manual::starting_at(START);
    let limiter = old_limiter(Algorithm::Gcra, Rate::per_second(10).burst(1), &clock);
    for _ in 0..10 {
        limiter.reserve(1).unwrap().keep();
    }
    clock.set(START.shifted(START + Duration::from_secs(50), START));
    limiter.set_rate(Rate::per_second(1).burst(1)).unwrap();
    assert_eq!(limiter.check().wait_or_max(), Duration::from_secs(10));
}

#[test]
fn what_was_never_used_is_full_after_any_steps() {
    for algorithm in ALGORITHMS {
        let clock = Manual::starting_at(START);
        let limiter = limiter(algorithm, Rate::per_second(5), &clock);
        let rates = [Rate::per_hour(5), Rate::per_minute(5), Rate::per_hour(5)];
        for (step, rate) in [100, 3_000, 86_400].into_iter().zip(rates) {
            limiter.set_rate(rate).unwrap();
            let before = Timestamp::from_secs(100_000_000 - step);
            clock.set(before);
            assert_eq!(limiter.peek().remaining, rate.burst_size(), "{algorithm:?}");
        }
        assert!(limiter.allow(), "{algorithm:?}");
    }
}

#[test]
fn a_limit_that_counted_nothing_while_the_clock_was_ahead_follows_it_back() {
    for algorithm in ALGORITHMS {
        let clock = Manual::starting_at(START);
        let limiter = limiter(algorithm, Rate::per_minute(2), &clock);
        clock.set(START + Duration::from_secs(86_400 * 365));
        while limiter.allow() {}
        limiter.set_rate(Rate::unlimited()).unwrap();
        assert!(limiter.allow());
        clock.set(START);
        limiter.set_rate(Rate::per_minute(2)).unwrap();
        let wait = limiter.check().wait_or_max();
        assert!(wait <= Duration::from_secs(120), "{algorithm:?}: {wait:?}");
    }
}

/// Also if the clock shows a time from before the limiter was made.
#[test]
fn the_wait_that_is_told_after_a_step_back_comes_true() {
    for step in [5, 100, 3_600, 80_000].map(Duration::from_secs) {
        let clock = Manual::starting_at(START);
        let keys = KeyedLimiter::builder(Rate::per_second(100), 100);
        let keys = keys.clock(clock.clone()).build().expect("a rate that fits");
        let now = START + Duration::from_secs(99);
        clock.set(now);
        assert!(keys.allow("ada"));
        clock.set(now.shifted(now + step, now));
        let wait = keys.check("ada").wait_or_max();
        clock.advance(wait);
        assert!(keys.allow("ada"), "{step:?} back: told {wait:?}");
    }
}
