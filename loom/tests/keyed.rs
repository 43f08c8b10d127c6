//! Every race on one shard of a table, over all interleavings: charge, take-over, move by growth or
//! displacement, change of rate, block, eviction, and a move of the words' origin.
//!
//! Under the model the hash has a fixed seed and the stash one line, so it is known which keys share a line.
//! The table has room for as many keys as a model says, keys are small numbers, and each model asserts that the
//! race it is about did happen.
#![cfg(loom)]

use std::sync::Arc;
use std::time::Duration;

use loom::thread;
use tollgate::clock::Manual;
use tollgate::{Algorithm, KeyedLimiter, Rate, Tier, Timestamp, WhenFull};

const NOW: Timestamp = Timestamp::from_secs(5);
const HOUR: Duration = Duration::from_secs(3_600);

type Table = KeyedLimiter<Manual>;

/// A table with a burst of two for each key, with one token of each of the keys below `keys` spent.
fn table(capacity: usize, at_cap: WhenFull, keys: u32) -> Arc<Table> {
    let table = KeyedLimiter::builder(Rate::per_second(1).burst(2), capacity)
        .at_cap(at_cap)
        .clock(Manual::starting_at(NOW))
        .build()
        .unwrap();
    for key in 0..keys {
        assert!(table.allow(&key));
    }
    Arc::new(table)
}

/// Runs `model` over all interleavings with at most this many preemptions.
fn check(preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.max_branches = 100_000;
    builder.check(model);
}

/// Runs both concurrently, and returns their results.
fn run_both(table: &Arc<Table>, bodies: [fn(&Table) -> u64; 2]) -> [u64; 2] {
    let threads = bodies.map(|body| {
        let table = Arc::clone(table);
        thread::spawn(move || body(&table))
    });
    threads.map(|thread| thread.join().unwrap())
}

/// One if the key passes.
fn passes(table: &Table, key: u32) -> u64 {
    u64::from(table.allow(&key))
}

/// One if the key passes at this rate in a minute, with the same burst of two. The limiter's own rate is 60.
fn passes_at(table: &Table, key: u32, a_minute: u64) -> u64 {
    let rate = Tier::new(Algorithm::Gcra, Rate::per_minute(a_minute).burst(2)).unwrap();
    u64::from(table.key(&key).at(&rate).unwrap().allow())
}

fn left(table: &Table, key: u32) -> u64 {
    table.key(&key).peek().remaining
}

#[test]
fn threads_share_the_burst_of_a_new_key_exactly() {
    check(3, || {
        let table = table(1, WhenFull::DenyNew, 0);
        let each = |table: &Table| passes(table, 0) + passes(table, 0);
        let passed = run_both(&table, [each, each]);
        assert_eq!(passed.iter().sum::<u64>(), 2);
        assert_eq!((left(&table, 0), table.len()), (0, 1));
    });
}

#[test]
fn threads_share_what_is_left_of_a_known_key_exactly() {
    check(3, || {
        let table = table(1, WhenFull::DenyNew, 1);
        let each = |table: &Table| passes(table, 0) + passes(table, 0);
        let passed = run_both(&table, [each, each]);
        assert_eq!(passed.iter().sum::<u64>(), 1);
        assert_eq!(left(&table, 0), 0);
    });
}

#[test]
fn an_idle_key_that_is_charged_while_its_slot_is_taken_over_loses_nothing() {
    check(3, || {
        let table = table(1, WhenFull::DenyNew, 1);
        table.clock().advance(Duration::from_secs(10));
        let passed = run_both(
            &table,
            [
                |table| passes(table, 0) + passes(table, 0) + passes(table, 0),
                |table| passes(table, 1),
            ],
        );
        assert_eq!(passed, [2, 1]);
        assert_eq!((left(&table, 0), left(&table, 1)), (0, 1));
        assert_eq!(table.len(), 2);
    });
}

#[test]
fn two_new_keys_after_one_idle_slot_get_one_each() {
    check(3, || {
        let table = table(1, WhenFull::DenyNew, 1);
        table.clock().advance(Duration::from_secs(10));
        let passed = run_both(&table, [|table| passes(table, 1), |table| passes(table, 2)]);
        assert_eq!(passed, [1, 1]);
        assert_eq!((left(&table, 1), left(&table, 2)), (1, 1));
    });
}

#[test]
fn a_key_that_is_charged_while_growth_moves_it_gets_no_more_than_its_burst() {
    check(3, || {
        // The third key splits the only line, and key 3 moves to the new one.
        let table = table(3, WhenFull::DenyNew, 0);
        assert_eq!([3, 1].map(|key| passes(&table, key)), [1, 1]);
        let passed = run_both(
            &table,
            [
                |table| passes(table, 3) + passes(table, 3),
                |table| passes(table, 2),
            ],
        );
        assert_eq!(table.stats().moved, 1);
        // A charge during the move may be made twice, which is the safe side.
        assert!(passed[0] <= 1 && passed[1] == 1, "{passed:?}");
        assert_eq!([3, 1, 2].map(|key| left(&table, key)), [0, 1, 1]);
    });
}

#[test]
fn a_key_that_is_charged_while_it_is_displaced_gets_no_more_than_its_burst() {
    check(2, || {
        // Both lines of the tenth key are full; the sixth makes room.
        let table = table(7, WhenFull::DenyNew, 9);
        let moved = table.stats().moved;
        let passed = run_both(
            &table,
            [
                |table| passes(table, 5) + passes(table, 5),
                |table| passes(table, 9),
            ],
        );
        assert_eq!(table.stats().moved, moved + 1);
        assert!(passed[0] <= 1 && passed[1] == 1, "{passed:?}");
        assert_eq!(left(&table, 5), 0);
        // The new key is where the old one was, with the same word. A charge of the old key that lands there is
        // made again at the right place, and stays: the safe side.
        assert!(left(&table, 9) <= 1);
    });
}

#[test]
fn a_gift_never_reaches_the_key_that_got_the_slot() {
    check(3, || {
        // The third key moves key 3, and the fourth gets its slot, with the same word.
        let table = table(3, WhenFull::DenyNew, 0);
        assert_eq!([3, 1].map(|key| passes(&table, key)), [1, 1]);
        run_both(
            &table,
            [
                |table| {
                    table.key(&3).refund(1);
                    0
                },
                |table| passes(table, 2) + passes(table, 4),
            ],
        );
        assert_eq!(table.stats().moved, 1);
        assert_eq!([3, 1, 2, 4].map(|key| left(&table, key)), [2, 1, 1, 1]);
    });
}

#[test]
fn a_block_holds_whatever_is_charged_meanwhile() {
    check(3, || {
        let table = table(1, WhenFull::DenyNew, 0);
        let [passed, _] = run_both(
            &table,
            [
                |table| passes(table, 0) + passes(table, 0),
                |table| {
                    table.key(&0).block_for(HOUR).unwrap();
                    // From here on nothing passes.
                    passes(table, 0)
                },
            ],
        );
        assert!(passed <= 2);
        assert_eq!(passes(&table, 0), 0);
        assert_eq!(table.key(&0).peek().wait_or_max(), HOUR);
    });
}

#[test]
fn the_longer_of_two_blocks_holds() {
    check(3, || {
        let table = table(1, WhenFull::DenyNew, 0);
        run_both(
            &table,
            [
                |table| u64::from(table.key(&0).block_for(HOUR).is_ok()),
                |table| u64::from(table.key(&0).block_for(2 * HOUR).is_ok()),
            ],
        );
        assert_eq!(table.key(&0).peek().wait_or_max(), 2 * HOUR);
    });
}

#[test]
fn a_key_that_is_blocked_at_the_moment_of_an_eviction_stays_blocked() {
    check(2, || {
        // Four keys in the line and four in the stash: the ninth evicts the first.
        let table = table(1, WhenFull::EvictNearestIdle, 8);
        let [_, passed] = run_both(
            &table,
            [
                |table| u64::from(table.key(&0).block_for(HOUR).is_ok()),
                |table| passes(table, 8),
            ],
        );
        assert_eq!((passed, table.stats().evicted), (1, 1));
        assert_eq!(table.key(&0).peek().wait_or_max(), HOUR);
    });
}

#[test]
fn keys_without_a_slot_share_one_bucket_exactly() {
    check(2, || {
        let table = table(1, WhenFull::SharedBucket, 8);
        let passed = run_both(
            &table,
            [
                |table| passes(table, 100) + passes(table, 101),
                |table| passes(table, 102) + passes(table, 103),
            ],
        );
        assert_eq!(passed.iter().sum::<u64>(), 2);
        assert_eq!(table.stats().overflowed, 4);
    });
}

#[test]
fn a_cancelled_slot_comes_back_or_not_but_never_twice() {
    check(3, || {
        let table = table(3, WhenFull::DenyNew, 2);
        let [passed, _] = run_both(
            &table,
            [
                |table| {
                    table.key(&0).reserve(1).unwrap().cancel();
                    passes(table, 0)
                },
                |table| passes(table, 2),
            ],
        );
        assert!(passed + left(&table, 0) <= 1, "{passed}");
        assert_eq!(left(&table, 2), 1);
    });
}

#[test]
fn a_key_is_never_judged_by_the_word_of_the_one_whose_slot_it_got() {
    check(3, || {
        // Key 0 is in the first slot, becomes idle first, and has nothing left; the others become idle later.
        let table = table(1, WhenFull::EvictNearestIdle, 0);
        assert!(table.key(&0u32).allow_n(2));
        (1..8).for_each(|key| table.key(&key).block_for(HOUR).unwrap());
        let new = |table: &Table| passes(table, 8);
        let passed = run_both(&table, [new, new]);
        assert_eq!(table.stats().evicted, 1);
        assert_eq!(passed, [1, 1]);
    });
}

#[test]
fn threads_at_two_rates_share_the_burst_of_a_new_key() {
    check(3, || {
        let table = table(1, WhenFull::DenyNew, 0);
        let passed = run_both(
            &table,
            [
                |table| passes(table, 0) + passes(table, 0),
                |table| passes_at(table, 0, 1) + passes_at(table, 0, 1),
            ],
        );
        // A charge during a change of rate may be made twice, which is the safe side.
        let passed: u64 = passed.iter().sum();
        assert!((1..=2).contains(&passed), "{passed}");
        assert_eq!((left(&table, 0), table.len()), (0, 1));
    });
}

#[test]
fn a_key_that_is_charged_while_a_faster_rate_refuses_it_gets_no_more_than_its_burst() {
    check(3, || {
        let table = table(1, WhenFull::DenyNew, 1);
        let passed = run_both(
            &table,
            [
                |table| passes(table, 0) + passes(table, 0),
                // The second is denied, and takes the word over if that is still at the slower rate.
                |table| passes_at(table, 0, 600) + passes_at(table, 0, 600),
            ],
        );
        assert!(passed.iter().sum::<u64>() <= 1, "{passed:?}");
        assert_eq!((left(&table, 0), table.len()), (0, 1));
    });
}

#[test]
fn a_key_that_changes_its_rate_while_growth_moves_it_gets_no_more_than_its_burst() {
    check(3, || {
        // The third key splits the only line, and key 3 moves to the new one.
        let table = table(3, WhenFull::DenyNew, 0);
        assert_eq!([3, 1].map(|key| passes(&table, key)), [1, 1]);
        let passed = run_both(
            &table,
            [
                |table| passes_at(table, 3, 600) + passes(table, 3),
                |table| passes(table, 2),
            ],
        );
        assert_eq!(table.stats().moved, 1);
        assert!(passed[0] <= 1 && passed[1] == 1, "{passed:?}");
        assert_eq!([3, 1, 2].map(|key| left(&table, key)), [0, 1, 1]);
        assert_eq!(table.len(), 3);
    });
}

#[test]
fn a_gift_reaches_a_key_once_at_whichever_rate_it_counts() {
    check(3, || {
        let table = table(1, WhenFull::DenyNew, 1);
        let [_, passed] = run_both(
            &table,
            [
                |table| {
                    table.key(&0).refund(1);
                    0
                },
                |table| passes_at(table, 0, 1) + passes_at(table, 0, 1),
            ],
        );
        // One was spent, one was refunded, and the rest passed.
        assert!(passed <= 2, "{passed}");
        assert!(passed + left(&table, 0) <= 2, "{passed}");
        assert_eq!(table.len(), 1);
    });
}

const DAY: Duration = Duration::from_secs(86_400);

/// A time after the table was made: within the first year of its words, or after it.
fn day(days: u32) -> Timestamp {
    NOW + days * DAY
}

/// One if the key passes then.
fn passes_on(table: &Table, key: u32, days: u32) -> u64 {
    u64::from(table.key(&key).check_at(day(days), 1).is_allowed())
}

/// A table with three tokens for each key that take 219 days each, two of the first key's spent: before and
/// after the end of the year two are there.
fn slow_table() -> Arc<Table> {
    let table = KeyedLimiter::builder(Rate::every(219 * DAY).burst(3), 1)
        .at_cap(WhenFull::DenyNew)
        .clock(Manual::starting_at(NOW))
        .build()
        .unwrap();
    assert!(table.check_n(&0u32, 2).is_allowed());
    Arc::new(table)
}

#[test]
fn a_key_that_is_charged_while_its_word_is_counted_anew_gets_what_it_has() {
    check(3, || {
        let table = slow_table();
        let passed = run_both(
            &table,
            [
                |table| passes_on(table, 0, 364) + passes_on(table, 0, 364),
                |table| passes_on(table, 0, 366),
            ],
        );
        assert_eq!(passed.iter().sum::<u64>(), 2);
        let left = table.key(&0u32).check_at(day(366), 0);
        assert_eq!(
            (left.remaining, left.reset_after),
            (0, (438 + 438 - 366) * DAY)
        );
    });
}

#[test]
fn a_key_that_comes_while_words_are_counted_anew_is_counted_from_there() {
    check(3, || {
        let table = slow_table();
        let passed = run_both(
            &table,
            [
                |table| passes_on(table, 1, 364) + passes_on(table, 1, 364),
                |table| passes_on(table, 0, 366),
            ],
        );
        assert_eq!(passed, [2, 1]);
        let reset_after = |key: u32| table.key(&key).check_at(day(366), 0).reset_after;
        assert_eq!(reset_after(0), (438 + 219 - 366) * DAY);
        // From its own time, or from a later one that the table had seen.
        assert!((436 * DAY..=438 * DAY).contains(&reset_after(1)));
    });
}

#[test]
fn two_who_move_what_words_count_from_move_it_once() {
    check(3, || {
        let table = slow_table();
        let each = |table: &Table| passes_on(table, 0, 366);
        assert_eq!(run_both(&table, [each, each]), [1, 1]);
        let left = table.key(&0u32).check_at(day(366), 0);
        assert_eq!(
            (left.remaining, left.reset_after),
            (0, (438 + 438 - 366) * DAY)
        );
    });
}

#[test]
fn a_key_that_is_charged_while_the_clock_is_set_back_gets_one_burst_more_at_most() {
    check(3, || {
        let table = table(1, WhenFull::DenyNew, 0);
        assert_eq!(passes_on(&table, 0, 300), 1);
        let passed = run_both(
            &table,
            [
                |table| passes_on(table, 0, 300) + passes_on(table, 0, 300),
                |table| passes_on(table, 1, 7) + passes_on(table, 0, 7),
            ],
        );
        assert!(passed[0] <= 2 && passed[1] >= 1, "{passed:?}");
        // Whichever call came last, the clock is right now, and the key has its burst again after the two
        // seconds that it takes, and one.
        passes_on(&table, 0, 7);
        let later = day(7) + Duration::from_secs(3);
        let all = table.key(&0u32).check_at(later, 2);
        assert!(all.is_allowed(), "{all:?}");
    });
}
