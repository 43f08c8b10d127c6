//! The exact-key table: what its keys, its cap, its blocks and its live changes promise.
//! The laws of one key are in `exact_keyed_laws.rs`.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use tollgate::clock::Manual;
use tollgate::{
    Algorithm, Outcome, Rate, RateDenied, StoredKeyLimiter, Timestamp, WhenFull,
    core::WindowAlignment,
};

type Table<K> = StoredKeyLimiter<K, Manual>;

const EVERY_ALGORITHM: [Algorithm; 7] = [
    Algorithm::Gcra,
    Algorithm::TokenBucket,
    Algorithm::LeakyBucket,
    Algorithm::FixedWindow(WindowAlignment::Boundary(Timestamp::ZERO)),
    Algorithm::FixedWindow(WindowAlignment::FirstHit),
    Algorithm::SlidingLog,
    Algorithm::SlidingCounter,
];
const EVERY_POLICY: [WhenFull; 4] = [
    WhenFull::SharedBucket,
    WhenFull::DenyNew,
    WhenFull::AdmitNew,
    WhenFull::EvictNearestIdle,
];

pub(crate) fn table<K>(
    algorithm: Algorithm,
    rate: Rate,
    capacity: usize,
    at_cap: WhenFull,
) -> Table<K> {
    StoredKeyLimiter::builder(rate, capacity)
        .algorithm(algorithm)
        .at_cap(at_cap)
        .clock(Manual::new())
        .build()
        .expect("a rate that fits")
}

/// Takes all that the key has.
fn spend(limiter: &Table<u64>, key: u64) {
    assert!(
        limiter
            .check_n(&key, limiter.key(&key).peek().remaining)
            .is_allowed()
    );
}

#[test]
fn at_the_cap_new_keys_get_what_the_policy_says_and_old_ones_keep_their_limits() {
    for algorithm in EVERY_ALGORITHM {
        for at_cap in EVERY_POLICY {
            let limiter = table(algorithm, Rate::per_second(5), 10, at_cap);
            (0..10).for_each(|key| spend(&limiter, key));
            let passed = (100..200).filter(|key| limiter.allow(key)).count();
            let expect = match at_cap {
                WhenFull::SharedBucket => 5,
                WhenFull::DenyNew => 0,
                _ => 100,
            };
            assert_eq!(passed, expect, "{algorithm:?} {at_cap:?}");
            let stats = limiter.stats();
            if at_cap == WhenFull::EvictNearestIdle {
                assert_eq!((stats.evicted, stats.overflowed), (100, 0));
            } else {
                assert_eq!((stats.evicted, stats.overflowed), (0, 100));
                assert!((0..10).all(|key| !limiter.allow(&key)));
            }
            assert_eq!(limiter.len(), 10);
            // Once the ten are idle, new keys have slots of their own.
            limiter.clock().advance(Duration::from_secs(4));
            assert!((300..310).all(|key| limiter.check_n(&key, 5).is_allowed()));
            assert!((300..310).all(|key| !limiter.allow(&key)));
        }
    }
}

#[test]
fn eviction_takes_the_key_that_is_idle_next_and_is_a_way_around_the_limit() {
    let rate = Rate::per_hour(10);
    let limiter = table(Algorithm::TokenBucket, rate, 5, WhenFull::EvictNearestIdle);
    for key in 0..5u64 {
        assert!(limiter.check_n(&key, 2 + key).is_allowed());
    }
    assert!(limiter.check_n(&100, 9).is_allowed());
    let left: Vec<_> = (0..5)
        .map(|key| limiter.key(&key).peek().remaining)
        .collect();
    assert_eq!(left, [10, 7, 6, 5, 4]);
    // The bypass: a spent key floods the table with made-up ones and starts afresh.
    spend(&limiter, 4);
    limiter.clock().advance(Duration::from_secs(1));
    (1_000..1_010).for_each(|made_up| spend(&limiter, made_up));
    assert!(limiter.allow(&4));
}

#[test]
fn blocked_keys_stay_blocked_under_a_flood() {
    for algorithm in EVERY_ALGORITHM {
        for at_cap in EVERY_POLICY {
            let limiter = table(algorithm, Rate::per_second(5), 100, at_cap);
            // Half of them had an entry before.
            (0..10).for_each(|key| spend(&limiter, key));
            for key in 0..20 {
                let block = Duration::from_secs(10 + key);
                limiter.key(&key).block_for(block).unwrap();
            }
            for second in 0..10 {
                for made_up in 0..300 {
                    let _ = limiter.allow(&(1_000 + second * 300 + made_up));
                    assert!(!limiter.allow(&(made_up % 20)), "{algorithm:?} {at_cap:?}");
                }
                assert!(limiter.key(&(second % 20)).reserve(1).is_err());
                limiter.clock().advance(Duration::from_secs(1));
            }
            let decision = limiter.check(&10);
            assert_eq!(decision.outcome, Outcome::Denied);
            assert_eq!(decision.wait_or_max(), Duration::from_secs(10));
            assert!(limiter.allow(&0));
            limiter.clock().advance(Duration::from_secs(20));
            assert!((0..20).all(|key| limiter.allow(&key)));
        }
    }
}

#[test]
fn blocks_have_room_of_their_own_and_an_error_beyond_it() {
    let limiter = table(Algorithm::Gcra, Rate::per_hour(1), 64, WhenFull::DenyNew);
    (0..64).for_each(|key| spend(&limiter, key));
    let hour = Duration::from_secs(3600);
    let blocked = (100..200).take_while(|key| limiter.key(key).block_for(hour).is_ok());
    assert_eq!(blocked.count(), 17);
    let error = limiter.key(&500).block_for(hour).unwrap_err();
    assert!(error.to_string().contains("capacity of 64"));
    assert!(limiter.key(&500).penalize(1).is_err());
    // A shorter block doesn't shorten, a key that is there always has room, reset lifts it.
    limiter.key(&100).block_for(Duration::ZERO).unwrap();
    limiter.key(&0).block_for(hour).unwrap();
    assert!(!limiter.allow(&100));
    limiter.key(&0).reset();
    assert_eq!(limiter.len(), 63 + 17);
}

#[test]
fn a_flood_finds_bounded_work_and_a_bounded_table() {
    for at_cap in EVERY_POLICY {
        let limiter = table(Algorithm::SlidingLog, Rate::per_second(2), 500, at_cap);
        let mut before = limiter.stats().expired;
        for key in 0..30_000u64 {
            let _ = limiter.allow(&key);
            if key % 100 == 0 {
                limiter.clock().advance(Duration::from_millis(key % 700));
                assert!(limiter.len() <= 500);
            }
            let expired = limiter.stats().expired;
            assert!(expired - before <= 8);
            before = expired;
        }
        assert!(limiter.stats().slots <= 500);
    }
}

#[test]
fn a_full_table_of_several_shards_holds_every_key_of_its_capacity() {
    let limiter = table(
        Algorithm::LeakyBucket,
        Rate::per_hour(1),
        20_000,
        WhenFull::AdmitNew,
    );
    (0..20_000u64).for_each(|key| assert!(limiter.allow(&key)));
    assert!((0..20_000).all(|key| !limiter.allow(&key)));
    assert_eq!((limiter.len(), limiter.stats().overflowed), (20_000, 0));
}

#[test]
fn only_a_new_key_that_was_charged_is_cloned() {
    static CLONES: AtomicU64 = AtomicU64::new(0);
    #[derive(PartialEq, Eq, Hash)]
    struct Costly(u64);
    impl Clone for Costly {
        fn clone(&self) -> Self {
            CLONES.fetch_add(1, Ordering::Relaxed);
            Self(self.0)
        }
    }
    let limiter = table(Algorithm::Gcra, Rate::per_hour(2), 100, WhenFull::DenyNew);
    for _ in 0..10 {
        for key in (0..100).map(Costly) {
            let _ = limiter.key(&key).peek();
            // A cost above the burst never passes, so half of the keys are never stored.
            let _ = limiter.check_n(&key, if key.0 < 50 { 1 } else { 3 });
        }
    }
    assert_eq!(CLONES.load(Ordering::Relaxed), 50);
}

#[test]
fn a_key_that_was_dropped_does_not_start_again_at_an_earlier_time() {
    let rate = Rate::per_second(3);
    let limiter = table(EVERY_ALGORITHM[3], rate, 10, WhenFull::DenyNew);
    let at = Timestamp::from_secs;
    assert!(limiter.key("a").check_at(at(1), 3).is_allowed());
    assert!(limiter.key("b").check_at(at(10), 1).is_allowed());
    assert_eq!(limiter.stats().expired, 1);
    // A late call at 1 s counts in the window from 2 s on, the first in which the key was idle.
    assert!(limiter.key("a").check_at(at(1), 3).is_allowed());
    assert!(!limiter.key("a").check_at(at(1), 1).is_allowed());
    assert!(!limiter.key("a").check_at(at(2), 1).is_allowed());
    assert!(limiter.key("a").check_at(at(3), 1).is_allowed());
}

#[test]
fn reservations_are_given_back_to_the_entry_that_they_were_made_in() {
    for algorithm in EVERY_ALGORITHM {
        let limiter = table(algorithm, Rate::per_second(2), 10, WhenFull::DenyNew);
        assert!(limiter.check_n("key", 2).is_allowed());
        let before = limiter.check("key");
        let first = limiter.key("key").reserve(1).unwrap();
        let second = limiter.key("key").reserve(1).unwrap();
        assert!(!first.delay().is_zero() && second.ready_at() >= first.ready_at());
        second.cancel();
        first.cancel();
        assert_eq!(limiter.check("key"), before, "{algorithm:?}");

        // The key comes back after it was dropped: what it takes then is no longer the ticket's.
        let old = limiter.key("key").reserve(1).unwrap();
        limiter.clock().advance(Duration::from_secs(9));
        assert!(limiter.allow("other"));
        assert_eq!(limiter.stats().expired, 1);
        assert!(limiter.check_n("key", 2).is_allowed());
        old.cancel();
        assert!(!limiter.allow("key"), "{algorithm:?}");
    }
}

#[test]
fn what_was_booked_in_the_shared_bucket_comes_back_to_it() {
    let limiter = table(
        Algorithm::TokenBucket,
        Rate::per_hour(5),
        0,
        WhenFull::SharedBucket,
    );
    let slot = limiter.key("a").reserve(5).unwrap();
    assert!(!limiter.allow("b"));
    slot.cancel();
    assert!(limiter.check_n("c", 5).is_allowed());
    assert!(matches!(
        limiter.key("d").reserve(6),
        Err(RateDenied::ExceedsBurst(_))
    ));
    let late = limiter.key("d").acquire().timeout(Duration::from_secs(1));
    assert!(matches!(
        late.wait_blocking(),
        Err(RateDenied::DeadlineExceeded(_))
    ));
}

#[test]
fn a_changed_rate_keeps_what_every_key_has_spent() {
    for algorithm in EVERY_ALGORITHM {
        let limiter = table(algorithm, Rate::per_hour(10), 1_000, WhenFull::DenyNew);
        (0..500u64).for_each(|key| assert!(limiter.check_n(&key, 4).is_allowed()));
        for _ in 0..40 {
            limiter.set_rate(Rate::per_hour(20)).unwrap();
            limiter.set_rate(Rate::per_hour(8)).unwrap();
            limiter.set_rate(Rate::per_hour(10)).unwrap();
        }
        assert_eq!(limiter.rate(), Rate::per_hour(10));
        // Most kinds are back at 6, but for one word's rounding; a token bucket gains nothing by a raised burst and loses what a
        // lowered one can't hold.
        for key in 0..500 {
            let left = limiter.key(&key).peek().remaining;
            let least = if algorithm == Algorithm::TokenBucket {
                0
            } else {
                5
            };
            assert!((least..=6).contains(&left), "{algorithm:?} {key} {left}");
        }
        assert_eq!(limiter.key(&1_000).peek().remaining, 10);
        if algorithm != Algorithm::SlidingLog {
            let unfit = Rate::new(1, Duration::MAX);
            assert!(limiter.set_rate(unfit).is_err(), "{algorithm:?}");
        }
    }
}

#[test]
fn a_key_that_a_slower_rate_keeps_busy_is_not_dropped_by_the_faster_one() {
    let fast = Rate::per_second(10);
    let slow = Rate::per_hour(10);
    for algorithm in [
        Algorithm::Gcra,
        Algorithm::TokenBucket,
        Algorithm::LeakyBucket,
    ] {
        let limiter = table(algorithm, fast, 1_000, WhenFull::DenyNew);
        (0..50).for_each(|key| spend(&limiter, key));
        limiter.set_rate(slow).unwrap();
        limiter.clock().advance(Duration::from_secs(60));
        (100..200).for_each(|key| spend(&limiter, key));
        assert!((0..50).all(|key| !limiter.allow(&key)), "{algorithm:?}");
        assert_eq!(limiter.stats().expired, 0);
    }
}

#[test]
fn gifts_and_fines_stay_between_full_and_empty() {
    for algorithm in EVERY_ALGORITHM {
        let limiter = table(algorithm, Rate::per_hour(10), 10, WhenFull::DenyNew);
        let left = || limiter.key("key").peek().remaining;
        limiter.key("key").refund(5);
        assert_eq!(left(), 10);
        limiter.key("key").penalize(3).unwrap();
        assert_eq!(left(), 7, "{algorithm:?}");
        limiter.key("key").penalize(99).unwrap();
        assert_eq!(left(), 0);
        limiter.key("key").refund(4);
        assert_eq!(left(), 4, "{algorithm:?}");
        limiter.key("key").refund(u64::MAX);
        assert_eq!(left(), 10, "{algorithm:?}");
        let _ = limiter.check_n("key", 6);
        limiter.key("key").reset();
        assert_eq!(left(), 10);
    }
}

#[test]
fn a_batch_decides_as_single_calls_do() {
    for algorithm in EVERY_ALGORITHM {
        for at_cap in EVERY_POLICY {
            let (one, many) = (
                table::<u64>(algorithm, Rate::per_second(4), 3_000, at_cap),
                table::<u64>(algorithm, Rate::per_second(4), 3_000, at_cap),
            );
            let mut decisions = Vec::new();
            for round in 0..40u64 {
                // Equal keys in a row and apart, looks, and costs that never pass; in the end more
                // keys than find a slot.
                let keys: Vec<_> = (0..200u64).map(|n| n / 2 + round % 3 * 7).collect();
                let flood = (0..if round == 30 { 6_000 } else { 0 }).map(|n| 1_000 + n);
                let keys: Vec<_> = keys.into_iter().chain(flood).collect();
                let requests: Vec<_> = keys.iter().map(|key| (key, key % 6)).collect();
                many.check_many(&requests, &mut decisions);
                assert_eq!(decisions.len(), requests.len());
                if round < 30 {
                    let single: Vec<_> = requests
                        .iter()
                        .map(|(key, cost)| one.check_n(*key, *cost))
                        .collect();
                    assert_eq!(decisions, single, "{algorithm:?} {at_cap:?}");
                }
                for limiter in [&one, &many] {
                    limiter.clock().advance(Duration::from_millis(round * 17));
                }
            }
            let stats = many.stats();
            let full = stats.overflowed + stats.evicted > 0;
            assert!(full, "{algorithm:?} {at_cap:?} {stats:?}");
        }
    }
}

#[test]
fn stats_tell_why_keys_were_dropped_and_what_that_took() {
    let limiter = table(
        Algorithm::Gcra,
        Rate::per_second(10),
        100,
        WhenFull::EvictNearestIdle,
    );
    (0..100u64).for_each(|key| assert!(limiter.check_n(&key, 1 + key % 3).is_allowed()));
    limiter.key(&0).reset();
    limiter.key(&0).reset();
    limiter.key(&1_000).reset();
    assert_eq!(limiter.stats().reset, 1);
    // One slot is free, then two keys have to go.
    (200..203u64).for_each(|key| assert!(limiter.allow(&key)));
    let stats = limiter.stats();
    assert_eq!((stats.evicted, stats.expired, stats.overflowed), (2, 0, 0));
    assert!(stats.examined >= 2);
    // All are idle: each new key drops four of them until none is left.
    limiter.clock().advance(Duration::from_secs(1));
    (300..325u64).for_each(|key| assert!(limiter.allow(&key)));
    let after = limiter.stats();
    assert_eq!((after.evicted, after.expired, after.reset), (2, 100, 1));
    assert_eq!(after.examined - stats.examined, 100);
    // A key that was charged since it came is looked at, and stays.
    limiter.clock().advance(Duration::from_millis(50));
    (300..325u64).for_each(|key| assert!(limiter.check_n(&key, 5).is_allowed()));
    limiter.clock().advance(Duration::from_millis(60));
    assert!(limiter.allow(&400));
    let last = limiter.stats();
    assert_eq!(last.expired, 100);
    assert_eq!(last.examined - after.examined, 8);
}

#[test]
fn a_clock_that_counts_from_long_ago_fits() {
    let epoch = Timestamp::from_secs(60 * 365 * 86_400);
    for algorithm in EVERY_ALGORITHM {
        let limiter = StoredKeyLimiter::builder(Rate::per_second(2), 10)
            .algorithm(algorithm)
            .clock(Manual::starting_at(epoch))
            .build()
            .unwrap();
        assert!(limiter.check_n("key", 2).is_allowed());
        assert!(!limiter.allow("key"));
        let slot = limiter.key("key").reserve(1).unwrap();
        assert!(slot.ready_at() > epoch && slot.delay() <= Duration::from_secs(2));
    }
}

#[test]
fn threads_share_one_key_and_the_counters_add_up() {
    for algorithm in EVERY_ALGORITHM {
        let limiter = table(algorithm, Rate::per_hour(1_000), 5_000, WhenFull::DenyNew);
        let work = |thread: u64| {
            let own = (0..900).filter(|n| limiter.allow(&(1 + thread * 900 + n)));
            assert_eq!(own.count(), 900);
            (0..600).filter(|_| limiter.allow(&0)).count()
        };
        let passed: usize = thread::scope(|scope| {
            let threads: Vec<_> = (0..4).map(|n| scope.spawn(move || work(n))).collect();
            threads.into_iter().map(|t| t.join().unwrap()).sum()
        });
        assert_eq!(passed, 1_000, "{algorithm:?}");
        let stats = limiter.stats();
        assert_eq!((stats.allowed, stats.denied), (3_600 + 1_000, 1_400));
    }
}

#[cfg(feature = "tokio")]
#[tokio::test(start_paused = true)]
async fn waiters_of_one_key_pass_in_turn() {
    let limiter = StoredKeyLimiter::builder(Rate::per_second(10).burst(1), 10)
        .algorithm(Algorithm::LeakyBucket)
        .clock(tollgate::clock::Tokio::new())
        .build()
        .unwrap();
    assert_eq!(limiter.key("key").acquire().await, Ok(Duration::ZERO));
    assert_eq!(
        limiter.key("key").acquire().await,
        Ok(Duration::from_millis(100))
    );
    assert_eq!(limiter.key("other").acquire().await, Ok(Duration::ZERO));
    assert_eq!(limiter.waiters(), 0);
}

#[test]
fn whoever_visits_active_keys_may_call_the_limiter() {
    for algorithm in EVERY_ALGORITHM {
        // Of several shards.
        let limiter = table::<u64>(algorithm, Rate::per_hour(5), 5_000, WhenFull::DenyNew);
        (0..3_000).for_each(|key| assert!(limiter.allow(&key)));
        let mut seen = 0;
        limiter.for_each_active(|active| {
            let key = limiter.key(active.key);
            assert_eq!(key.peek().remaining, 4, "{algorithm:?}");
            key.reset();
            assert!(limiter.stats().allowed >= 3_000 && limiter.rate() == Rate::per_hour(5));
            seen += 1;
        });
        assert_eq!((seen, limiter.len()), (3_000, 0), "{algorithm:?}");
    }
}
