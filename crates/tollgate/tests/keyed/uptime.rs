//! Uptime has no bound: the origin of stored times follows the clock, and no key changes by it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use tollgate::clock::Manual;
use tollgate::core::{Arithmetic, TokenBucket};
use tollgate::{Clock, KeyedLimiter, Rate, Timestamp, WhenFull};
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
    let (limiter, clock) = with_policy(Rate::every(DAY).burst(100), 1, WhenFull::SharedBucket);
    clock.advance(200 * DAY);
    limiter.key("three years").block_for(3 * 365 * DAY).unwrap();
    limiter.key("for ever").block_for(Duration::MAX).unwrap();
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
            let left = limiter.key(&key).peek().remaining;
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

/// How many of ten pass for this key.
fn spend(limiter: &KeyedLimiter<Manual>, key: u64) -> usize {
    (0..10).filter(|_| limiter.allow(&key)).count()
}

#[test]
fn a_clock_that_was_far_ahead_holds_nobody_back() {
    for ahead in [3 * DAY, 200 * DAY, 400 * DAY, 3_000 * DAY, 20_000 * DAY] {
        let (limiter, clock) = limiter(Rate::per_minute(5), 50_000);
        clock.advance(30 * DAY);
        let start = clock.now();
        assert_eq!(spend(&limiter, 0), 5);
        limiter.key(&1).block_for(40 * DAY).unwrap();
        clock.advance(ahead);
        for key in 10..600 {
            assert_eq!(spend(&limiter, key), 5);
            clock.advance(DAY / 86_400);
        }
        limiter.key(&2).block_for(DAY / 2).unwrap();
        clock.set(start + DAY / 144);
        // All who come, at once; who spent all while it was ahead, as soon as it is paid back.
        for key in 1_000..1_600 {
            assert_eq!(spend(&limiter, key), 5, "{ahead:?}");
        }
        assert_eq!(spend(&limiter, 599), 0, "{ahead:?}");
        assert_eq!(spend(&limiter, 0), 5, "{ahead:?}");
        clock.advance(DAY / 1_440);
        assert_eq!(spend(&limiter, 599), 5, "{ahead:?}");
        assert_eq!(limiter.check(&599).wait_or_max(), DAY / 7_200);
        // A block lasts as long as it had left.
        clock.advance(DAY / 3);
        assert_eq!(spend(&limiter, 2), 0, "{ahead:?}");
        clock.advance(DAY / 4);
        assert_eq!(spend(&limiter, 2), 5, "{ahead:?}");
    }
}

#[test]
fn each_step_of_a_clock_grants_one_burst_at_most() {
    for seed in 0..60 {
        let mut random = Random::new(seed);
        let mut number = |end: u64| u32::try_from(random.below(end)).unwrap_or(0);
        let (limiter, clock) = limiter(Rate::per_minute(10), 50_000);
        clock.advance(10 * 365 * DAY);
        let start = clock.now();
        let (mut ran, mut offset, mut late) = (Duration::ZERO, 5_000 * DAY, Duration::ZERO);
        let (mut far_steps, mut passed) = (0, [0; 3]);
        for _ in 0..400 {
            ran += DAY / 86_400 * number(8);
            let far = DAY * (2 + number(1_500));
            match number(40) {
                0 => (offset, far_steps) = (offset + far, far_steps + 1),
                1 if offset > far + 3 * DAY => (offset, far_steps) = (offset - far, far_steps + 1),
                // A little behind, and then right again.
                2 => (offset, late) = (offset + late, Duration::ZERO),
                3 if late.is_zero() => {
                    late = DAY / 86_400 * number(3_000);
                    offset -= late;
                }
                _ => {}
            }
            clock.set(start + ran + offset);
            let (key, cost) = (number(3), u64::from(1 + number(3)));
            let allowed = limiter.check_n(&u64::from(key), cost).is_allowed();
            passed[key as usize] += if allowed { cost } else { 0 };
            let _ = limiter.allow(&u64::from(100 + number(500)));
        }
        let most = 10 * (2 + ran.as_secs().div_ceil(60) + far_steps);
        assert!(
            passed.iter().all(|passed| *passed <= most),
            "{seed}: {passed:?} of {most}"
        );
        clock.set(start + ran);
        assert!(limiter.check_n(&999u64, 10).is_allowed(), "{seed}");
        // A second more: so late may be the time that a shard was charged at last.
        clock.advance(Duration::from_secs(61));
        for key in 0..3u64 {
            assert!(limiter.check_n(&key, 10).is_allowed(), "{seed}");
        }
    }
}

#[test]
fn what_is_behind_by_less_than_a_state_lasts_grants_nothing() {
    // Two years until a bucket is full: two days are out of order.
    let (limiter, clock) = limiter(Rate::every(DAY).burst(700), 100);
    clock.advance(30 * DAY);
    assert!(limiter.check_n("key", 700).is_allowed());
    for _ in 0..20 {
        clock.advance(2 * DAY);
        let _ = limiter.allow("other");
        assert_eq!(limiter.key("key").peek().remaining, 2);
        let back = clock.now() - Timestamp::ZERO - 2 * DAY;
        clock.set(Timestamp::ZERO + back);
        assert_eq!(limiter.key("key").peek().remaining, 0);
        let _ = limiter.allow("other");
    }
}
