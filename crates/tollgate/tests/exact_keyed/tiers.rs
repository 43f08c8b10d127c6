//! Rates that come with the call, or from a function of the key.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tollgate::clock::Manual;
use tollgate::{
    Algorithm, Outcome, Rate, StoredKeyLimiter, Tier, Timestamp, WhenFull, core::WindowAlignment,
    stored_keys,
};
use tollgate_testkit::traffic::Random;

const EVERY_ALGORITHM: [Algorithm; 7] = [
    Algorithm::Gcra,
    Algorithm::TokenBucket,
    Algorithm::LeakyBucket,
    Algorithm::FixedWindow(WindowAlignment::Boundary(Timestamp::ZERO)),
    Algorithm::FixedWindow(WindowAlignment::FirstHit),
    Algorithm::SlidingLog,
    Algorithm::SlidingCounter,
];

fn builder<K>(algorithm: Algorithm, rate: Rate) -> stored_keys::Builder<K, Manual> {
    StoredKeyLimiter::builder(rate, 1_000)
        .algorithm(algorithm)
        .at_cap(WhenFull::DenyNew)
        .clock(Manual::new())
}

fn limiter<K>(algorithm: Algorithm, rate: Rate) -> StoredKeyLimiter<K, Manual> {
    builder(algorithm, rate).build().expect("a rate that fits")
}

#[test]
fn a_key_at_a_tier_equals_a_limiter_of_that_rate() {
    for algorithm in EVERY_ALGORITHM {
        let mixed = limiter::<u64>(algorithm, Rate::per_second(3));
        let alone = limiter::<u64>(algorithm, Rate::per_minute(50));
        let tier = Tier::new(mixed.algorithm(), Rate::per_minute(50)).unwrap();
        assert_eq!(tier.rate(), Rate::per_minute(50));
        let mut random = Random::new(11);
        for _ in 0..5_000 {
            let (key, cost) = (random.below(20), random.below(9));
            // Keys of both kinds, side by side.
            let is = mixed.key(&key).at(&tier).unwrap().check_n(cost);
            let _ = mixed.check_n(&(100 + key), cost);
            assert_eq!(is, alone.check_n(&key, cost), "{algorithm:?}");
            let step = Duration::from_millis(random.below(2_000));
            mixed.clock().advance(step);
            alone.clock().advance(step);
        }
        assert!(mixed.stats().expired > 0);
    }
}

#[test]
fn an_upgraded_key_carries_over_one_empty_bucket_at_most() {
    for algorithm in EVERY_ALGORITHM {
        let limiter = limiter::<String>(algorithm, Rate::per_hour(10));
        let gold = Tier::new(limiter.algorithm(), Rate::per_second(10)).unwrap();
        assert!(limiter.check_n("user", 10).is_allowed());
        let booked = limiter.key("user").reserve(1).map(std::mem::forget);
        // What is full again at the new rate after a second has at most that to wait, or two where a
        // window's estimate fades over the next.
        let wait = limiter
            .key("user")
            .at(&gold)
            .unwrap()
            .check_n(10)
            .wait_or_max();
        let windows = if algorithm == Algorithm::SlidingCounter {
            2
        } else {
            1
        };
        assert!(
            wait <= Duration::from_secs(windows),
            "{algorithm:?} {wait:?} {booked:?}"
        );
        limiter.clock().advance(wait);
        assert!(
            limiter.key("user").at(&gold).unwrap().allow_n(10),
            "{algorithm:?}"
        );
    }
}

#[test]
fn what_was_spent_stays_spent_at_another_rate() {
    for algorithm in EVERY_ALGORITHM {
        let limiter = limiter::<String>(algorithm, Rate::per_hour(10));
        let gold = Tier::new(limiter.algorithm(), Rate::per_hour(100)).unwrap();
        assert!(limiter.check_n("user", 7).is_allowed());
        let at_gold = limiter.key("user").at(&gold).unwrap();
        assert_eq!(at_gold.check_n(0).remaining, 93, "{algorithm:?}");
        // A look changed nothing.
        assert_eq!(limiter.key("user").peek().remaining, 3, "{algorithm:?}");
        assert!(at_gold.allow_n(2));
        assert_eq!(at_gold.check_n(0).remaining, 91, "{algorithm:?}");
        // And back: nine are spent of ten, one is left of three.
        assert_eq!(limiter.key("user").peek().remaining, 1, "{algorithm:?}");
        assert!(
            limiter.allow("user") && !limiter.allow("user"),
            "{algorithm:?}"
        );
    }
}

#[test]
fn a_tier_is_left_alone_by_a_live_change() {
    for algorithm in EVERY_ALGORITHM {
        let limiter = limiter::<u64>(algorithm, Rate::per_hour(10));
        let gold = Tier::new(limiter.algorithm(), Rate::per_hour(100)).unwrap();
        (0..50).for_each(|key| assert!(limiter.key(&key).at(&gold).unwrap().allow_n(60)));
        (50..100).for_each(|key| assert!(limiter.check_n(&key, 4).is_allowed()));
        for _ in 0..20 {
            limiter.set_rate(Rate::per_hour(20)).unwrap();
            limiter.set_rate(Rate::per_hour(10)).unwrap();
        }
        let left = |key: u64| limiter.key(&key).at(&gold).unwrap().check_n(0).remaining;
        assert!((0..50).all(|key| left(key) == 40), "{algorithm:?}");
        let plain = |key: u64| limiter.key(&key).peek().remaining;
        assert!(
            (50..100).all(|key| (5..=6).contains(&plain(key))),
            "{algorithm:?}"
        );
    }
}

#[test]
fn gifts_and_fines_count_by_the_rate_that_the_key_is_at() {
    for algorithm in EVERY_ALGORITHM {
        let limiter = limiter::<String>(algorithm, Rate::per_hour(10));
        let gold = Tier::new(limiter.algorithm(), Rate::per_hour(100)).unwrap();
        let key = limiter.key("user").at(&gold).unwrap();
        assert!(key.allow_n(50));
        limiter.key("user").refund(20);
        assert_eq!(key.check_n(0).remaining, 70, "{algorithm:?}");
        limiter.key("user").penalize(40).unwrap();
        assert_eq!(key.check_n(0).remaining, 30, "{algorithm:?}");
    }
}

#[test]
fn a_block_is_independent_of_the_rate() {
    for algorithm in EVERY_ALGORITHM {
        let limiter = limiter::<String>(algorithm, Rate::per_second(10));
        let gold = Tier::new(limiter.algorithm(), Rate::per_second(1_000)).unwrap();
        limiter
            .key("user")
            .block_for(Duration::from_secs(60))
            .unwrap();
        let decision = limiter.key("user").at(&gold).unwrap().check_n(1);
        assert_eq!(decision.outcome, Outcome::Denied);
        assert_eq!(decision.wait_or_max(), Duration::from_secs(60));
        limiter.clock().advance(Duration::from_secs(60));
        assert!(
            limiter.key("user").at(&gold).unwrap().allow_n(1_000),
            "{algorithm:?}"
        );
    }
}

#[test]
fn a_reservation_at_a_tier_is_given_back_at_it() {
    for algorithm in EVERY_ALGORITHM {
        let limiter = limiter::<String>(algorithm, Rate::per_hour(1));
        let gold = Tier::new(limiter.algorithm(), Rate::per_second(2)).unwrap();
        let key = limiter.key("user").at(&gold).unwrap();
        assert!(key.allow_n(2));
        let before = key.check_n(1);
        let slot = key.reserve(1).unwrap();
        assert!(!slot.delay().is_zero() && slot.delay() <= Duration::from_secs(2));
        slot.cancel();
        assert_eq!(key.check_n(1), before, "{algorithm:?}");
    }
}

#[test]
fn the_function_is_asked_once_for_each_key_that_is_there() {
    for algorithm in EVERY_ALGORITHM {
        let asked = Arc::new(AtomicU64::new(0));
        let upgraded = Arc::new(AtomicBool::new(false));
        let builder = builder::<u64>(algorithm, Rate::per_hour(2));
        let (gold, calls) = (
            Tier::new(algorithm, Rate::per_hour(20)).unwrap(),
            Arc::clone(&asked),
        );
        let gate = Arc::clone(&upgraded);
        let limiter = builder
            .tier_of([gold], move |[gold], key| {
                calls.fetch_add(1, Ordering::Relaxed);
                (*key >= 50 || gate.load(Ordering::Relaxed)).then_some(gold)
            })
            .build()
            .unwrap();
        for (key, many) in (0..100).map(|key| (key, if key < 50 { 2 } else { 20 })) {
            let passed = (0..30).filter(|_| limiter.allow(&key)).count();
            assert_eq!(passed, many, "{algorithm:?} {key}");
        }
        assert_eq!(asked.load(Ordering::Relaxed), 100);
        // A call at another rate changes the key's, and those without one ask again until one passes.
        let more = Tier::new(limiter.algorithm(), Rate::per_hour(500)).unwrap();
        assert_eq!(limiter.key(&70).at(&more).unwrap().check().limit, 500);
        let refused = limiter.check(&70);
        assert_eq!((refused.limit, refused.is_allowed()), (20, false));
        limiter.clock().advance(refused.wait_or_max());
        assert!(limiter.allow(&70), "{algorithm:?}");
        assert_eq!(limiter.check(&70).limit, 20);
        assert_eq!(asked.load(Ordering::Relaxed), 102, "{algorithm:?}");
        // A key that comes back after a rest is asked for again.
        upgraded.store(true, Ordering::Relaxed);
        assert_eq!(limiter.check(&1).limit, 2);
        limiter.clock().advance(Duration::from_secs(10 * 3_600));
        (1_000..1_050).for_each(|key| assert!(limiter.allow(&key)));
        assert_eq!(limiter.check(&1).limit, 20, "{algorithm:?}");
        // And one that was blocked before it was ever asked for.
        limiter
            .key(&5_000)
            .block_for(Duration::from_secs(1))
            .unwrap();
        limiter.clock().advance(Duration::from_secs(1));
        assert_eq!(limiter.check(&5_000).limit, 20);
    }
}

#[test]
fn a_tier_of_another_algorithm_is_refused_when_it_is_given() {
    let log = limiter::<String>(Algorithm::SlidingLog, Rate::per_second(1));
    let tier = Tier::new(Algorithm::TokenBucket, Rate::per_second(5)).unwrap();
    let text = "tier \"5/s\" was made for a token bucket, and this limiter counts by a sliding log; \
                make the tier with the limiter's algorithm";
    assert_eq!(log.key("user").at(&tier).unwrap_err().to_string(), text);
    let owned = Arc::new(log).key_owned("user");
    assert_eq!(owned.at(&tier).unwrap_err().to_string(), text);
    let builder = builder::<u64>(Algorithm::SlidingLog, Rate::per_second(1));
    let builder = builder.tier_of([tier], |[tier], _| Some(tier));
    assert_eq!(builder.build().unwrap_err().to_string(), text);
}

#[test]
fn windows_of_a_tier_begin_where_it_says() {
    let aligned = Algorithm::FixedWindow(WindowAlignment::default());
    let limiter = limiter::<String>(
        Algorithm::FixedWindow(WindowAlignment::FirstHit),
        Rate::per_hour(1),
    );
    let tier = Tier::new(aligned, Rate::per_hour(5)).unwrap();
    assert_eq!(tier.algorithm(), aligned);
    assert!(limiter.key("user").at(&tier).unwrap().allow_n(5));
}
