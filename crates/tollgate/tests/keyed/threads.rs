//! Real threads on one table: no key ever gets more than its bound, while others come and go.

use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use tollgate::{Clock, KeyedLimiter, Rate, WhenFull};
use tollgate_testkit::traffic::Random;

use crate::{index, nanos, with_policy};

const THREADS: u64 = 4;

/// Runs `body` on several concurrent threads.
fn together(body: impl Fn(u64) + Sync) {
    let barrier = Barrier::new(index(THREADS));
    thread::scope(|scope| {
        let (barrier, body) = (&barrier, &body);
        for number in 0..THREADS {
            scope.spawn(move || {
                barrier.wait();
                body(number);
            });
        }
    });
}

#[test]
fn at_one_instant_all_threads_share_the_burst_of_each_key() {
    for capacity in [1, 100, 1_000, 50_000] {
        let (limiter, _) = with_policy(Rate::per_hour(10), capacity, WhenFull::DenyNew);
        let keys = capacity as u64;
        let admitted: Vec<_> = (0..keys.min(2_000)).map(|_| AtomicU64::new(0)).collect();
        let calls = 8 * admitted.len() as u64 + 2_000;
        together(|number| {
            let mut random = Random::new(number);
            for _ in 0..calls {
                let key = random.below(admitted.len() as u64);
                if limiter.allow(&key) {
                    admitted[index(key)].fetch_add(1, Ordering::Relaxed);
                }
            }
        });
        let mut missing = 0;
        for (key, admitted) in admitted.iter().enumerate() {
            let passed = admitted.load(Ordering::Relaxed);
            let left = limiter.key(&(key as u64)).peek().remaining;
            assert!(passed + left <= 10, "{key}: {passed} passed, {left} left");
            missing += 10 - passed - left;
        }
        // A charge that a move overtakes may count twice, which is the safe side.
        let moved = limiter.stats().moved;
        assert!(missing <= moved, "{missing} missing, {moved} moved");
    }
}

/// Hot keys on every thread, among keys that come once and go idle: growth, take-over,
/// displacement, stash and overflow, with time that passes under them.
fn churn(capacity: usize, at_cap: WhenFull) {
    let rate = Rate::every(Duration::from_millis(1)).burst(20);
    let (limiter, clock) = with_policy(rate, capacity, at_cap);
    let hot: Vec<_> = (0..20).map(|_| AtomicU64::new(0)).collect();
    for key in 0..hot.len() as u64 {
        // They are there before anybody can take the last slot.
        assert!(limiter.key(&key).allow_n(20));
    }
    let start = clock.now();
    together(|number| {
        let mut random = Random::new(number);
        for turn in 0..10_000 {
            if random.below(40) == 0 {
                clock.advance(Duration::from_nanos(random.below(400_000)));
            }
            let key = random.below(hot.len() as u64);
            if limiter.allow(&key) {
                hot[index(key)].fetch_add(1, Ordering::Relaxed);
            }
            let _ = limiter.key(&(number, turn)).allow_n(1 + random.below(20));
        }
    });
    let elapsed = clock.now() - start;
    let bound = 20 + nanos(elapsed) / 1_000_000;
    for admitted in hot {
        let passed = 20 + admitted.into_inner();
        assert!(passed <= bound, "{passed} of {bound}");
        assert!(passed >= bound / 2, "{passed} of {bound}");
    }
}

#[test]
fn hot_keys_stay_within_their_bound_while_others_come_and_go() {
    for capacity in [30, 1_000, 40_000] {
        churn(capacity, WhenFull::DenyNew);
        churn(capacity, WhenFull::SharedBucket);
    }
}

#[test]
fn gifts_fines_and_blocks_under_threads_reach_the_right_key() {
    let (limiter, _) = with_policy(Rate::per_hour(100), 5_000, WhenFull::DenyNew);
    together(|number| {
        let mut random = Random::new(number);
        for turn in 0..1_000u64 {
            let own = (number, turn);
            assert!(limiter.key(&own).allow_n(60));
            limiter.key(&own).refund(20);
            limiter.key(&own).penalize(30).unwrap();
            let earlier = (number, random.below(turn + 1));
            if turn % 10 == 3 {
                limiter
                    .key(&own)
                    .block_for(Duration::from_secs(60))
                    .unwrap();
            }
            let reserved = limiter.key(&earlier).reserve(5);
            assert_eq!(reserved.is_err(), earlier.1 % 10 == 3);
            if let Ok(slot) = reserved {
                slot.cancel();
            }
        }
    });
    for number in 0..THREADS {
        for turn in 0..1_000u64 {
            let expected = if turn % 10 == 3 { 0 } else { 30 };
            assert_eq!(
                limiter.key(&(number, turn)).peek().remaining,
                expected,
                "{turn}"
            );
        }
    }
}

#[test]
fn rates_that_change_under_load_are_read_whole() {
    let limiter: KeyedLimiter = KeyedLimiter::new(Rate::per_hour(3), 10_000);
    together(|number| {
        for turn in 0..2_000u64 {
            if number == 0 {
                let count = [3, 3_000][index(turn % 2)];
                limiter.set_rate(Rate::per_hour(count).burst(3)).unwrap();
            } else {
                // Both rates pass three and not four.
                assert!(!limiter.key(&(number, turn)).allow_n(4));
                assert!(limiter.key(&(number, turn)).allow_n(3));
            }
        }
    });
}
