//! A table that grows and overflows, on random schedules: more threads and keys than can be tried in
//! every order.
//!
//! The schedules come from a fixed seed, and so does the hash: a run that fails fails again.
#![cfg(shuttle)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use shuttle::scheduler::{PctScheduler, RandomScheduler};
use shuttle::{Config, Runner, thread};
use tollgate::clock::Manual;
use tollgate::{KeyedLimiter, Rate, Timestamp, WhenFull};

const BURST: u64 = 3;
const THREADS: u32 = 3;

type Table = KeyedLimiter<Manual>;

fn table(capacity: usize, at_cap: WhenFull) -> Arc<Table> {
    let table = KeyedLimiter::builder(Rate::per_second(1).burst(BURST), capacity)
        .at_cap(at_cap)
        .clock(Manual::starting_at(Timestamp::from_secs(5)))
        .build();
    Arc::new(table.expect("a rate that fits"))
}

/// Runs `model` on schedules with few thread switches at chosen points, and on plain random ones.
fn check(model: impl Fn() + Sync + Send + Copy + 'static) {
    const RUNS: usize = 2_000;
    Runner::new(PctScheduler::new_from_seed(7, 4, RUNS), Config::new()).run(model);
    Runner::new(RandomScheduler::new_from_seed(8, RUNS), Config::new()).run(model);
}

/// Runs `body` on several threads, with their numbers. Returns all results.
fn together<T: Send + 'static>(table: &Arc<Table>, body: fn(&Table, u32) -> T) -> Vec<T> {
    let threads: Vec<_> = (0..THREADS)
        .map(|number| {
            let table = Arc::clone(table);
            thread::spawn(move || body(&table, number))
        })
        .collect();
    threads
        .into_iter()
        .map(|thread| thread.join().expect("no panic"))
        .collect()
}

/// How many requests of each of `keys` keys passed, over all threads.
fn sums(passed: &[Vec<u64>]) -> Vec<u64> {
    (0..passed[0].len())
        .map(|key| passed.iter().map(|of_thread| of_thread[key]).sum())
        .collect()
}

#[test]
fn a_table_that_grows_under_its_threads_limits_every_key() {
    // Whether a split moves a key depends on the order of threads, so this counts over all runs.
    static MOVED: AtomicU64 = AtomicU64::new(0);
    check(|| {
        let table = table(12, WhenFull::DenyNew);
        let passed = together(&table, |table, number| {
            let mut passed = vec![0; 12];
            for turn in 0..24u32 {
                let key = (turn * 5 + number * 4) % 12;
                passed[key as usize] += u64::from(table.allow(&key));
            }
            passed
        });
        for (key, passed) in (0u32..).zip(sums(&passed)) {
            // Six tries each. A charge during a move may be made twice, never lost.
            let left = table.key(&key).peek().remaining;
            assert!(passed + left <= BURST, "{key}: {passed} and {left} left");
        }
        let stats = table.stats();
        MOVED.fetch_add(stats.moved, Ordering::Relaxed);
        assert!(stats.slots > 12, "{stats:?}");
        assert_eq!(stats.overflowed, 0, "{stats:?}");
        assert_eq!(table.len(), 12);
    });
    assert!(MOVED.load(Ordering::Relaxed) > 1_000);
}

#[test]
fn a_table_that_overflows_keeps_those_who_are_there_and_shares_one_bucket() {
    check(|| {
        let table = table(1, WhenFull::SharedBucket);
        for key in 0..8u32 {
            assert!(table.key(&key).allow_n(BURST));
        }
        let passed = together(&table, |table, number| {
            let mut passed = 0;
            for turn in 0..4u32 {
                assert!(!table.allow(&(turn * 2)), "one who is there got free");
                passed += u64::from(table.allow(&(100 + number * 10 + turn)));
            }
            passed
        });
        assert_eq!(passed.iter().sum::<u64>(), BURST);
        assert_eq!(table.len(), 8);
    });
}

#[test]
fn keys_that_go_idle_are_taken_over_while_they_come_back() {
    check(|| {
        let table = table(3, WhenFull::DenyNew);
        for key in 0..12u32 {
            assert!(table.key(&key).allow_n(BURST));
        }
        table.clock().advance(Duration::from_secs(10));
        let passed = together(&table, |table, number| {
            let mut passed = vec![0; 20];
            for turn in 0..10u32 {
                // Old keys and new ones, each on several threads.
                let key = (turn * 3 + number) % 20;
                passed[key as usize] += 2 * u64::from(table.key(&key).allow_n(2));
            }
            passed
        });
        for (key, passed) in (0u32..).zip(sums(&passed)) {
            assert!(passed <= BURST, "{key}: {passed}");
        }
    });
}

#[test]
fn blocks_survive_eviction_and_growth() {
    check(|| {
        let table = table(3, WhenFull::EvictNearestIdle);
        together(&table, |table, number| {
            let hour = Duration::from_secs(3_600);
            let blocked = table.key(&number).block_for(hour).is_ok();
            for turn in 0..6u32 {
                let _ = table.allow(&(100 + number * 10 + turn));
                assert!(!blocked || !table.allow(&number));
            }
        });
        assert!((0..THREADS).all(|key| !table.allow(&key)));
    });
}

#[test]
fn what_is_cancelled_comes_back_whole_while_the_table_grows() {
    static MOVED: AtomicU64 = AtomicU64::new(0);
    check(|| {
        let table = table(12, WhenFull::DenyNew);
        together(&table, |table, number| {
            for turn in 0..4u32 {
                // No other thread uses these keys, but all of them are moved to make room.
                assert!(table.allow(&(number, turn)));
                let slot = table.key(&(number, turn / 2)).reserve(1);
                slot.expect("two are left").cancel();
            }
        });
        for (number, turn) in
            (0..THREADS).flat_map(|number| (0..4u32).map(move |turn| (number, turn)))
        {
            let left = table.key(&(number, turn)).peek().remaining;
            assert_eq!(left, BURST - 1, "{turn} of {number}");
        }
        MOVED.fetch_add(table.stats().moved, Ordering::Relaxed);
    });
    assert!(MOVED.load(Ordering::Relaxed) > 1_000);
}
