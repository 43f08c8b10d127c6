//! Holds of keys in a table: a key with an open hold isn't idle.

use std::time::Duration;

use tollgate::clock::Manual;
use tollgate::{
    Algorithm, CompositeLimiter, Limit, Rate, StoredKeyLimiter, Tier, WhenFull,
    stack::CostReservation,
};

use super::subject::{Keeper, Subject, Table};

const BUCKETS: [Algorithm; 3] = [
    Algorithm::Gcra,
    Algorithm::TokenBucket,
    Algorithm::LeakyBucket,
];
const HOUR: Duration = Duration::from_secs(3_600);

fn table(algorithm: Algorithm, at_cap: WhenFull, clock: &Manual) -> Table {
    StoredKeyLimiter::builder(Rate::per_second(1_000).burst(5), 32)
        .algorithm(algorithm)
        .at_cap(at_cap)
        .clock(clock.clone())
        .build()
        .expect("a rate that fits")
}

#[test]
fn a_key_of_which_something_is_out_is_not_dropped_as_idle() {
    for algorithm in BUCKETS {
        for at_cap in [
            WhenFull::DenyNew,
            WhenFull::SharedBucket,
            WhenFull::EvictNearestIdle,
        ] {
            let (clock, stack) = (Manual::new(), CompositeLimiter::new());
            let table = table(algorithm, at_cap, &clock);
            let key = table.key("held");
            let levels = [Limit::estimated("key", &key, 4)];
            let hold = stack.hold(&levels, HOUR).unwrap();
            // Others come and go, and are idle 5 ms after they came: below the cap, and at it.
            for number in 0..2_000 {
                clock.advance(Duration::from_micros(if number < 1_000 {
                    1_000
                } else {
                    50
                }));
                let other = format!("other {number}");
                let _ = table.check_n(other.as_str(), 5);
            }
            let stats = table.stats();
            assert!(stats.expired > 900, "{stats:?}");
            assert!(table.len() > 1);
            assert_eq!(
                table.key("held").peek().remaining,
                1,
                "{algorithm:?} {at_cap:?}"
            );
            hold.settle(1);
            assert_eq!(
                table.key("held").peek().remaining,
                4,
                "{algorithm:?} {at_cap:?}"
            );
        }
    }
}

#[test]
fn who_would_evict_finds_held_keys_last() {
    for algorithm in BUCKETS {
        let (clock, stack) = (Manual::new(), CompositeLimiter::new());
        let table = table(algorithm, WhenFull::EvictNearestIdle, &clock);
        let names: Vec<String> = (0..1_000).map(|number| format!("held {number}")).collect();
        // One is held of each, so their states are idle sooner than all others.
        let keys: Vec<_> = names.iter().map(|name| table.key(name.as_str())).collect();
        let hold = |index: usize| {
            let longest = HOUR - Duration::from_secs(u64::try_from(index).unwrap());
            stack.hold(&[Limit::estimated("key", &keys[index], 1)], longest)
        };
        let few: Vec<_> = (0..5).map(|index| hold(index).unwrap()).collect();
        for number in 0..500 {
            let other = format!("other {number}");
            assert!(table.check_n(other.as_str(), 5).is_allowed());
        }
        assert!(table.stats().evicted > 400);
        for name in &names[..5] {
            assert_eq!(
                table.key(name.as_str()).peek().remaining,
                4,
                "{algorithm:?}"
            );
        }
        // With nothing but held keys the one that is over first goes: the policy says so, and counts.
        let before = table.stats().evicted;
        let many: Vec<_> = (5..1_000).map(|index| hold(index).unwrap()).collect();
        assert!(table.stats().evicted > before + 900);
        // What they held is gone with them: nothing comes back to a key that starts anew.
        for name in &names {
            let _ = table.check_n(name.as_str(), 5);
        }
        let left = |name: &String| table.key(name.as_str()).peek().remaining;
        let before: Vec<_> = names.iter().map(left).collect();
        many.into_iter()
            .chain(few)
            .for_each(CostReservation::cancel);
        let after: Vec<_> = names.iter().map(left).collect();
        let more: u64 = after.iter().zip(&before).map(|(is, was)| is - was).sum();
        let kept = u64::try_from(table.capacity() * 2).unwrap();
        assert!(more <= kept, "{algorithm:?} {more}");
        assert!(after.iter().all(|left| *left <= 5));
    }
}

#[test]
fn what_is_held_of_a_key_that_was_reset_is_gone() {
    for algorithm in BUCKETS {
        let (clock, stack) = (Manual::new(), CompositeLimiter::new());
        let table = table(algorithm, WhenFull::DenyNew, &clock);
        let key = table.key("key");
        let levels = [Limit::estimated("key", &key, 4)];
        let hold = stack.hold(&levels, HOUR).unwrap();
        table.key("key").reset();
        assert_eq!(table.key("key").peek().remaining, 5);
        assert!(table.check_n("key", 5).is_allowed());
        hold.settle(0);
        assert_eq!(table.key("key").peek().remaining, 0, "{algorithm:?}");
        clock.advance(Duration::from_secs(1));
        assert_eq!(table.key("key").peek().remaining, 5, "{algorithm:?}");
    }
}

#[test]
fn a_blocked_key_keeps_what_is_out() {
    for algorithm in BUCKETS {
        let (clock, stack) = (Manual::new(), CompositeLimiter::new());
        let table = table(algorithm, WhenFull::DenyNew, &clock);
        let key = table.key("key");
        let hold = stack.hold(&[Limit::estimated("key", &key, 4)], HOUR);
        table.key("key").block_for(Duration::from_secs(1)).unwrap();
        clock.advance(Duration::from_secs(2));
        for number in 0..100 {
            let _ = table.check(format!("other {number}").as_str());
            clock.advance(Duration::from_millis(2));
        }
        assert_eq!(table.key("key").peek().remaining, 1, "{algorithm:?}");
        hold.unwrap().cancel();
        assert_eq!(table.key("key").peek().remaining, 5, "{algorithm:?}");
    }
}

#[test]
fn a_snapshot_owes_what_is_out() {
    for algorithm in BUCKETS {
        let (clock, stack) = (Manual::new(), CompositeLimiter::new());
        let builder =
            || StoredKeyLimiter::<String>::builder(Rate::per_hour(10), 32).algorithm(algorithm);
        let table = builder()
            .clock(clock.clone())
            .build()
            .expect("a rate that fits");
        let key = table.key("key");
        let hold = stack.hold(&[Limit::estimated("key", &key, 10)], 9 * HOUR);
        clock.advance(2 * HOUR);
        assert_eq!(table.len(), 1, "{algorithm:?}");
        let name = format!("tollgate-stack-{algorithm:?}-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let keys = table.snapshot(&path, |key, bytes| bytes.extend(key.as_bytes()));
        let restored = builder()
            .clock(clock.clone())
            .restore(&path, |bytes| String::from_utf8(bytes.to_vec()).ok());
        std::fs::remove_file(&path).unwrap();
        assert_eq!(keys.unwrap(), 1, "{algorithm:?}");
        assert_eq!(
            restored.unwrap().key("key").peek().remaining,
            0,
            "{algorithm:?}"
        );
        drop(hold);
    }
}

#[test]
fn a_key_that_moves_to_another_tier_still_owes_what_is_out() {
    for algorithm in BUCKETS {
        let subject = Subject::new(Keeper::Exact(algorithm), Rate::per_second(10));
        let table = subject.table();
        let low = Tier::new(table.algorithm(), Rate::per_second(5)).unwrap();
        let high = Tier::new(table.algorithm(), Rate::per_second(100)).unwrap();
        let hold = subject.hold(5, 60_000).expect("ten left");
        subject.advance(10_000);
        // Five are out, which is all that the lower tier may have.
        let decision = table.key("key").at(&low).unwrap().check_n(1);
        assert!(!decision.is_allowed(), "{algorithm:?}");
        subject.advance(10_000);
        let decision = table.key("key").at(&high).unwrap().check_n(0);
        assert!(decision.remaining <= 95, "{algorithm:?} {decision:?}");
        hold.settle(0);
        subject.advance(10_000);
        assert_eq!(
            table.key("key").at(&high).unwrap().check_n(0).remaining,
            100
        );
    }
}

#[test]
fn keys_without_a_slot_settle_what_they_hold_of_the_bucket_that_they_share() {
    for algorithm in BUCKETS {
        let (clock, stack) = (Manual::new(), CompositeLimiter::new());
        let table = table(algorithm, WhenFull::SharedBucket, &clock);
        // Until there is no room: the latest has spent all that such keys share, and four come back.
        let mut number = 0;
        while table.stats().overflowed == 0 {
            let _ = table.check_n(format!("{number}").as_str(), 5);
            number += 1;
        }
        clock.advance(Duration::from_millis(4));
        let key = table.key("shares");
        let hold = |cost| stack.hold(&[Limit::estimated("key", &key, cost)], HOUR);
        let passed = || (0..5).filter(|_| table.allow("another")).count();
        hold(4).expect("four of five").cancel();
        let held = hold(3).expect("four of five");
        assert_eq!(passed(), 1, "{algorithm:?}");
        held.settle(1);
        assert_eq!(passed(), 2, "{algorithm:?}");
    }
}
