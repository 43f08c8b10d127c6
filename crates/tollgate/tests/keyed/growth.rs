//! No key fails open below the cap, and idle keys make room immediately.

use std::time::Duration;

use tollgate::{Rate, WhenFull};

use crate::{limiter, soak, with_policy};

fn every_key_is_limited(keys: u64) {
    // If a key found no slot it would pass uncounted, and be seen to.
    let capacity = usize::try_from(keys).expect("fits");
    let (limiter, _) = with_policy(Rate::per_hour(2), capacity, WhenFull::AdmitNew);
    for key in 0..keys {
        assert!(limiter.key(&key).allow_n(2), "{key} of {keys}");
    }
    for key in 0..keys {
        assert!(!limiter.allow(&key), "{key} of {keys} failed open");
    }
    let stats = limiter.stats();
    assert_eq!((stats.overflowed, stats.evicted), (0, 0), "{stats:?}");
    assert_eq!((stats.allowed, stats.denied), (keys, keys));
    assert_eq!(limiter.len(), capacity);
}

#[test]
fn no_key_fails_open_below_the_cap() {
    for keys in [1, 2, 3, 10, 64, 69, 100, 1_000, 5_000, 20_000, 40_000] {
        every_key_is_limited(keys);
    }
    every_key_is_limited(if soak() { 1_000_000 } else { 200_000 });
}

#[test]
fn small_tables_hold_their_keys_whatever_the_seed() {
    for _ in 0..200 {
        for keys in [5, 30, 150] {
            every_key_is_limited(keys);
        }
    }
}

#[test]
fn as_many_keys_as_the_capacity_can_be_blocked_before_any_is_charged() {
    let (limiter, clock) = limiter(Rate::per_second(1), 40_000);
    let minute = Duration::from_secs(60);
    for key in 0..40_000 {
        assert_eq!(limiter.key(&key).block_for(minute), Ok(()), "{key}");
    }
    clock.advance(minute - Duration::from_nanos(1));
    assert!((0..40_000).all(|key| !limiter.allow(&key)));
    clock.advance(Duration::from_nanos(1));
    assert!((0..40_000).all(|key| limiter.allow(&key)));
}

#[test]
fn as_many_keys_as_the_capacity_can_be_fined_before_any_is_charged() {
    let (limiter, _) = limiter(Rate::per_second(1), 40_000);
    for key in 0..40_000 {
        assert_eq!(limiter.key(&key).penalize(1), Ok(()), "{key}");
    }
    assert!((0..40_000).all(|key| !limiter.allow(&key)));
}

#[test]
fn an_idle_key_makes_room_at_once_when_there_is_no_other() {
    // Each key is idle after a microsecond, and all of them come within a millisecond.
    let rate = Rate::every(Duration::from_micros(1));
    let (limiter, clock) = with_policy(rate, 10, WhenFull::DenyNew);
    for key in 0..400 {
        clock.advance(Duration::from_nanos(2_001));
        assert!(limiter.allow(&key), "{key}");
        assert!(!limiter.allow(&key), "{key}");
    }
    assert_eq!(limiter.stats().overflowed, 0);
}

#[test]
fn a_look_at_a_key_takes_no_slot_and_lets_no_time_pass() {
    let (limiter, clock) = limiter(Rate::per_second(1), 10);
    for key in 0..1_000 {
        let _ = limiter.key(&key).peek();
        assert!(!limiter.key(&key).allow_n(2));
    }
    assert!(limiter.is_empty());
    // Looking ahead doesn't change what is decided at an earlier time.
    let start = tollgate::Clock::now(&clock);
    let later = start + Duration::from_secs(100);
    assert!(limiter.key("key").check_at(later, 0).is_allowed());
    assert!(limiter.key("key").check_at(start, 1).is_allowed());
    assert!(
        limiter
            .key("key")
            .check_at(start + Duration::from_secs(1), 1)
            .is_allowed()
    );
}
