//! Rates that change: with the call, or of the whole limiter.

use std::time::Duration;

use tollgate::clock::Manual;
use tollgate::core::{Algorithm, Gcra};
use tollgate::{KeyedLimiter, Rate};

use crate::limiter;

const SECOND: Duration = Duration::from_secs(1);

fn tier(rate: Rate) -> Gcra {
    Gcra::new(rate).expect("a rate that fits")
}

/// How long a key that owes ten hours waits after it got a fast rate.
fn wait_after_upgrade(longest_wait: Duration) -> Duration {
    let clock = Manual::new();
    let limiter = KeyedLimiter::builder(Rate::per_hour(1).burst(10), 10)
        .longest_wait(longest_wait)
        .clock(clock.clone())
        .build()
        .expect("a rate that fits");
    assert!(limiter.key("tenant").allow_n(10));
    let fast = tier(Rate::per_second(100));
    let mut waited = Duration::ZERO;
    while !limiter.key_at_rate("tenant", &fast).allow() {
        clock.advance(SECOND / 100);
        waited += SECOND / 100;
        assert!(waited < Duration::from_secs(3_600), "locked out");
    }
    waited
}

#[test]
fn an_upgraded_key_waits_for_one_empty_bucket_and_the_longest_wait_at_most() {
    // The last second is how exactly the table knows what time it is.
    assert!(wait_after_upgrade(Duration::ZERO) <= 2 * SECOND);
    assert!(wait_after_upgrade(Duration::from_secs(60)) <= 62 * SECOND);
}

#[test]
fn a_downgraded_key_carries_its_debt_over_as_time() {
    let (limiter, clock) = limiter(Rate::per_second(1), 10);
    let fast = tier(Rate::per_second(100));
    assert!(limiter.key_at_rate("key", &fast).allow_n(100));
    assert!(!limiter.allow("key"));
    clock.advance(SECOND);
    assert!(limiter.allow("key"));
}

#[test]
fn a_block_is_independent_of_the_rate() {
    let (limiter, clock) = limiter(Rate::per_second(1), 10);
    let hour = 3_600 * SECOND;
    limiter.block_for("key", hour).unwrap();
    let tiers = [
        tier(Rate::per_second(1_000_000)),
        tier(Rate::per_day(1)),
        tier(Rate::unlimited()),
        tier(Rate::zero()),
    ];
    for limit in &tiers {
        for _ in 0..3 {
            let decision = limiter.key_at_rate("key", limit).check_n(1);
            assert!(!decision.is_allowed());
            assert_eq!(decision.retry_after, hour);
        }
    }
    clock.advance(hour);
    assert!(limiter.key_at_rate("key", &tiers[2]).allow());
    assert!(limiter.allow("key"));
}

#[test]
fn extreme_rates_take_no_slot() {
    let (limiter, _) = limiter(Rate::per_second(1), 10);
    let (unlimited, zero) = (tier(Rate::unlimited()), tier(Rate::zero()));
    for key in 0..1_000 {
        assert!(limiter.key_at_rate(&key, &unlimited).allow_n(1_000));
        assert!(!limiter.key_at_rate(&key, &zero).allow());
    }
    assert!(limiter.is_empty());
}

#[test]
fn the_rate_of_all_keys_can_change_while_what_they_spent_stays_spent() {
    let (limiter, clock) = limiter(Rate::per_second(10), 10);
    assert!(limiter.key("key").allow_n(10));
    limiter.set_rate(Rate::per_second(20)).unwrap();
    assert_eq!(limiter.rate(), Rate::per_second(20));
    assert!(!limiter.allow("key"), "a second's worth is spent");
    assert_eq!(limiter.peek("new").remaining, 20);
    clock.advance(SECOND / 2);
    assert_eq!(limiter.peek("key").remaining, 10);
    let slow = Rate::new(1, Duration::from_secs(100 * 365 * 86_400));
    assert!(limiter.set_rate(slow).is_err());
    assert_eq!(limiter.rate(), Rate::per_second(20));
    assert_eq!(limiter.peek("key").remaining, 10);
}

#[test]
fn a_function_of_the_key_says_its_rate() {
    let clock = Manual::new();
    let fast = Gcra::new(Rate::per_second(5)).unwrap();
    let limiter = KeyedLimiter::builder(Rate::per_second(2), 100)
        .clock(clock.clone())
        .build()
        .unwrap()
        .rated_by(move |key: &u32| key.is_multiple_of(2).then_some(fast));
    let passed = |key: u32| (0..9).filter(|_| limiter.allow(&key)).count();
    assert_eq!([passed(1), passed(2)], [2, 5]);
    assert_eq!(limiter.check(&1).limit, 2);
    assert_eq!(limiter.check_n(&2, 0).limit, 5);
    clock.advance(Duration::from_millis(200));
    assert_eq!([passed(1), passed(2)], [0, 1]);
    let wait = limiter.reserve(&2, 1).unwrap().delay();
    assert_eq!(wait, Duration::from_millis(200));
    assert_eq!(limiter.limiter().len(), 2);
}
