//! Permits under threads: never more than the limit in flight, nothing lost, no waiter stuck.

use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use tollgate::clock::Manual;
use tollgate::{ConcurrencyLimiter, KeyedConcurrencyLimiter, concurrency::PermitDenied};

const THREADS: u32 = 4;
const ROUNDS: u32 = 100_000;
const LIMIT: u32 = 3;

/// Counts what is inside, and fails if that is ever above the most.
struct Inside {
    now: AtomicU32,
    most: u32,
}

impl Inside {
    fn new(most: u32) -> Self {
        Self {
            now: AtomicU32::new(0),
            most,
        }
    }

    fn visit(&self, weight: u32) {
        let now = self.now.fetch_add(weight, Ordering::Relaxed) + weight;
        assert!(now <= self.most, "{now} of {} at once", self.most);
        self.now.fetch_sub(weight, Ordering::Relaxed);
    }
}

#[test]
fn tries_never_sum_above_the_limit() {
    let (limiter, inside) = (ConcurrencyLimiter::new(LIMIT), Inside::new(LIMIT));
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let (limiter, inside) = (&limiter, &inside);
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    let weight = 1 + (round + thread) % LIMIT;
                    if let Ok(permit) = limiter.try_acquire_n(weight) {
                        inside.visit(weight);
                        permit.success();
                    }
                }
            });
        }
    });
    let (look, stats) = (limiter.peek(), limiter.stats());
    assert_eq!((look.in_use, look.waiting), (0, 0));
    assert_eq!(stats.acquired + stats.denied, u64::from(THREADS * ROUNDS));
    assert_eq!(stats.succeeded, stats.acquired);
}

#[test]
fn every_wait_passes_while_others_try_and_the_limit_changes() {
    let (limiter, inside) = (ConcurrencyLimiter::new(LIMIT), Inside::new(LIMIT));
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let (limiter, inside) = (&limiter, &inside);
            scope.spawn(move || {
                for round in 0..ROUNDS / 10 {
                    // One of weight 2 at most, so that a limit of 2 refuses nobody for ever.
                    let weight = 1 + (round + thread) % 2;
                    let permit = limiter.acquire_n(weight).wait_blocking().unwrap();
                    inside.visit(weight);
                    permit.success();
                    if let Ok(permit) = limiter.try_acquire() {
                        inside.visit(1);
                        permit.cancel();
                    }
                }
            });
        }
        for round in 0..ROUNDS / 10 {
            limiter.set_limit(2 + round % 2);
            thread::yield_now();
        }
        limiter.set_limit(LIMIT);
    });
    let (look, stats) = (limiter.peek(), limiter.stats());
    assert_eq!((look.in_use, look.waiting), (0, 0));
    assert_eq!(stats.succeeded, u64::from(THREADS * (ROUNDS / 10)));
}

#[test]
fn waits_that_time_out_at_any_moment_lose_nothing() {
    let clock = Manual::new();
    let limiter = ConcurrencyLimiter::builder(1).clock(clock.clone()).build();
    let inside = Inside::new(1);
    let late = AtomicU32::new(0);
    let running = AtomicU32::new(THREADS);
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                for round in 0..ROUNDS / 10 {
                    let patience = std::time::Duration::from_nanos(u64::from(round % 4));
                    match limiter.acquire().timeout(patience).wait_blocking() {
                        Ok(permit) => {
                            inside.visit(1);
                            permit.success();
                        }
                        Err(PermitDenied::DeadlineExceeded(_)) => {
                            late.fetch_add(1, Ordering::Relaxed);
                        }
                        Err(other) => panic!("{other}"),
                    }
                }
                running.fetch_sub(1, Ordering::Relaxed);
            });
        }
        while running.load(Ordering::Relaxed) > 0 {
            clock.advance(std::time::Duration::from_nanos(1));
        }
    });
    let (look, stats) = (limiter.peek(), limiter.stats());
    assert_eq!((look.in_use, look.waiting, clock.parked()), (0, 0, 0));
    assert_eq!(stats.denied, u64::from(late.into_inner()));
    assert_eq!(
        stats.acquired + stats.denied,
        u64::from(THREADS * (ROUNDS / 10))
    );
}

#[test]
fn keys_come_and_go_and_each_keeps_its_limit() {
    let limiter = KeyedConcurrencyLimiter::<u32>::new(2, 64);
    let inside: Vec<_> = (0..8).map(|_| Inside::new(2)).collect();
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let (limiter, inside) = (&limiter, &inside);
            scope.spawn(move || {
                for round in 0..ROUNDS / 4 {
                    let key = (round / 3 + thread * 5) % 8;
                    let place = usize::try_from(key).unwrap();
                    if round % 2 == 0 {
                        let permit = limiter.acquire(&key).wait_blocking().unwrap();
                        inside[place].visit(1);
                        permit.success();
                    } else if let Ok(permit) = limiter.key(&key).try_acquire_n(2) {
                        inside[place].visit(2);
                        permit.success();
                    }
                }
            });
        }
    });
    assert_eq!((limiter.len(), limiter.waiters()), (0, 0));
    let stats = limiter.stats();
    assert_eq!(stats.succeeded, stats.acquired);
    assert_eq!(
        stats.acquired + stats.denied,
        u64::from(THREADS * (ROUNDS / 4))
    );
}
