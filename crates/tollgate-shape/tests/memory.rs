//! The allocations of a trigger, and the memory of a pending key: a program of its own, for its allocator.

use std::time::Duration;

use tollgate::clock::Manual;
use tollgate_shape::Debounce;
use tollgate_testkit::allocation_counter::{CountingAllocator, allocation_count, live_bytes};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

const WAIT: Duration = Duration::from_millis(100);

#[test]
fn a_trigger_allocates_nothing() {
    let clock = Manual::new();
    let debouncer = Debounce::new(WAIT).clock(clock.clone()).build(|_: u64| {});
    debouncer.call(0);
    let before = allocation_count();
    for value in 0..1_000 {
        debouncer.call(value);
    }
    assert_eq!(allocation_count(), before);
    clock.advance(WAIT);
    assert_eq!(debouncer.stats().fired, 1);
}

#[test]
fn a_pending_key_takes_less_than_100_bytes_beside_key_and_value() {
    let clock = Manual::new();
    let before = live_bytes();
    let debouncer = Debounce::new(WAIT)
        .clock(clock.clone())
        .keyed(1_000_000)
        .build(|_: u64, _: u64| {});
    for key in 0..300_000u64 {
        debouncer.call(key, 0).unwrap();
        if key % 1_000 == 999 && key > 100_000 {
            let bytes = live_bytes().wrapping_sub(before) as u64;
            let each = bytes / (key + 1) - 16;
            assert!(each <= 100, "{each} bytes a key with {key} of them");
        }
    }
    clock.advance(WAIT);
    assert_eq!((debouncer.stats().fired, debouncer.len()), (300_000, 0));
    let left = live_bytes().wrapping_sub(before);
    assert!(left < 10_000, "{left} bytes are left of keys that are gone");
}

#[test]
fn keys_that_were_flushed_together_leave_no_memory_behind() {
    let clock = Manual::new();
    let before = live_bytes();
    let debouncer = Debounce::new(WAIT)
        .clock(clock.clone())
        .keyed(1_000_000)
        .build(|_: u64, _: u64| {});
    for key in 0..30_000u64 {
        debouncer.call(key, 0).unwrap();
    }
    assert_eq!(debouncer.flush_all(), 30_000);
    clock.advance(WAIT);
    assert_eq!((debouncer.stats().fired, debouncer.len()), (30_000, 0));
    let left = live_bytes().wrapping_sub(before);
    assert!(left < 10_000, "{left} bytes are left of keys that are gone");
}
