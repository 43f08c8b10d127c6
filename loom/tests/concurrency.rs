//! The word of a concurrency limit against its queue, over all interleavings: acquire, release, joining the
//! queue, and a change of the limit.
#![cfg(loom)]

use std::sync::Arc;

use loom::sync::atomic::{AtomicU32, Ordering};
use loom::thread;
use tollgate::ConcurrencyLimiter;
use tollgate::clock::Manual;

type Shared = Arc<ConcurrencyLimiter<Manual>>;

fn limiter(limit: u32) -> Shared {
    Arc::new(
        ConcurrencyLimiter::builder(limit)
            .clock(Manual::new())
            .build(),
    )
}

/// Runs `model` over all interleavings with at most three preemptions, which is where races show.
fn check(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(model);
}

/// Counts the visits of the holders of the only permit, with an unordered load and store: visits are lost if
/// two holders are inside concurrently, or if one doesn't see what the one before did.
#[derive(Default)]
struct Guarded {
    value: AtomicU32,
    visits: AtomicU32,
}

impl Guarded {
    fn new() -> Arc<Self> {
        Arc::default()
    }

    fn visit(&self) {
        let value = self.value.load(Ordering::Relaxed);
        self.value.store(value + 1, Ordering::Relaxed);
        self.visits.fetch_add(1, Ordering::Relaxed);
    }

    fn check(&self) {
        let (value, visits) = (&self.value, &self.visits);
        assert_eq!(
            value.load(Ordering::Relaxed),
            visits.load(Ordering::Relaxed)
        );
    }
}

#[test]
fn tries_exclude_each_other_and_see_what_the_last_one_did() {
    check(|| {
        let (limiter, guarded) = (limiter(1), Guarded::new());
        let threads = [(); 2].map(|()| {
            let (limiter, guarded) = (Arc::clone(&limiter), Arc::clone(&guarded));
            thread::spawn(move || {
                let permit = limiter.try_acquire();
                if permit.is_ok() {
                    guarded.visit();
                }
            })
        });
        if let Ok(permit) = limiter.try_acquire() {
            guarded.visit();
            permit.success();
        }
        for thread in threads {
            thread.join().unwrap();
        }
        guarded.check();
        assert_eq!(limiter.peek().in_use, 0);
        assert!(limiter.try_acquire().is_ok());
    });
}

#[test]
fn weights_never_sum_above_the_limit() {
    check(|| {
        let limiter = limiter(3);
        let threads = [1, 2].map(|weight| {
            let limiter = Arc::clone(&limiter);
            thread::spawn(move || {
                let permit = limiter.try_acquire_n(weight);
                let in_flight = permit.map(|permit| permit.in_flight());
                assert!(in_flight.is_ok_and(|in_flight| in_flight <= 3));
            })
        });
        for thread in threads {
            thread.join().unwrap();
        }
        assert_eq!(limiter.peek().in_use, 0);
    });
}

#[test]
fn a_permit_given_back_as_another_joins_the_queue_is_not_lost() {
    check(|| {
        let (limiter, guarded) = (limiter(1), Guarded::new());
        let held = limiter.try_acquire_owned().unwrap();
        let waiter = {
            let (limiter, guarded) = (Arc::clone(&limiter), Arc::clone(&guarded));
            thread::spawn(move || {
                let permit = limiter.acquire().wait_blocking().unwrap();
                guarded.visit();
                permit.success();
            })
        };
        guarded.visit();
        held.success();
        // No barging: while it waits this is denied, and when it passes the two exclude each other.
        if let Ok(permit) = limiter.try_acquire() {
            guarded.visit();
            permit.success();
        }
        waiter.join().unwrap();
        guarded.check();
        let look = limiter.peek();
        assert_eq!((look.in_use, look.waiting), (0, 0));
    });
}

#[test]
fn a_waiter_sees_what_all_did_who_made_room_for_it() {
    check(|| {
        let limiter = limiter(2);
        let done = Arc::new([AtomicU32::new(0), AtomicU32::new(0)]);
        let held = [(); 2].map(|()| limiter.try_acquire_owned().unwrap());
        let waiter = {
            let (limiter, done) = (Arc::clone(&limiter), Arc::clone(&done));
            thread::spawn(move || {
                let _permit = limiter.acquire_n(2).wait_blocking().unwrap();
                for done in done.iter() {
                    assert_eq!(done.load(Ordering::Relaxed), 1);
                }
            })
        };
        let [first, second] = held;
        let other = {
            let done = Arc::clone(&done);
            thread::spawn(move || {
                done[0].store(1, Ordering::Relaxed);
                drop(first);
            })
        };
        done[1].store(1, Ordering::Relaxed);
        drop(second);
        other.join().unwrap();
        waiter.join().unwrap();
    });
}

#[test]
fn a_limit_that_rises_as_another_joins_the_queue_admits_it() {
    check(|| {
        let limiter = limiter(1);
        let held = limiter.try_acquire_owned().unwrap();
        let waiter = {
            let limiter = Arc::clone(&limiter);
            thread::spawn(move || limiter.acquire().wait_blocking().unwrap().in_flight())
        };
        limiter.set_limit(2);
        assert_eq!(waiter.join().unwrap(), 2);
        drop(held);
        assert_eq!(limiter.peek().in_use, 0);
    });
}

#[test]
fn nobody_passes_on_a_limit_that_was_lowered_before() {
    check(|| {
        let limiter = limiter(2);
        let held = limiter.try_acquire_owned().unwrap();
        let newcomer = {
            let limiter = Arc::clone(&limiter);
            thread::spawn(move || limiter.try_acquire_owned().ok())
        };
        limiter.set_limit(1);
        let passed_before = limiter.peek().in_use == 2;
        let late = newcomer.join().unwrap();
        assert_eq!(late.is_some(), passed_before);
        drop((held, late));
    });
}
