//! Uptime has no end: what words count from follows the clock, and no key notices.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use tollgate::core::{Algorithm, TokenBucket};
use tollgate::{AtCap, Clock, Rate, Timestamp};
use tollgate_testkit::traffic::Random;

use crate::{limiter, with_policy};

const DAY: Duration = Duration::from_secs(86_400);

#[test]
fn every_key_answers_for_forty_years_as_the_exact_form_does() {
    // Rates whose intervals a word holds exactly.
    let rates = [
        Rate::per_second(10),
        Rate::per_minute(1).burst(3),
        Rate::every(DAY).burst(700),
        Rate::every(DAY).burst(30),
    ];
    for (seed, rate) in rates.into_iter().enumerate() {
        let (limiter, clock) = limiter(rate, 100);
        let exact = TokenBucket::new(rate).unwrap();
        let mut states = [(); 6].map(|()| Default::default());
        let mut random = Random::new(seed as u64);
        let start = clock.now();
        while clock.now() - start < 40 * 365 * DAY {
            let gap = match random.below(4) {
                0 => Duration::ZERO,
                1 => DAY.mul_f64(1.0 / 86_400.0),
                2 => DAY,
                _ => 20 * DAY,
            };
            clock.advance(gap);
            let key = crate::index(random.below(6));
            let cost = 1 + random.below(rate.burst_size() + 1);
            let now = clock.now();
            let expected = exact.decide(&mut states[key], now, cost);
            let decision = limiter.check_n(&key, cost);
            assert_eq!(decision, expected, "{rate} after {:?}", now - start);
        }
    }
}

#[test]
fn blocks_and_shared_buckets_last_as_long_as_they_should() {
    let (limiter, clock) = with_policy(Rate::every(DAY).burst(100), 1, AtCap::ShareOne);
    clock.advance(200 * DAY);
    limiter.block_for("three years", 3 * 365 * DAY).unwrap();
    limiter.block_for("for ever", Duration::MAX).unwrap();
    for years in 1..=10u32 {
        clock.advance(364 * DAY);
        assert_eq!(limiter.allow("three years"), years > 3, "{years}");
        assert!(!limiter.allow("for ever"));
        // Others find no slot and share one bucket of a hundred, of which filling the table takes a few.
        crate::fill(&limiter, u64::from(years) << 32);
        let shared = (0..200).filter(|key| limiter.allow(&("late", years, *key)));
        let shared = shared.count();
        assert!((90..=100).contains(&shared), "{shared} in {years}");
        clock.advance(DAY);
    }
}

#[test]
fn what_words_count_from_moves_under_threads_and_nothing_is_granted_twice() {
    const KEYS: u64 = 300;
    for seed in 0..40 {
        // A token a year, and two years until a bucket is full.
        let year = 365 * DAY;
        let (limiter, clock) = limiter(Rate::every(year).burst(2), 1_000);
        for key in 0..KEYS {
            assert!(limiter.key(&key).allow_n(2));
        }
        clock.advance(year - DAY);
        let passed: Vec<_> = (0..KEYS).map(|_| AtomicU64::new(0)).collect();
        thread::scope(|scope| {
            for number in 0..3 {
                let (limiter, clock, passed) = (&limiter, &clock, &passed);
                scope.spawn(move || {
                    let mut random = Random::new(seed * 3 + number);
                    for turn in 0..600 {
                        if number == 0 && turn == 300 {
                            clock.advance(2 * DAY);
                        }
                        let key = random.below(KEYS);
                        let allowed = u64::from(limiter.allow(&key));
                        passed[crate::index(key)].fetch_add(allowed, Ordering::Relaxed);
                    }
                });
            }
        });
        for (key, passed) in (0u64..).zip(passed) {
            let left = limiter.peek(&key).remaining;
            assert_eq!(passed.into_inner() + left, 1, "{key}");
        }
    }
}

#[test]
fn a_time_beyond_all_that_words_count_is_answered() {
    let (limiter, clock) = limiter(Rate::per_second(1), 100);
    assert!(limiter.allow("before"));
    clock.set(Timestamp::MAX);
    assert!(limiter.allow("before"));
    assert!(limiter.allow("new") && !limiter.allow("new"));
}
