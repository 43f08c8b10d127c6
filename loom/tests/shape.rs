//! Stopping against firing, and flushing against adding, over all interleavings.
#![cfg(loom)]

use std::sync::Arc;
use std::time::Duration;

use loom::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use loom::thread;
use tollgate::clock::Manual;
use tollgate_shape::{Coalesce, Coalescer, Debounce, Debouncer, Edge, FlushOutcome};

const WAIT: Duration = Duration::from_millis(10);

fn check(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(model);
}

/// The calls that an action has seen.
#[derive(Default)]
struct Seen {
    stopped: AtomicBool,
    started: AtomicUsize,
    ended: AtomicUsize,
}

fn debouncer(leading: Edge, seen: &Arc<Seen>, clock: &Manual) -> Debouncer<u32, Manual> {
    let seen = Arc::clone(seen);
    Debounce::new(WAIT)
        .leading(leading)
        .clock(clock.clone())
        .build(move |_| {
            assert!(
                !seen.stopped.load(Ordering::SeqCst),
                "an action started after stop had returned"
            );
            let running =
                seen.started.fetch_add(1, Ordering::SeqCst) - seen.ended.load(Ordering::SeqCst);
            assert_eq!(running, 0, "two actions at once");
            seen.ended.fetch_add(1, Ordering::SeqCst);
        })
}

#[test]
fn after_a_stop_no_action_starts_whoever_fires() {
    check(|| {
        let (seen, clock) = (Arc::new(Seen::default()), Manual::new());
        let debouncer = debouncer(Edge::Off, &seen, &clock);
        debouncer.call(1);
        clock.advance(WAIT);
        let ticks = debouncer.clone();
        let driver = thread::spawn(move || ticks.tick());
        let flushes = debouncer.clone();
        let flusher = thread::spawn(move || flushes.flush());
        debouncer.stop();
        // All calls that started before are counted, so this waits for them.
        let drained = debouncer.stop_and_wait_blocking(Duration::MAX);
        assert!(drained.is_ok());
        assert_eq!(Arc::strong_count(&seen), 1, "captures are gone");
        seen.stopped.store(true, Ordering::SeqCst);
        let started = seen.started.load(Ordering::SeqCst);
        assert_eq!(started, seen.ended.load(Ordering::SeqCst), "drained");
        assert!(driver.join().is_ok() && flusher.join().is_ok());
        assert!(started <= 1 && started == seen.started.load(Ordering::SeqCst));
        assert_eq!(debouncer.stats().panicked, 0);
    });
}

#[test]
fn a_value_fires_once_whether_it_is_flushed_or_its_time_has_come() {
    check(|| {
        let (seen, clock) = (Arc::new(Seen::default()), Manual::new());
        let debouncer = debouncer(Edge::On, &seen, &clock);
        let calls = debouncer.clone();
        let caller = thread::spawn(move || calls.call(1));
        debouncer.call(2);
        clock.advance(WAIT);
        while debouncer.tick() {}
        assert!(caller.join().is_ok());
        clock.advance(WAIT);
        while debouncer.tick() {}
        assert!(!debouncer.pending());
        assert_eq!(seen.started.load(Ordering::SeqCst), 2, "once for each edge");
        assert_eq!(debouncer.stats().panicked, 0);
    });
}

type Made = Coalescer<u32, (), Manual>;

fn coalescer(flushed: &Arc<[AtomicUsize; 3]>, clock: &Manual) -> Made {
    let flushed = Arc::clone(flushed);
    Coalesce::window(WAIT)
        .max_items(2)
        .clock(clock.clone())
        .build(move |batch| {
            for (key, ()) in batch.items() {
                flushed[*key as usize].fetch_add(1, Ordering::SeqCst);
            }
            FlushOutcome::Done
        })
}

#[test]
fn every_item_is_flushed_once_or_left_over() {
    check(|| {
        let flushed: Arc<[AtomicUsize; 3]> = Arc::new(std::array::from_fn(|_| AtomicUsize::new(0)));
        let clock = Manual::new();
        let coalescer = coalescer(&flushed, &clock);
        coalescer.try_add(0, ()).ok();
        let adds = coalescer.clone();
        let adder = thread::spawn(move || {
            let first = adds.try_add(1, ()).is_ok();
            (first, adds.try_add(2, ()).is_ok())
        });
        let flushes = coalescer.clone();
        let flusher = thread::spawn(move || flushes.flush());
        coalescer.tick();
        coalescer.stop();
        let added = adder.join().ok();
        assert!(flusher.join().is_ok());
        let leftover = coalescer.take_unflushed();
        let is_left = |key| {
            leftover
                .iter()
                .any(|batch| batch.items().contains(&(key, ())))
        };
        let (first, second) = added.unwrap_or_default();
        for (key, was_added) in [(0, true), (1, first), (2, second)] {
            let times = flushed[key as usize].load(Ordering::SeqCst);
            assert_eq!(
                times + usize::from(is_left(key)),
                usize::from(was_added),
                "{key}"
            );
        }
    });
}

#[test]
fn a_batch_whose_flush_fails_while_it_is_stopped_is_left_over_once() {
    check(|| {
        let clock = Manual::new();
        let coalescer = Coalesce::window(WAIT)
            .clock(clock.clone())
            .build(|_| FlushOutcome::RetryIn(WAIT));
        coalescer.try_add(0_u32, ()).ok();
        let flushes = coalescer.clone();
        let flusher = thread::spawn(move || flushes.flush());
        coalescer.stop();
        assert!(flusher.join().is_ok());
        let left: usize = coalescer
            .take_unflushed()
            .iter()
            .map(|batch| batch.len())
            .sum();
        assert_eq!((left, coalescer.pending()), (1, 0));
    });
}
