//! Law 10: many threads on the same limits, in different orders.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::Duration;

use tollgate::clock::Manual;
use tollgate::{
    Algorithm, CompositeLimiter, ConcurrencyLimiter, KeyedConcurrencyLimiter, KeyedLimiter, Limit,
    Limiter, Rate, StoredKeyLimiter,
};

const THREADS: usize = 8;
const ROUNDS: usize = 2_000;

/// The most requests in flight at one moment.
#[derive(Default)]
struct Gauge {
    now: AtomicUsize,
    most: AtomicUsize,
}

impl Gauge {
    fn enter(&self) {
        let now = self.now.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(now, Ordering::SeqCst);
    }

    fn leave(&self) {
        self.now.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Runs all threads concurrently; returns the count of each.
fn together(body: impl Fn(usize) -> u64 + Sync) -> u64 {
    let start = Barrier::new(THREADS);
    thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|number| {
                let (start, body) = (&start, &body);
                scope.spawn(move || {
                    start.wait();
                    body(number)
                })
            })
            .collect();
        threads
            .into_iter()
            .map(|one| one.join().expect("no panic"))
            .sum()
    })
}

#[test]
fn no_order_of_levels_lets_more_through() {
    // Time stands still: the bursts are all there is.
    let clock = Manual::new();
    for algorithm in [
        Algorithm::TokenBucket,
        Algorithm::Gcra,
        Algorithm::SlidingLog,
    ] {
        let rate = |count| Rate::per_hour(count);
        let keyed = KeyedLimiter::builder(rate(900), 64).clock(clock.clone());
        let keyed = keyed.build().expect("a rate that fits");
        let exact = StoredKeyLimiter::<u64>::builder(rate(800), 64).algorithm(algorithm);
        let exact = exact
            .clock(clock.clone())
            .build()
            .expect("a rate that fits");
        let shared = Limiter::builder(rate(1_500)).algorithm(algorithm);
        let shared = shared
            .clock(clock.clone())
            .build()
            .expect("a rate that fits");
        let slots = Arc::new(ConcurrencyLimiter::new(3));
        let seats = Arc::new(KeyedConcurrencyLimiter::<u64>::new(2, 64));
        let (stack, gauge) = (CompositeLimiter::new(), Gauge::default());
        let passed = [const { AtomicU64::new(0) }; 2];
        let total = together(|number| {
            let tenant = (number % 2) as u64;
            let (key, seat) = (exact.key(&tenant), seats.key_owned(&tenant));
            let mut levels = [
                Limit::new("keyed", &keyed.key(&tenant)),
                Limit::new("exact", &key),
                Limit::new("shared", &shared),
                Limit::new("slots", &slots),
                Limit::new("seats", &seat),
            ];
            levels.rotate_left(number % 5);
            if number >= 4 {
                levels.reverse();
            }
            let mut own = 0;
            for round in 0..ROUNDS {
                let pass = if round % 2 == 0 {
                    stack.allow(&levels)
                } else {
                    stack.check(&levels).allowed().map(|passed| passed.permits)
                };
                if let Some(pass) = pass {
                    gauge.enter();
                    own += 1;
                    thread::yield_now();
                    gauge.leave();
                    pass.success();
                }
            }
            passed[usize::try_from(tenant).unwrap()].fetch_add(own, Ordering::Relaxed);
            own
        });
        assert!(total <= 1_500, "{total}");
        for (tenant, passed) in passed.iter().enumerate() {
            let (passed, tenant) = (passed.load(Ordering::Relaxed), tenant as u64);
            assert!(passed <= 800, "{passed}");
            // All that passed was charged; a race lost beside others may have cost more, never less.
            assert!(exact.key(&tenant).peek().remaining <= 800 - passed);
            assert!(keyed.key(&tenant).peek().remaining <= 900 - passed);
        }
        assert!(shared.peek().remaining <= 1_500 - total);
        assert!(gauge.most.load(Ordering::SeqCst) <= 3);
        assert_eq!((slots.peek().in_use, seats.len()), (0, 0));
    }
}

#[test]
fn a_race_that_is_lost_among_threads_is_counted_and_costs_nobody_a_slot() {
    let (stack, slots) = (
        CompositeLimiter::new(),
        Arc::new(ConcurrencyLimiter::new(3)),
    );
    let limiter = Limiter::builder(Rate::per_hour(1_000_000_000).burst(1_000_000))
        .algorithm(Algorithm::TokenBucket)
        .clock(Manual::new())
        .build()
        .expect("a rate that fits");
    // Two slots each, as two levels: one thread alone always passes, of two together each may look
    // while there are two, and the second then finds one.
    let levels = [
        Limit::new("all", &limiter),
        Limit::new("first", &slots),
        Limit::new("second", &slots),
    ];
    let passed = together(|_| {
        let mut own = 0;
        for _ in 0..ROUNDS {
            if let Some(pass) = stack.allow(&levels) {
                own += 1;
                thread::yield_now();
                drop(pass);
            }
        }
        own
    });
    // One slot left looks enough for both levels: no luck is needed to lose.
    let _two = slots.try_acquire_n(2).unwrap();
    assert!(stack.allow(&levels).is_none());
    assert!(stack.lost_races() > 0);
    assert_eq!(slots.peek().in_use, 2);
    let stats = slots.stats();
    assert!(stats.cancelled > 0 && stats.cancelled <= stack.lost_races());
    // What a lost race had charged is back, but for what others had charged on top of it meanwhile.
    let spent = 1_000_000 - limiter.peek().remaining;
    assert!((passed..=passed + stack.lost_races()).contains(&spent));
}

#[test]
fn what_is_held_by_threads_comes_back_exactly() {
    let clock = Manual::new();
    for algorithm in [
        Algorithm::TokenBucket,
        Algorithm::LeakyBucket,
        Algorithm::Gcra,
    ] {
        let exact = StoredKeyLimiter::<u64>::builder(Rate::per_hour(100), 64);
        let exact = exact.algorithm(algorithm).clock(clock.clone());
        let exact = exact.build().expect("a rate that fits");
        let shared = Limiter::builder(Rate::per_hour(150)).algorithm(algorithm);
        let shared = shared
            .clock(clock.clone())
            .build()
            .expect("a rate that fits");
        let slots = Arc::new(ConcurrencyLimiter::new(5));
        let (stack, out) = (CompositeLimiter::new(), AtomicU64::new(0));
        let spent = together(|number| {
            let tenant = (number % 2) as u64;
            let key = exact.key(&tenant);
            let mut levels = [
                Limit::estimated("exact", &key, 7),
                Limit::estimated("shared", &shared, 7),
                Limit::new("slots", &slots),
            ];
            levels.rotate_left(number % 3);
            let mut own = 0;
            for round in 0..ROUNDS {
                let Ok(hold) = stack.hold(&levels, Duration::from_secs(60)) else {
                    continue;
                };
                let held = out.fetch_add(7, Ordering::SeqCst) + 7;
                assert!(held <= 5 * 7);
                thread::yield_now();
                out.fetch_sub(7, Ordering::SeqCst);
                match (round + number) % 100 {
                    0 => {
                        own += 2;
                        hold.settle(2);
                    }
                    1 => {
                        hold.settle(0);
                    }
                    _ => hold.cancel(),
                }
            }
            own
        });
        // Nothing is out any more, and what was spent is all that is owed, whatever races were lost.
        assert_eq!(shared.peek().remaining, 150 - spent, "{algorithm:?}");
        let left = exact.key(&0).peek().remaining + exact.key(&1).peek().remaining;
        assert_eq!(left, 200 - spent, "{algorithm:?}");
        assert_eq!(slots.peek().in_use, 0);
        assert!(spent > 0);
    }
}

#[test]
fn what_a_request_holds_may_move_to_another_thread() {
    fn moves<T: Send + Sync>() {}
    moves::<CompositeLimiter>();
    moves::<Limit<'_>>();
    moves::<tollgate::stack::HeldPermits>();
    moves::<tollgate::stack::CompositeDecision<'_>>();
    moves::<tollgate::stack::CostReservation<'_>>();
    moves::<tollgate::stack::CostReservation<'static>>();
    moves::<tollgate::stack::LimitDenial<'_>>();
}
