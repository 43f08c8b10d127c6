//! Storms on the queue of a limit, on random schedules: some waiters stay, some leave immediately or after a
//! while, some threads check, reserve, refund or change the rate. No more requests pass than may, every waiter
//! that stays passes, and those that left leave nothing behind.
#![cfg(shuttle)]

use std::sync::Arc;

use shuttle::scheduler::{PctScheduler, RandomScheduler};
use shuttle::sync::atomic::{AtomicU64, Ordering};
use shuttle::{Config, Runner, thread};
use tollgate::{
    Clock, KeyedLimiter, Limiter, Rate, Timestamp,
    wait::{Acquire, LimitHandle},
};

const SECOND: u64 = 1_000_000_000;

/// A sleep ends when the schedule says so, and advances the time to its end.
#[derive(Clone, Default)]
struct SimulatedTimers {
    nanos: Arc<AtomicU64>,
}

impl Clock for SimulatedTimers {
    fn now(&self) -> Timestamp {
        Timestamp::from_nanos(self.nanos.load(Ordering::SeqCst))
    }

    fn park_until_woken(&self, at: Timestamp) {
        assert!(at < Timestamp::MAX, "whoever waits has a timer");
        thread::yield_now();
        self.nanos.fetch_max(at.as_nanos(), Ordering::SeqCst);
    }
}

fn check(model: impl Fn() + Sync + Send + Copy + 'static) {
    const RUNS: usize = 5_000;
    Runner::new(PctScheduler::new_from_seed(3, 5, RUNS), Config::new()).run(model);
    Runner::new(RandomScheduler::new_from_seed(4, RUNS), Config::new()).run(model);
}

/// A limit or a key on which threads can wait.
trait Waited: Send + Sync + 'static {
    type Home<'a>: LimitHandle
    where
        Self: 'a;

    fn acquire(&self) -> Acquire<Self::Home<'_>>;
    fn check(&self) -> tollgate::Decision;
    fn now(&self) -> u64;
    fn waiters(&self) -> usize;

    fn wait_and_pass(&self) -> u64 {
        let passed = self.acquire().wait_blocking();
        passed.expect("it may wait for ever");
        1
    }

    fn wait_and_cancel(&self, looks: usize) -> u64 {
        u64::from(self.acquire().wait_for_polls(looks) == Some(Ok(())))
    }

    fn checks(&self) -> u64 {
        u64::from(self.check().is_allowed())
    }
}

impl Waited for Limiter<SimulatedTimers> {
    type Home<'a> = &'a Self;

    fn acquire(&self) -> Acquire<&Self> {
        self.acquire()
    }

    fn check(&self) -> tollgate::Decision {
        self.check()
    }

    fn now(&self) -> u64 {
        self.clock().now().as_nanos()
    }

    fn waiters(&self) -> usize {
        self.waiters()
    }
}

impl Waited for KeyedLimiter<SimulatedTimers> {
    type Home<'a> = tollgate::keyed::Key<'a, SimulatedTimers>;

    fn acquire(&self) -> Acquire<Self::Home<'_>> {
        self.key(&7).acquire()
    }

    fn check(&self) -> tollgate::Decision {
        self.check(&7)
    }

    fn now(&self) -> u64 {
        self.clock().now().as_nanos()
    }

    fn waiters(&self) -> usize {
        self.waiters()
    }
}

/// Runs every body on a thread of its own; one request in a second may pass, and one at first.
fn run_storm<W: Waited>(limiter: &Arc<W>, bodies: &[fn(&W) -> u64]) -> u64 {
    let start = |body: &fn(&W) -> u64| {
        let (limiter, body) = (Arc::clone(limiter), *body);
        thread::spawn(move || body(&limiter))
    };
    let threads: Vec<_> = bodies.iter().map(start).collect();
    let results = threads
        .into_iter()
        .map(|thread| thread.join().expect("no panic"));
    let passed: u64 = results.sum();
    let now = limiter.now();
    assert!(passed <= 1 + now / SECOND, "{passed} by {now}");
    assert_eq!(limiter.waiters(), 0);
    // The debt is at most the latest charge.
    assert!(limiter.check().wait_or_max().as_secs() <= 1);
    passed
}

fn limiter() -> Arc<Limiter<SimulatedTimers>> {
    Arc::new(Limiter::with_clock(
        Rate::per_second(1),
        SimulatedTimers::default(),
    ))
}

fn stays_and_goes<W: Waited>(limiter: &Arc<W>) {
    let passed = run_storm(
        limiter,
        &[
            W::wait_and_pass,
            |limiter| limiter.wait_and_cancel(1),
            |limiter| limiter.wait_and_cancel(2),
            W::wait_and_pass,
            |limiter| limiter.checks() + limiter.checks(),
        ],
    );
    assert!(passed >= 2);
}

#[test]
fn those_who_go_cost_nobody_a_turn() {
    check(|| stays_and_goes(&limiter()));
}

#[test]
fn those_who_go_cost_nobody_a_turn_of_a_key() {
    check(|| {
        let builder =
            KeyedLimiter::builder(Rate::per_second(1), 8).clock(SimulatedTimers::default());
        stays_and_goes(&Arc::new(builder.build().expect("a rate that fits")));
    });
}

#[test]
fn those_who_go_cost_nobody_a_turn_of_a_striped_limit() {
    check(|| {
        let builder = Limiter::builder(Rate::per_second(1)).stripes(2);
        let limiter = builder.clock(SimulatedTimers::default()).build();
        stays_and_goes(&Arc::new(limiter.expect("a rate that fits")));
    });
}

#[test]
fn reservations_behind_waits_keep_the_bound() {
    check(|| {
        let limiter = limiter();
        let bodies: [fn(&Limiter<SimulatedTimers>) -> u64; 4] = [
            Waited::wait_and_pass,
            |limiter| limiter.wait_and_cancel(2),
            |limiter| {
                limiter.reserve(1).expect("no wait is too long").cancel();
                0
            },
            Waited::wait_and_pass,
        ];
        assert!(run_storm(&limiter, &bodies) >= 2);
    });
}

#[test]
fn a_change_reaches_those_who_wait() {
    check(|| {
        let limiter = Limiter::with_clock(Rate::per_hour(1), SimulatedTimers::default());
        let (limiter, bodies): (_, [fn(&Limiter<SimulatedTimers>) -> u64; 4]) = (
            Arc::new(limiter),
            [
                Waited::wait_and_pass,
                |limiter| limiter.wait_and_cancel(1),
                |limiter| {
                    let changed = limiter.set_rate(Rate::per_second(1));
                    changed.map_or(9, |()| 0)
                },
                Waited::wait_and_pass,
            ],
        );
        assert!(run_storm(&limiter, &bodies) >= 2);
    });
}
