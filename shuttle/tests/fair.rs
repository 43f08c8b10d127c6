//! A queue whose head keeps the timer, on random schedules: whichever waiters come, leave, are overtaken or
//! dropped, one of them is woken to keep the timer, and no waiter waits for ever.
//!
//! A lost wake-up shows as a deadlock, which shuttle reports.
#![cfg(shuttle)]

use std::sync::Arc;
use std::time::Duration;

use shuttle::scheduler::{PctScheduler, RandomScheduler};
use shuttle::sync::atomic::{AtomicU64, Ordering};
use shuttle::{Config, Runner, thread};
use tollgate::{Clock, FairLimiter, Lanes, Rate, RateDenied, Timestamp};

/// A sleep with an end ends when the schedule says so, and advances the time to it. A sleep without one ends
/// only when the thread is unparked.
#[derive(Clone, Default)]
struct SimulatedTimers {
    nanos: Arc<AtomicU64>,
}

impl Clock for SimulatedTimers {
    fn now(&self) -> Timestamp {
        Timestamp::from_nanos(self.nanos.load(Ordering::SeqCst))
    }

    fn park_until_woken(&self, at: Timestamp) {
        if at == Timestamp::MAX {
            thread::park();
        } else {
            thread::yield_now();
            self.nanos.fetch_max(at.as_nanos(), Ordering::SeqCst);
        }
    }
}

const SECOND: Duration = Duration::from_secs(1);

type TimedFairLimiter = FairLimiter<SimulatedTimers>;

fn fair_limiter() -> Arc<TimedFairLimiter> {
    let line = FairLimiter::builder(Rate::every(SECOND))
        .clock(SimulatedTimers::default())
        .build();
    Arc::new(line.expect("a rate that fits"))
}

fn check(model: impl Fn() + Sync + Send + Copy + 'static) {
    const RUNS: usize = 5_000;
    Runner::new(PctScheduler::new_from_seed(7, 5, RUNS), Config::new()).run(model);
    Runner::new(RandomScheduler::new_from_seed(8, RUNS), Config::new()).run(model);
}

/// Runs every body on a thread of its own. Returns how many passed.
fn passed(line: &Arc<TimedFairLimiter>, bodies: &[fn(&TimedFairLimiter) -> bool]) -> u64 {
    let start = |body: &fn(&TimedFairLimiter) -> bool| {
        let (line, body) = (Arc::clone(line), *body);
        thread::spawn(move || body(&line))
    };
    let threads: Vec<_> = bodies.iter().map(start).collect();
    let results = threads
        .into_iter()
        .map(|thread| thread.join().expect("no panic"));
    let passed = results.map(u64::from).sum();
    assert_eq!((line.waiters(), line.clients()), (0, 0));
    // The first token was there; each other one took a second.
    let now = line.clock().now().as_nanos();
    assert!(passed <= 1 + now / 1_000_000_000, "{passed} by {now}");
    passed
}

#[test]
fn everybody_who_waits_is_served() {
    check(|| {
        let line = fair_limiter();
        let bodies: [fn(&TimedFairLimiter) -> bool; 4] = [
            |line| line.acquire(&0).wait_blocking().is_ok(),
            |line| line.acquire(&0).wait_blocking().is_ok(),
            |line| line.acquire(&1).weight(3).wait_blocking().is_ok(),
            |line| line.acquire(&2).wait_blocking().is_ok(),
        ];
        assert_eq!(passed(&line, &bodies), 4);
        // The keeper of the timer advances to the next token and no further.
        assert_eq!(line.clock().now(), Timestamp::from_secs(3));
    });
}

#[test]
fn those_who_go_leave_the_time_to_others() {
    check(|| {
        let line = fair_limiter();
        let bodies: [fn(&TimedFairLimiter) -> bool; 4] = [
            |line| line.acquire(&0).wait_blocking().is_ok(),
            |line| line.acquire(&0).wait_blocking().is_ok(),
            // These leave after one or two polls, whichever thread keeps the timer then.
            |line| matches!(line.acquire(&1).weight(9).wait_for_polls(1), Some(Ok(_))),
            |line| matches!(line.acquire(&2).weight(9).wait_for_polls(2), Some(Ok(_))),
        ];
        assert!(passed(&line, &bodies) >= 2);
    });
}

#[test]
fn those_whose_deadline_passes_leave_the_time_to_others() {
    check(|| {
        let line = fair_limiter();
        let bodies: [fn(&TimedFairLimiter) -> bool; 4] = [
            |line| line.acquire(&0).wait_blocking().is_ok(),
            |line| line.acquire(&1).weight(5).wait_blocking().is_ok(),
            |line| match line.acquire(&2).timeout(SECOND).wait_blocking() {
                Ok(_) => true,
                Err(RateDenied::DeadlineExceeded(_)) => false,
                Err(other) => panic!("{other}"),
            },
            |line| line.allow(&3),
        ];
        assert!(passed(&line, &bodies) >= 2);
    });
}

#[test]
fn lanes_serve_everybody() {
    check(|| {
        let lanes = Lanes::builder(Rate::per_second(2))
            .lane("high", 1)
            .lane("low", 1)
            .clock(SimulatedTimers::default())
            .build();
        let lanes = Arc::new(lanes.expect("shares that fit"));
        let threads = ["high", "high", "low", "low"].map(|name| {
            let lanes = Arc::clone(&lanes);
            thread::spawn(move || {
                let lane = lanes.lane(name).expect("was added");
                lane.acquire().wait_blocking().is_ok()
            })
        });
        for thread in threads {
            assert!(thread.join().expect("no panic"));
        }
        assert_eq!(lanes.waiters(), 0);
        assert!(lanes.clock().now() >= Timestamp::from_secs(1));
    });
}
