//! Stopping, draining, and what happens when the last handle is gone.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::Duration;

use tollgate::clock::{Clock, Manual, sleep_until};
use tollgate_shape::{Coalesce, Debounce, DrainTimeout, Edge, FlushOutcome};

use crate::{Record, go_to, ms};

#[test]
fn after_a_stop_nothing_fires_and_the_action_is_dropped() {
    let clock = Manual::new();
    let captured = Arc::new(());
    let held = Arc::clone(&captured);
    let debouncer = Debounce::new(ms(100))
        .clock(clock.clone())
        .build(move |(): ()| drop(Arc::clone(&held)));
    debouncer.call(());
    debouncer.stop();
    debouncer.stop();
    assert_eq!(Arc::strong_count(&captured), 1);
    debouncer.call(());
    debouncer.flush();
    go_to(&clock, 500);
    assert_eq!(debouncer.stats().fired, 0);
    assert_eq!(clock.parked(), 0);
}

#[test]
fn the_last_handle_discards_or_flushes() {
    let clock = Manual::new();
    let record = Record::new(&clock);
    let make = |builder: Debounce| {
        let noted = record.clone();
        builder
            .clock(clock.clone())
            .build(move |value: &str| noted.note(value))
    };
    let discards = make(Debounce::new(ms(100)));
    let other = discards.clone();
    discards.call("discarded");
    drop(discards);
    assert!(other.pending());
    drop(other);
    let flushes = make(Debounce::new(ms(100)).flush_on_drop());
    flushes.call("flushed");
    drop(flushes);
    go_to(&clock, 500);
    assert_eq!(record.take(), [(0, "flushed")]);
}

#[test]
fn stop_and_wait_waits_for_what_runs_up_to_its_deadline() {
    let clock = Manual::new();
    let slow = clock.clone();
    let debouncer = Debounce::new(ms(10))
        .clock(clock.clone())
        .build_async(move |takes: Duration| sleep_until(slow.clone(), slow.now() + takes));
    debouncer.call(ms(100));
    clock.advance(ms(10));
    let mut context = Context::from_waker(Waker::noop());
    let mut hasty = pin!(debouncer.stop_and_wait(ms(50)));
    let mut patient = pin!(debouncer.stop_and_wait(ms(200)));
    assert!(hasty.as_mut().poll(&mut context).is_pending());
    assert!(patient.as_mut().poll(&mut context).is_pending());
    clock.advance(ms(50));
    let late = Poll::Ready(Err(DrainTimeout { waited: ms(50) }));
    assert_eq!(hasty.as_mut().poll(&mut context), late);
    assert!(patient.as_mut().poll(&mut context).is_pending());
    clock.advance(ms(50));
    assert_eq!(patient.as_mut().poll(&mut context), Poll::Ready(Ok(())));
}

#[test]
fn a_thread_that_stops_and_waits_sees_all_that_the_action_did() {
    let (began, begun) = mpsc::channel();
    let is_done = Arc::new(AtomicBool::new(false));
    let (go_on, goes_on) = mpsc::channel::<()>();
    let (done, goes_on) = (Arc::clone(&is_done), std::sync::Mutex::new(goes_on));
    let debouncer = Debounce::new(ms(100))
        .leading(Edge::On)
        .build(move |(): ()| {
            began.send(()).unwrap();
            let _ = goes_on.lock().unwrap().recv();
            done.store(true, Ordering::Release);
        });
    thread::scope(|scope| {
        scope.spawn(|| debouncer.call(()));
        begun.recv().unwrap();
        let waiter = scope.spawn(|| debouncer.stop_and_wait_blocking(Duration::from_secs(60)));
        while !debouncer.is_stopped() {
            thread::yield_now();
        }
        go_on.send(()).unwrap();
        assert_eq!(waiter.join().unwrap(), Ok(()));
        assert!(is_done.load(Ordering::Acquire));
    });
}

#[test]
fn a_coalescer_closes_by_flushing_and_tells_what_it_could_not() {
    let clock = Manual::new();
    let coalescer = Coalesce::window(ms(100))
        .max_items(2)
        .clock(clock.clone())
        .build(|batch| match batch.items()[0].0 {
            0 => FlushOutcome::Done,
            _ => FlushOutcome::RetryIn(ms(10)),
        });
    for key in 0..5 {
        coalescer.try_add(key, ()).unwrap();
    }
    assert_eq!(coalescer.pending(), 3, "0 and 1 are flushed");
    let mut context = Context::from_waker(Waker::noop());
    {
        let mut closed = pin!(coalescer.close(ms(50)));
        assert!(closed.as_mut().poll(&mut context).is_pending());
        assert!(coalescer.try_add(9, ()).is_err());
        go_to(&clock, 50);
        let late = Poll::Ready(Err(DrainTimeout { waited: ms(50) }));
        assert_eq!(closed.as_mut().poll(&mut context), late);
    }
    let leftover = coalescer.take_unflushed();
    let keys: Vec<Vec<i32>> = leftover
        .iter()
        .map(|batch| batch.items().iter().map(|(key, ())| *key).collect())
        .collect();
    assert_eq!(keys, [vec![2, 3], vec![4]]);
    assert!(leftover[0].attempt() >= 5);
    assert!(coalescer.take_unflushed().is_empty(), "once");
}

/// Its drop panics.
struct Bomb(bool);

impl Drop for Bomb {
    fn drop(&mut self) {
        assert!(!self.0 || thread::panicking(), "dropped");
    }
}

#[test]
fn a_driver_that_panics_has_stopped_and_keeps_nothing() {
    let (clock, captured) = (Manual::new(), Arc::new(()));
    let held = Arc::clone(&captured);
    let debounce = Debounce::new(ms(100))
        .leading(Edge::On)
        .trailing(Edge::Off)
        .flush_on_drop();
    let debouncer = debounce
        .clock(clock.clone())
        .build(move |_: Bomb| drop(Arc::clone(&held)));
    debouncer.call(Bomb(false));
    debouncer.call(Bomb(true));
    let advanced = catch_unwind(AssertUnwindSafe(|| clock.advance(ms(100))));
    assert!(advanced.is_err(), "the value's own drop panics");
    assert!(debouncer.is_stopped());
    drop(debouncer);
    go_to(&clock, 1_000);
    assert_eq!(Arc::strong_count(&captured), 1);
}
