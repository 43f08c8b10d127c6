//! A clock that is set back: a waiter fires after its remaining time, not when the clock has caught up.

use tollgate::Timestamp;
use tollgate::clock::Manual;
use tollgate_shape::{Coalesce, Debounce, FlushOutcome, Throttle};

use crate::{Record, go_to, ms};

/// Calls at 10 s, and 40 ms later the clock is set back to 1 s: when it fires.
fn fires(builder: Debounce) -> Vec<(u64, u64)> {
    let clock = Manual::starting_at(Timestamp::from_secs(10));
    let record = Record::new(&clock);
    let noted = record.clone();
    let builder = builder.clock(clock.clone());
    let debouncer = builder.build(move |value| noted.note(value));
    debouncer.call(1);
    go_to(&clock, 10_040);
    debouncer.call(2);
    clock.set(Timestamp::from_secs(1));
    go_to(&clock, 1_300);
    debouncer.call(3);
    go_to(&clock, 1_800);
    record.take()
}

#[test]
fn a_debouncer_fires_after_what_was_left() {
    assert_eq!(fires(Debounce::new(ms(100))), [(1_100, 2), (1_400, 3)]);
}

#[test]
fn a_throttle_fires_after_what_was_left() {
    // The first at once; the second 100 ms after it, of which 40 had passed.
    let expect = [(10_000, 1), (1_060, 2), (1_300, 3)];
    assert_eq!(fires(Throttle::every(ms(100))), expect);
}

#[test]
fn firings_that_are_kept_apart_fire_after_what_was_left() {
    let builder = Debounce::new(ms(10)).then_throttle(ms(100));
    let fired = fires(builder);
    assert_eq!(fired, [(10_010, 1), (1_070, 2), (1_310, 3)]);
}

#[test]
fn keys_fire_after_what_was_left() {
    let clock = Manual::starting_at(Timestamp::from_secs(10));
    let record = Record::new(&clock);
    let noted = record.clone();
    let builder = Debounce::new(ms(100)).clock(clock.clone());
    let keyed = builder
        .keyed(10)
        .build(move |key: u64, value: u64| noted.note((key, value)));
    keyed.call(1, 1).unwrap();
    go_to(&clock, 10_040);
    keyed.call(2, 2).unwrap();
    clock.set(Timestamp::from_secs(1));
    go_to(&clock, 1_500);
    keyed.call(1, 3).unwrap();
    go_to(&clock, 1_700);
    let expect = [(1_060, (1, 1)), (1_100, (2, 2)), (1_600, (1, 3))];
    assert_eq!(record.take(), expect);
}

#[test]
fn a_coalescer_flushes_after_what_was_left() {
    let clock = Manual::starting_at(Timestamp::from_secs(10));
    let record = Record::new(&clock);
    let noted = record.clone();
    let builder = Coalesce::<&str, u64>::window(ms(100)).clock(clock.clone());
    let coalescer = builder.build(move |batch| {
        noted.note(batch.items().to_vec());
        match batch.attempt() {
            0 => FlushOutcome::RetryIn(ms(50)),
            _ => FlushOutcome::Done,
        }
    });
    coalescer.try_add("a", 1).unwrap();
    go_to(&clock, 10_040);
    coalescer.try_add("b", 2).unwrap();
    clock.set(Timestamp::from_secs(1));
    go_to(&clock, 1_070);
    clock.set(Timestamp::ZERO);
    go_to(&clock, 500);
    // Ten of the milliseconds went by before anybody looked.
    let both = || vec![("a", 1), ("b", 2)];
    assert_eq!(record.take(), [(1_060, both()), (50, both())]);
}
