//! Every future is dropped at every point at which it can wait: nothing leaks, runs twice, or hangs.

use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Waker};

use tollgate::Rate;
use tollgate::clock::{Clock, Manual, sleep_until};
use tollgate_shape::{Coalesce, Debounce, Driver, Edge, FlushOutcome, WorkPacer};

use crate::ms;

/// Counts what is alive.
#[derive(Clone, Debug)]
struct Alive(Arc<()>);

impl Alive {
    fn new() -> Self {
        Self(Arc::new(()))
    }

    fn check(&self, what: &str) {
        assert_eq!(Arc::strong_count(&self.0), 1, "{what} is left behind");
    }
}

/// Polls a future up to so many times, a millisecond apart, and drops it there. Whether it ended.
fn polled<F: Future + ?Sized>(mut future: Pin<Box<F>>, clock: &Manual, times: usize) -> bool {
    for _ in 0..times {
        if future
            .as_mut()
            .poll(&mut Context::from_waker(Waker::noop()))
            .is_ready()
        {
            return true;
        }
        clock.advance(ms(1));
    }
    false
}

#[test]
fn a_driver_that_is_dropped_anywhere_stops_and_drops_all() {
    for times in 0..20 {
        let (clock, alive) = (Manual::new(), Alive::new());
        let driver: Arc<Mutex<Option<Driver>>> = Arc::default();
        let (slot, slow, captured) = (Arc::clone(&driver), clock.clone(), alive.clone());
        let ended = Arc::new(AtomicUsize::new(0));
        let ends = Arc::clone(&ended);
        let debouncer = Debounce::new(ms(3))
            .leading(Edge::On)
            .clock(clock.clone())
            .spawn_with(move |driver| *slot.lock().unwrap() = Some(driver))
            .build_async(move |value: Alive| {
                let (held, ends) = ((captured.clone(), value), Arc::clone(&ends));
                let sleep = sleep_until(slow.clone(), slow.now() + ms(4));
                async move {
                    sleep.await;
                    ends.fetch_add(1, Ordering::Relaxed);
                    drop(held);
                }
            });
        debouncer.call(alive.clone());
        debouncer.call(alive.clone());
        let driver = driver.lock().unwrap().take().unwrap();
        assert!(!polled(Box::pin(driver), &clock, times));
        assert!(debouncer.is_stopped());
        // Nobody waits for an action that can't end any more.
        assert!(polled(
            Box::pin(debouncer.stop_and_wait(ms(1000))),
            &clock,
            1
        ));
        debouncer.call(alive.clone());
        alive.check("a value or an action");
        assert_eq!(clock.parked(), 0);
        assert_eq!(
            ended.load(Ordering::Relaxed),
            usize::from(times > 4) + usize::from(times > 8)
        );
    }
}

#[test]
fn a_coalescer_whose_driver_is_dropped_anywhere_has_every_item_or_flushed_it() {
    for times in 0..30 {
        let clock = Manual::new();
        let driver: Arc<Mutex<Option<Driver>>> = Arc::default();
        let flushed: Arc<Mutex<Vec<u32>>> = Arc::default();
        let (slot, slow, noted) = (Arc::clone(&driver), clock.clone(), Arc::clone(&flushed));
        let coalescer = Coalesce::window(ms(2))
            .max_items(3)
            .clock(clock.clone())
            .spawn_with(move |driver| *slot.lock().unwrap() = Some(driver))
            .build_async(move |batch| {
                let sleep = sleep_until(slow.clone(), slow.now() + ms(2));
                let noted = Arc::clone(&noted);
                async move {
                    sleep.await;
                    if batch.attempt() == 0 {
                        return FlushOutcome::RetryIn(ms(1));
                    }
                    let keys = batch.items().iter().map(|(key, ())| *key);
                    noted.lock().unwrap().extend(keys);
                    FlushOutcome::Done
                }
            });
        for key in 0..8 {
            coalescer.try_add(key, ()).unwrap();
        }
        let driver = driver.lock().unwrap().take().unwrap();
        assert!(!polled(Box::pin(driver), &clock, times));
        assert!(coalescer.is_stopped());
        let mut all = flushed.lock().unwrap().clone();
        let leftover = coalescer.take_unflushed();
        all.extend(
            leftover
                .iter()
                .flat_map(|batch| batch.items().iter().map(|(key, ())| *key)),
        );
        assert_eq!(all, [0, 1, 2, 3, 4, 5, 6, 7], "dropped after {times} looks");
        assert_eq!(clock.parked(), 0);
    }
}

#[test]
fn a_wait_that_is_dropped_anywhere_frees_its_place() {
    for times in 0..12 {
        let clock = Manual::new();
        let pacer = WorkPacer::builder(Rate::per_second(100), 2)
            .clock(clock.clone())
            .build()
            .unwrap();
        assert!(polled(Box::pin(pacer.pace().into_future()), &clock, 1));
        let passed = polled(Box::pin(pacer.pace().into_future()), &clock, times);
        assert_eq!(passed, times > 10);
        assert_eq!((pacer.waiters(), clock.parked()), (0, 0));
        // The next one has the turn of whoever left.
        let mut next = Box::pin(pacer.pace().into_future());
        let mut context = Context::from_waker(Waker::noop());
        let mut looks = 0;
        while next.as_mut().poll(&mut context).is_pending() {
            clock.advance(ms(1));
            looks += 1;
        }
        let expect = if passed { 10 } else { 10 - times.min(10) };
        assert_eq!(looks, expect, "dropped after {times} looks");
    }
}

#[test]
fn an_add_that_is_dropped_anywhere_leaves_its_room_to_the_next() {
    for times in 0..8 {
        let (clock, alive) = (Manual::new(), Alive::new());
        let slow = clock.clone();
        let coalescer = Coalesce::window(ms(1))
            .max_pending(1)
            .clock(clock.clone())
            .build_async(move |_| {
                let sleep = sleep_until(slow.clone(), slow.now() + ms(4));
                async {
                    sleep.await;
                    FlushOutcome::Done
                }
            });
        coalescer.try_add(0, alive.clone()).unwrap();
        let mut behind = Box::pin(coalescer.add(2, alive.clone()));
        let first = polled(Box::pin(coalescer.add(1, alive.clone())), &clock, times);
        assert_eq!(first, times > 4);
        let mut context = Context::from_waker(Waker::noop());
        while behind.as_mut().poll(&mut context).is_pending() {
            clock.advance(ms(1));
        }
        (0..20).for_each(|_| clock.advance(ms(1)));
        assert_eq!(coalescer.pending(), 0);
        drop(behind);
        alive.check("an item");
    }
}
