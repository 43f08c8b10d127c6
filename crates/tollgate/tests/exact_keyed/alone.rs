//! A key among others equals a key alone in its table: an idle key is as one never seen, whether it
//! was dropped or not.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tollgate::clock::Manual;
use tollgate::{Algorithm, Clock, ExactKeyedLimiter, Rate, Timestamp};
use tollgate_testkit::traffic::Random;

const EVERY_ALGORITHM: [Algorithm; 6] = [
    Algorithm::Gcra,
    Algorithm::TokenBucket,
    Algorithm::LeakyBucket,
    Algorithm::FixedWindow(tollgate::core::Align::Boundary(Timestamp::ZERO)),
    Algorithm::SlidingLog,
    Algorithm::SlidingCounter,
];
const KEYS: u64 = 40;

type Table = ExactKeyedLimiter<u64, Manual>;

fn table(algorithm: Algorithm, clock: &Manual) -> Table {
    let builder = ExactKeyedLimiter::builder(Rate::per_second(5), 100);
    let builder = builder.algorithm(algorithm).clock(clock.clone());
    builder.build().expect("a rate that fits")
}

fn start() -> Manual {
    Manual::starting_at(Timestamp::from_secs(100_000))
}

fn compare(algorithm: Algorithm, seed: u64) {
    let mut random = Random::new(seed);
    let clock = start();
    let all = table(algorithm, &clock);
    let alone: Vec<_> = (0..KEYS).map(|_| table(algorithm, &clock)).collect();
    let gold = all.tier(Rate::per_second(20)).expect("a rate that fits");
    for step in 0..600 {
        clock.advance(Duration::from_millis(random.below(200)));
        let key = random.below(KEYS);
        let own = &alone[usize::try_from(key).expect("an index")];
        let tables = [&all, own];
        let told = match random.below(10) {
            0 => tables.map(|table| {
                table.refund(&key, 2);
                table.peek(&key)
            }),
            1 => tables.map(|table| {
                table.penalize(&key, 3).expect("a slot");
                table.peek(&key)
            }),
            2 => {
                let block = Duration::from_millis(random.below(900));
                tables.map(|table| {
                    table.block_for(&key, block).expect("a slot");
                    table.peek(&key)
                })
            }
            3 => tables.map(|table| {
                table.reset(&key);
                table.peek(&key)
            }),
            4 => tables.map(|table| table.key_at_rate(&key, &gold).check_n(2)),
            5 => tables.map(|table| {
                drop(table.reserve(&key, 1));
                table.peek(&key)
            }),
            _ => {
                let cost = 1 + random.below(3);
                tables.map(|table| table.check_n(&key, cost))
            }
        };
        assert_eq!(told[0], told[1], "{algorithm:?}, seed {seed}, step {step}");
    }
    assert!(all.stats().expired > 0, "{algorithm:?}");
}

#[test]
fn a_key_among_others_equals_a_key_alone() {
    for algorithm in EVERY_ALGORITHM {
        (0..20).for_each(|seed| compare(algorithm, seed));
    }
}

#[test]
fn a_look_at_a_later_time_ends_no_block() {
    for algorithm in EVERY_ALGORITHM {
        let clock = start();
        let limiter = table(algorithm, &clock);
        limiter.block_for(&7, Duration::from_secs(60)).unwrap();
        let later = clock.now() + Duration::from_secs(61);
        assert!(limiter.check_at(later, &7, 0).is_allowed());
        assert!(!limiter.allow(&7), "{algorithm:?}");
        clock.advance(Duration::from_secs(60));
        assert!(limiter.allow(&7), "{algorithm:?}");
    }
}

#[test]
fn what_was_forgiven_is_not_given_back() {
    for algorithm in EVERY_ALGORITHM {
        let builder = ExactKeyedLimiter::<u64>::builder(Rate::per_minute(1), 100);
        let builder = builder.algorithm(algorithm).clock(start());
        let limiter = builder.longest_wait(Duration::from_secs(3_600)).build();
        let limiter = limiter.expect("a rate that fits");
        let other = limiter.tier(Rate::per_hour(3)).expect("a rate that fits");
        assert!(limiter.allow(&7));
        let booked: Vec<_> = (0..5).filter_map(|_| limiter.reserve(&7, 1).ok()).collect();
        // More is owed than an empty bucket of three, so the rest is forgotten.
        assert!(!limiter.key_at_rate(&7, &other).allow(), "{algorithm:?}");
        booked.into_iter().rev().for_each(drop);
        let passed = (0..10).filter(|_| limiter.key_at_rate(&7, &other).allow());
        assert!(passed.count() <= 2, "{algorithm:?}: one was used");
    }
}

#[test]
fn the_function_is_asked_again_when_an_idle_key_comes_back() {
    let clock = start();
    let upgraded = Arc::new(AtomicBool::new(false));
    let builder = ExactKeyedLimiter::<u64>::builder(Rate::per_second(1), 100);
    let gold = builder
        .tier(Rate::per_second(10))
        .expect("a rate that fits");
    let told = Arc::clone(&upgraded);
    let builder = builder.rate_of(move |_| told.load(Ordering::Relaxed).then(|| gold.clone()));
    let limiter = builder.clock(clock.clone()).build().unwrap();
    assert!(limiter.allow(&7) && !limiter.allow(&7));
    upgraded.store(true, Ordering::Relaxed);
    assert!(
        !limiter.allow(&7),
        "while it is active it stays at its rate"
    );
    // Nothing else happens in this table that would drop it.
    clock.advance(Duration::from_secs(2));
    assert!(limiter.key(&7).allow_n(10));
}
