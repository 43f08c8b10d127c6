//! A key among others equals a key alone in its table: an idle key is like a new one, whether it was dropped or not.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tollgate::clock::Manual;
use tollgate::{Algorithm, Clock, Rate, StoredKeyLimiter, Tier, Timestamp};
use tollgate_testkit::traffic::Random;

const EVERY_ALGORITHM: [Algorithm; 6] = [
    Algorithm::Gcra,
    Algorithm::TokenBucket,
    Algorithm::LeakyBucket,
    Algorithm::FixedWindow(tollgate::core::WindowAlignment::Boundary(Timestamp::ZERO)),
    Algorithm::SlidingLog,
    Algorithm::SlidingCounter,
];
const KEYS: u64 = 40;

type Table = StoredKeyLimiter<u64, Manual>;

fn table(algorithm: Algorithm, clock: &Manual) -> Table {
    let builder = StoredKeyLimiter::builder(Rate::per_second(5), 100);
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
    let gold = Tier::new(all.algorithm(), Rate::per_second(20)).expect("a rate that fits");
    for step in 0..600 {
        clock.advance(Duration::from_millis(random.below(200)));
        let key = random.below(KEYS);
        let own = &alone[usize::try_from(key).expect("an index")];
        let tables = [&all, own];
        let told = match random.below(10) {
            0 => tables.map(|table| {
                table.key(&key).refund(2);
                table.key(&key).peek()
            }),
            1 => tables.map(|table| {
                table.key(&key).penalize(3).expect("a slot");
                table.key(&key).peek()
            }),
            2 => {
                let block = Duration::from_millis(random.below(900));
                tables.map(|table| {
                    table.key(&key).block_for(block).expect("a slot");
                    table.key(&key).peek()
                })
            }
            3 => tables.map(|table| {
                table.key(&key).reset();
                table.key(&key).peek()
            }),
            4 => tables.map(|table| {
                table
                    .key(&key)
                    .at(&gold)
                    .expect("what it can do")
                    .check_n(2)
            }),
            5 => tables.map(|table| {
                drop(table.key(&key).reserve(1));
                table.key(&key).peek()
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
        limiter.key(&7).block_for(Duration::from_secs(60)).unwrap();
        let later = clock.now() + Duration::from_secs(61);
        assert!(limiter.key(&7).check_at(later, 0).is_allowed());
        assert!(!limiter.allow(&7), "{algorithm:?}");
        clock.advance(Duration::from_secs(60));
        assert!(limiter.allow(&7), "{algorithm:?}");
    }
}

#[test]
fn what_was_forgiven_is_not_given_back() {
    for algorithm in EVERY_ALGORITHM {
        let builder = StoredKeyLimiter::<u64>::builder(Rate::per_minute(1), 100);
        let builder = builder.algorithm(algorithm).clock(start());
        let limiter = builder.longest_wait(Duration::from_secs(3_600)).build();
        let limiter = limiter.expect("a rate that fits");
        let other = Tier::new(limiter.algorithm(), Rate::per_hour(3)).expect("a rate that fits");
        assert!(limiter.allow(&7));
        let booked: Vec<_> = (0..5)
            .filter_map(|_| limiter.key(&7).reserve(1).ok())
            .collect();
        // More is owed than an empty bucket of three, so the rest is forgotten.
        assert!(
            !limiter.key(&7).at(&other).unwrap().allow(),
            "{algorithm:?}"
        );
        booked.into_iter().rev().for_each(drop);
        let passed = (0..10).filter(|_| limiter.key(&7).at(&other).unwrap().allow());
        assert!(passed.count() <= 2, "{algorithm:?}: one was used");
    }
}

#[test]
fn the_function_is_asked_again_when_an_idle_key_comes_back() {
    let clock = start();
    let upgraded = Arc::new(AtomicBool::new(false));
    let builder = StoredKeyLimiter::<u64>::builder(Rate::per_second(1), 100);
    let gold = Tier::new(Algorithm::Gcra, Rate::per_second(10)).expect("a rate that fits");
    let told = Arc::clone(&upgraded);
    let builder = builder.tier_of([gold], move |[gold], _| {
        told.load(Ordering::Relaxed).then_some(gold)
    });
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

#[test]
fn a_blocked_key_is_told_when_it_passes() {
    for algorithm in EVERY_ALGORITHM {
        let clock = start();
        let table = table(algorithm, &clock);
        while table.allow(&1) {}
        let block = Duration::from_millis(10);
        table.key(&1).block_for(block).expect("there is room");
        let told = table.check(&1).wait_or_max();
        assert!(told > block, "{algorithm:?}: {told:?}");
        clock.advance(told - Duration::from_nanos(1));
        assert!(!table.allow(&1), "{algorithm:?}");
        clock.advance(Duration::from_nanos(1));
        assert!(table.allow(&1), "{algorithm:?}");
        table.key(&2).block_for(block).expect("there is room");
        assert_eq!(table.check(&2).wait_or_max(), block, "{algorithm:?}");
    }
}
