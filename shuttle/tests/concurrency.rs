//! Permits, waits, deadlines, live changes and keys that come and go, on random schedules. A lost wake-up shows
//! as a deadlock, which shuttle reports.
#![cfg(shuttle)]

use std::sync::Arc;
use std::time::Duration;

use shuttle::scheduler::{PctScheduler, RandomScheduler};
use shuttle::sync::atomic::{AtomicU32, Ordering};
use shuttle::{Config, Runner, thread};
use tollgate::clock::Manual;
use tollgate::{ConcurrencyLimiter, KeyedConcurrencyLimiter, Timestamp, concurrency::PermitDenied};

fn check(model: fn()) {
    const RUNS: usize = 10_000;
    Runner::new(PctScheduler::new_from_seed(7, 4, RUNS), Config::new()).run(model);
    Runner::new(RandomScheduler::new_from_seed(8, RUNS), Config::new()).run(model);
}

/// Counts the threads inside, and fails if there are ever too many.
struct Inside(AtomicU32);

impl Inside {
    fn new() -> Arc<Self> {
        Arc::new(Self(AtomicU32::new(0)))
    }

    fn visit(&self, weight: u32, most: u32) {
        let now = self.0.fetch_add(weight, Ordering::SeqCst) + weight;
        assert!(now <= most, "{now} of {most} at once");
        self.0.fetch_sub(weight, Ordering::SeqCst);
    }
}

fn limiter(limit: u32) -> Arc<ConcurrencyLimiter<Manual>> {
    Arc::new(
        ConcurrencyLimiter::builder(limit)
            .clock(Manual::new())
            .build(),
    )
}

fn everybody_passes() {
    let (limiter, inside) = (limiter(2), Inside::new());
    let threads: Vec<_> = [1, 2, 1, 2]
        .map(|weight| {
            let (limiter, inside) = (Arc::clone(&limiter), Arc::clone(&inside));
            thread::spawn(move || {
                for _ in 0..2 {
                    let permit = limiter.acquire_n(weight).wait_blocking();
                    let permit = permit.expect("a wait without end");
                    inside.visit(weight, 2);
                    permit.success();
                    if let Ok(permit) = limiter.try_acquire() {
                        inside.visit(1, 2);
                        permit.cancel();
                    }
                }
            })
        })
        .into_iter()
        .collect();
    for thread in threads {
        thread.join().expect("no panic");
    }
    let look = limiter.peek();
    assert_eq!((look.in_use, look.waiting), (0, 0));
}

/// A wait times out at any moment: before, during and after the grant of its permit.
fn deadlines_lose_nothing() {
    let (limiter, inside) = (limiter(1), Inside::new());
    let waits = [Some(5), Some(10), None].map(|patience| {
        let (limiter, inside) = (Arc::clone(&limiter), Arc::clone(&inside));
        thread::spawn(move || {
            let acquire = limiter.acquire();
            let acquire = match patience {
                Some(millis) => acquire.timeout(Duration::from_millis(millis)),
                None => acquire,
            };
            match acquire.wait_blocking() {
                Ok(permit) => {
                    inside.visit(1, 1);
                    permit.success();
                }
                Err(PermitDenied::DeadlineExceeded(_)) if patience.is_some() => {}
                Err(other) => panic!("{other}"),
            }
        })
    });
    let time = {
        let limiter = Arc::clone(&limiter);
        thread::spawn(move || {
            for _ in 0..2 {
                limiter.clock().advance(Duration::from_millis(5));
                thread::yield_now();
            }
        })
    };
    for thread in waits.into_iter().chain([time]) {
        thread.join().expect("no panic");
    }
    let look = limiter.peek();
    assert_eq!((look.in_use, look.waiting), (0, 0));
}

/// The head of the queue never fits, and those behind it do once it has timed out.
fn an_expired_head_makes_way() {
    let limiter = limiter(2);
    let held = limiter.try_acquire().expect("there is room");
    let deadline = Timestamp::from_millis(5);
    let large = {
        let limiter = Arc::clone(&limiter);
        thread::spawn(move || {
            let late = limiter.acquire_n(2).deadline(deadline).wait_blocking();
            assert!(matches!(late, Err(PermitDenied::DeadlineExceeded(_))));
        })
    };
    let small = [(); 2].map(|()| {
        let limiter = Arc::clone(&limiter);
        thread::spawn(move || {
            let permit = limiter.acquire().wait_blocking();
            permit.expect("a wait without end").success();
        })
    });
    limiter.clock().advance(Duration::from_millis(6));
    for thread in small.into_iter().chain([large]) {
        thread.join().expect("no panic");
    }
    drop(held);
    let look = limiter.peek();
    assert_eq!((look.in_use, look.waiting), (0, 0));
}

fn live_changes_strand_nobody() {
    let (limiter, inside) = (limiter(1), Inside::new());
    let waits = [1, 3, 1].map(|weight| {
        let (limiter, inside) = (Arc::clone(&limiter), Arc::clone(&inside));
        thread::spawn(move || match limiter.acquire_n(weight).wait_blocking() {
            Ok(permit) => {
                inside.visit(weight, 3);
                permit.success();
            }
            Err(PermitDenied::ExceedsLimit(_)) if weight == 3 => {}
            Err(other) => panic!("{other}"),
        })
    });
    for limit in [3, 1, 2] {
        limiter.set_limit(limit);
    }
    for wait in waits {
        wait.join().expect("no panic");
    }
    let look = limiter.peek();
    assert_eq!((look.limit, look.in_use, look.waiting), (2, 0, 0));
}

/// The last permit of a key removes its entry while another thread requests the key.
fn keys_come_and_go() {
    let limiter = Arc::new(
        KeyedConcurrencyLimiter::<u32>::builder(1, 2)
            .clock(Manual::new())
            .build()
            .unwrap(),
    );
    let inside = [Inside::new(), Inside::new()];
    let threads = [0, 1, 0].map(|key| {
        let (limiter, inside) = (Arc::clone(&limiter), Arc::clone(&inside[key]));
        thread::spawn(move || {
            let key = u32::try_from(key).expect("a small number");
            for _ in 0..2 {
                let permit = limiter.acquire(&key).wait_blocking();
                let permit = permit.expect("a wait without end");
                inside.visit(1, 1);
                permit.success();
                if let Ok(permit) = limiter.try_acquire(&key) {
                    inside.visit(1, 1);
                    permit.success();
                }
            }
        })
    });
    for thread in threads {
        thread.join().expect("no panic");
    }
    assert_eq!((limiter.len(), limiter.waiters()), (0, 0));
}

#[test]
fn waits_of_any_weight_all_pass_and_never_more_than_the_limit_at_once() {
    check(everybody_passes);
}

#[test]
fn a_wait_that_times_out_passes_on_what_it_was_given() {
    check(deadlines_lose_nothing);
}

#[test]
fn a_large_wait_that_times_out_frees_those_behind_it() {
    check(an_expired_head_makes_way);
}

#[test]
fn a_limit_that_changes_leaves_nobody_in_the_queue() {
    check(live_changes_strand_nobody);
}

#[test]
fn a_key_that_is_asked_for_as_it_leaves_keeps_its_limit() {
    check(keys_come_and_go);
}

#[test]
fn two_who_change_the_limit_at_once_leave_one_of_them_for_all_keys() {
    check(|| {
        let limiter = Arc::new(KeyedConcurrencyLimiter::<u32>::new(5, 1));
        let permit = limiter.try_acquire(&0).expect("room");
        let threads = [1u32, 2].map(|limit| {
            let limiter = Arc::clone(&limiter);
            thread::spawn(move || limiter.set_limit(limit))
        });
        for thread in threads {
            thread.join().expect("no panic");
        }
        // The key in the table, and those beyond the capacity, which share one gate.
        assert_eq!(limiter.peek(&0).limit, limiter.limit());
        assert_eq!(limiter.peek(&1).limit, limiter.limit());
        drop(permit);
    });
}
