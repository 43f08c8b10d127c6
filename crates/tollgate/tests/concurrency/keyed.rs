//! Permits by key: independent limits, tiers, the cap on keys, and no entry without a permit.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use tollgate::clock::Manual;
use tollgate::{
    KeyedConcurrencyLimiter, WhenFull,
    concurrency::{OwnedKeyedPermit, PermitDenied},
};

#[test]
fn each_key_has_its_own_limit_and_an_entry_only_while_in_flight() {
    let limiter = KeyedConcurrencyLimiter::<String>::new(2, 100);
    let first = limiter.try_acquire("acme").unwrap();
    let second = limiter.try_acquire("acme").unwrap();
    let refused = limiter.try_acquire("acme").unwrap_err();
    assert_eq!(
        refused.to_string(),
        "concurrency limit: 2 of 2 in use, 0 waiting"
    );
    let other = limiter.key("umbrella").try_acquire_n(2).unwrap();
    assert_eq!(limiter.len(), 2);
    drop(first);
    assert_eq!((limiter.len(), limiter.peek("acme").in_use), (2, 1));
    drop(second);
    assert_eq!(limiter.len(), 1);
    other.success();
    assert!(limiter.is_empty());
    assert_eq!(limiter.peek("acme").available(), 2);
}

#[test]
fn refusals_and_looks_leave_no_entry() {
    let limiter = KeyedConcurrencyLimiter::<String>::new(2, 100);
    assert!(matches!(
        limiter.key("acme").try_acquire_n(3),
        Err(PermitDenied::ExceedsLimit(_))
    ));
    assert!(limiter.key("acme").acquire_n(3).wait_blocking().is_err());
    drop(limiter.acquire("acme"));
    assert_eq!(limiter.peek("acme").limit, 2);
    assert!(limiter.is_empty());
    // A weight of 0 holds an entry too, which its permit takes along.
    let nothing = limiter.key("acme").try_acquire_n(0).unwrap();
    let one = limiter.try_acquire("acme").unwrap();
    drop(one);
    assert_eq!(limiter.len(), 1);
    drop(nothing);
    assert!(limiter.is_empty());
}

#[test]
fn a_tier_s_limit_comes_with_the_call_and_the_latest_is_in_force() {
    let limiter = KeyedConcurrencyLimiter::<String>::new(1, 100);
    let enterprise = limiter.key("acme").at(500);
    let many = enterprise.try_acquire_n(400).unwrap();
    assert_eq!(enterprise.peek().available(), 100);
    assert!(
        limiter.try_acquire("umbrella").is_ok(),
        "others have theirs"
    );
    // A live change of the tier: what is out stays, and drains.
    let standard = limiter.key("acme").at(50);
    assert_eq!(standard.peek().available(), 0);
    assert!(matches!(standard.try_acquire(), Err(PermitDenied::Full(_))));
    drop(many);
    assert!(standard.try_acquire_n(50).is_ok());
    assert!(limiter.is_empty());
}

#[test]
fn a_higher_limit_with_a_call_admits_those_who_wait() {
    let limiter = KeyedConcurrencyLimiter::<String>::new(1, 100);
    let first = limiter.try_acquire("acme").unwrap();
    thread::scope(|scope| {
        let waiter = scope.spawn(|| limiter.acquire("acme").wait_blocking().unwrap());
        while limiter.waiters() == 0 {
            thread::yield_now();
        }
        let refused = limiter.key("acme").at(2).try_acquire().unwrap_err();
        assert_eq!(
            (refused.occupancy().limit, refused.occupancy().in_use),
            (2, 2)
        );
        drop(waiter.join().unwrap());
    });
    drop(first);
    assert!(limiter.is_empty());
}

#[test]
fn a_live_limit_reaches_keys_in_flight_but_not_those_with_their_own() {
    let limiter = KeyedConcurrencyLimiter::<u32>::new(1, 10_000);
    let plain: Vec<_> = (0..100)
        .map(|key| limiter.try_acquire(&key).unwrap())
        .collect();
    let own = limiter.key(&1_000).at(7).try_acquire().unwrap();
    limiter.set_limit(3);
    assert_eq!(limiter.limit(), 3);
    for key in 0..100 {
        assert_eq!(limiter.peek(&key).available(), 2);
    }
    assert_eq!(limiter.peek(&1_000).limit, 7);
    assert_eq!(limiter.peek(&2_000).limit, 3);
    drop((plain, own));
    assert!(limiter.is_empty());
}

#[test]
fn at_the_capacity_new_keys_share_one_limit() {
    let limiter = KeyedConcurrencyLimiter::<u32>::new(2, 10);
    let there: Vec<_> = (0..10)
        .map(|key| limiter.try_acquire(&key).unwrap())
        .collect();
    // A flood of new keys gets one key's worth, and the keys that are there keep theirs.
    let flood: Vec<_> = (100..1_100)
        .filter_map(|key| limiter.try_acquire(&key).ok())
        .collect();
    assert_eq!((flood.len(), limiter.len()), (2, 10));
    // They are told that it isn't theirs, also if they wait for it; what never fits is theirs.
    for refused in [
        limiter.try_acquire(&5_000).map(drop),
        limiter
            .acquire(&5_000)
            .timeout(Duration::ZERO)
            .wait_blocking()
            .map(drop),
        limiter
            .acquire(&5_000)
            .timeout(Duration::from_millis(1))
            .wait_blocking()
            .map(drop),
    ] {
        let refused = refused.unwrap_err();
        assert!(matches!(refused, PermitDenied::TooManyKeys(_)), "{refused}");
        assert_eq!(refused.occupancy().in_use, 2);
    }
    let never = limiter.key(&5_000).try_acquire_n(3).unwrap_err();
    assert!(matches!(never, PermitDenied::ExceedsLimit(_)), "{never}");
    let own = limiter.key(&0).try_acquire_n(2).unwrap_err();
    assert!(matches!(own, PermitDenied::Full(_)), "{own}");
    assert_eq!(limiter.peek(&5_000).available(), 0);
    for key in 0..10 {
        assert!(limiter.try_acquire(&key).is_ok());
    }
    drop(flood);
    assert_eq!(limiter.peek(&5_000).available(), 2);
    drop(there);
    assert_eq!(limiter.len(), 0);
}

#[test]
fn at_the_capacity_new_keys_are_denied_if_so_chosen() {
    let limiter = KeyedConcurrencyLimiter::<u32>::builder(2, 10)
        .at_cap(WhenFull::DenyNew)
        .build()
        .unwrap();
    let mut there: Vec<_> = (0..10)
        .map(|key| limiter.try_acquire(&key).unwrap())
        .collect();
    for refused in [
        limiter.try_acquire(&10).map(drop),
        limiter.acquire(&10).wait_blocking().map(drop),
    ] {
        let refused = refused.unwrap_err();
        assert!(matches!(refused, PermitDenied::TooManyKeys(_)));
        assert_eq!(
            refused.to_string(),
            "concurrency limit: too many keys are in flight already; retry when one has ended"
        );
    }
    assert!(!limiter.peek(&10).fits(1));
    assert!(limiter.try_acquire(&0).is_ok());
    there.truncate(9);
    assert!(limiter.try_acquire(&10).is_ok());
    assert_eq!(limiter.stats().denied, 2);
}

#[test]
fn a_large_table_holds_its_capacity_and_not_a_third_more() {
    const CAPACITY: u32 = 20_000;
    let limiter = KeyedConcurrencyLimiter::<u32>::builder(1, 20_000)
        .at_cap(WhenFull::DenyNew)
        .build()
        .unwrap();
    let permits: Vec<_> = (0..2 * CAPACITY)
        .map_while(|key| limiter.try_acquire(&key).ok())
        .collect();
    assert!(permits.len() >= 20_000, "{}", permits.len());
    let more = (2 * CAPACITY..6 * CAPACITY).filter_map(|key| limiter.try_acquire(&key).ok());
    let all = more.collect::<Vec<_>>().len() + permits.len();
    assert!(all <= 20_000 * 126 / 100, "{all}");
}

#[test]
fn waiters_are_bounded_for_each_key_and_in_total() {
    let clock = Manual::new();
    let limiter = KeyedConcurrencyLimiter::<u32>::builder(1, 10)
        .max_waiters(3)
        .max_waiters_per_key(2)
        .timeout(Duration::from_millis(5))
        .clock(clock.clone())
        .build()
        .unwrap();
    let held = [1, 2].map(|key| limiter.try_acquire(&key).unwrap());
    let queue_full = |key: u32| {
        let refused = limiter.acquire(&key).wait_blocking().unwrap_err();
        assert!(matches!(refused, PermitDenied::QueueFull(_)), "{refused}");
    };
    thread::scope(|scope| {
        let waiter = |key: u32, count: usize| {
            let limiter = &limiter;
            let waiter = scope.spawn(move || limiter.acquire(&key).wait_blocking());
            while limiter.waiters() != count {
                thread::yield_now();
            }
            waiter
        };
        let mut waiters = vec![waiter(1, 1), waiter(1, 2)];
        queue_full(1);
        assert_eq!(limiter.waiters(), 2);
        waiters.push(waiter(2, 3));
        queue_full(2);
        clock.advance(Duration::from_millis(5));
        for waiter in waiters {
            let late = waiter.join().unwrap();
            assert!(matches!(late, Err(PermitDenied::DeadlineExceeded(_))));
        }
    });
    assert_eq!(limiter.waiters(), 0);
    drop(held);
    assert!(limiter.is_empty());
}

#[test]
fn an_owned_permit_outlives_the_caller_s_reference() {
    let limiter = Arc::new(KeyedConcurrencyLimiter::<String>::new(1, 10));
    let permit: OwnedKeyedPermit<String> = {
        let key = String::from("acme");
        limiter.key_owned(key.as_str()).try_acquire().unwrap()
    };
    assert_eq!(limiter.peek("acme").in_use, 1);
    let shared = Arc::clone(&limiter);
    thread::spawn(move || permit.cancel()).join().unwrap();
    assert!(shared.is_empty());
}

/// A key whose hash is the same for all.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Colliding(u32);

impl std::hash::Hash for Colliding {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        state.write_u8(0);
    }
}

#[test]
fn keys_of_one_hash_are_told_apart() {
    let limiter = KeyedConcurrencyLimiter::<Colliding>::new(1, 10);
    let mut permits: Vec<_> = (0..10)
        .map(|key| limiter.try_acquire(&Colliding(key)).unwrap())
        .collect();
    drop(permits.remove(4));
    assert_eq!(limiter.len(), 9);
    for key in 0..10 {
        assert_eq!(limiter.try_acquire(&Colliding(key)).is_ok(), key == 4);
    }
}

#[test]
fn what_slots_cannot_do_at_their_cap_is_refused_when_they_are_built() {
    for (at_cap, name) in [
        (WhenFull::AdmitNew, "AdmitNew"),
        (WhenFull::EvictNearestIdle, "EvictNearestIdle"),
    ] {
        let builder = KeyedConcurrencyLimiter::<u32>::builder(2, 10).at_cap(at_cap);
        assert_eq!(
            builder.build().unwrap_err().to_string(),
            format!(
                "a KeyedConcurrencyLimiter can't treat new keys at its cap as WhenFull::{name} says; \
                 use SharedBucket or DenyNew"
            )
        );
    }
}
