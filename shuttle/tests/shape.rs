//! Storms of calls, flushes, failures and stops on random schedules: every item once, and nothing after a stop.
#![cfg(shuttle)]

use std::sync::Arc;
use std::time::Duration;

use shuttle::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use shuttle::thread;
use tollgate::clock::Manual;
use tollgate_shape::{Batch, Coalesce, Debounce, Edge, FlushOutcome};

const WAIT: Duration = Duration::from_millis(10);
const ITEMS: usize = 12;

#[test]
fn a_debouncer_under_calls_flushes_and_a_stop() {
    shuttle::check_random(
        || {
            let (is_stopped, running) = (
                Arc::new(AtomicBool::new(false)),
                Arc::new(AtomicUsize::new(0)),
            );
            let (stopped, inside) = (Arc::clone(&is_stopped), Arc::clone(&running));
            let clock = Manual::new();
            let debouncer = Debounce::new(WAIT)
                .leading(Edge::On)
                .max_wait(WAIT)
                .clock(clock.clone())
                .build(move |_: usize| {
                    assert!(!stopped.load(Ordering::SeqCst), "started after the stop");
                    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two at once");
                    thread::yield_now();
                    inside.fetch_sub(1, Ordering::SeqCst);
                });
            let threads: Vec<_> = (0..3)
                .map(|number| {
                    let (debouncer, clock) = (debouncer.clone(), clock.clone());
                    thread::spawn(move || {
                        for value in 0..4 {
                            debouncer.call(value);
                            match number {
                                0 => drop(debouncer.flush()),
                                1 => clock.advance(WAIT),
                                _ => drop(debouncer.tick()),
                            }
                        }
                    })
                })
                .collect();
            thread::yield_now();
            debouncer.stop();
            let drained = debouncer.stop_and_wait_blocking(Duration::MAX);
            assert!(drained.is_ok());
            is_stopped.store(true, Ordering::SeqCst);
            assert_eq!(running.load(Ordering::SeqCst), 0, "drained");
            for thread in threads {
                assert!(thread.join().is_ok());
            }
            assert_eq!(debouncer.stats().panicked, 0);
        },
        2_000,
    );
}

#[test]
fn a_coalescer_under_adds_flushes_failures_and_a_stop() {
    shuttle::check_random(
        || {
            let clock = Manual::new();
            let flushed: Arc<[AtomicUsize; ITEMS]> =
                Arc::new(std::array::from_fn(|_| AtomicUsize::new(0)));
            let counts = Arc::clone(&flushed);
            let coalescer = Coalesce::window(WAIT)
                .max_items(3)
                .clock(clock.clone())
                .build(move |batch: &Batch<usize, ()>| {
                    if batch.attempt() == 0 && batch.items()[0].0 % 2 == 0 {
                        return FlushOutcome::RetryIn(WAIT);
                    }
                    for (key, ()) in batch.items() {
                        counts[*key].fetch_add(1, Ordering::SeqCst);
                    }
                    FlushOutcome::Done
                });
            let threads: Vec<_> = (0..3)
                .map(|number| {
                    let (coalescer, clock) = (coalescer.clone(), clock.clone());
                    thread::spawn(move || {
                        let mut added = Vec::new();
                        for key in (number * 4)..(number * 4 + 4) {
                            if coalescer.try_add(key, ()).is_ok() {
                                added.push(key);
                            }
                            match key % 3 {
                                0 => drop(coalescer.flush()),
                                1 => clock.advance(WAIT),
                                _ => drop(coalescer.tick()),
                            }
                        }
                        added
                    })
                })
                .collect();
            thread::yield_now();
            coalescer.stop();
            let mut added = Vec::new();
            for thread in threads {
                added.extend(thread.join().unwrap_or_default());
            }
            let leftover = coalescer.take_unflushed();
            for key in 0..ITEMS {
                let left = leftover
                    .iter()
                    .filter(|batch| batch.items().contains(&(key, ())));
                let times = flushed[key].load(Ordering::SeqCst) + left.count();
                assert_eq!(times, usize::from(added.contains(&key)), "item {key}");
            }
        },
        2_000,
    );
}
