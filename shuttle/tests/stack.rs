//! Two composite limiters over the same limits in opposite orders, with an estimate and permits, on random
//! schedules.
#![cfg(shuttle)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use shuttle::scheduler::{PctScheduler, RandomScheduler};
use shuttle::sync::atomic::{AtomicU32, AtomicU64 as Nanos, Ordering as Order};
use shuttle::{Config, Runner, thread};
use tollgate::clock::Manual;
use tollgate::{
    Algorithm, Clock, CompositeLimiter, ConcurrencyLimiter, KeyedLimiter, Limit, Limiter, Rate,
    StoredKeyLimiter, Timestamp,
};

const PERMITS: u32 = 2;
const BURST: u64 = 9;

/// Counted over all schedules, to show that races are lost in some.
static LOST: AtomicU64 = AtomicU64::new(0);

struct Model {
    stacks: [CompositeLimiter; 2],
    keyed: KeyedLimiter<Manual>,
    exact: StoredKeyLimiter<u8, Manual>,
    shared: Limiter<Manual>,
    slots: Arc<ConcurrencyLimiter<Manual>>,
    inside: AtomicU32,
}

impl Model {
    /// Time stands still, so the bursts are all there is.
    fn new() -> Self {
        let (clock, rate) = (Manual::new(), Rate::per_hour(BURST));
        let algorithm = Algorithm::TokenBucket;
        let exact = StoredKeyLimiter::builder(rate, 4).algorithm(algorithm);
        // One word, which keeps held tokens in its queue's state.
        let shared = Limiter::builder(rate);
        Self {
            stacks: [CompositeLimiter::new(), CompositeLimiter::new()],
            keyed: KeyedLimiter::builder(rate, 4)
                .clock(clock.clone())
                .build()
                .expect("a rate that fits"),
            exact: exact
                .clock(clock.clone())
                .build()
                .expect("a rate that fits"),
            shared: shared
                .clock(clock.clone())
                .build()
                .expect("a rate that fits"),
            slots: Arc::new(ConcurrencyLimiter::builder(PERMITS).clock(clock).build()),
            inside: AtomicU32::new(0),
        }
    }

    fn visit(&self) {
        let now = self.inside.fetch_add(1, Order::SeqCst) + 1;
        assert!(now <= PERMITS, "{now} at once");
        self.inside.fetch_sub(1, Order::SeqCst);
    }

    /// Makes requests, and estimates of which a part is spent. Returns what was spent.
    fn run(&self, number: usize) -> u64 {
        let stack = &self.stacks[number % 2];
        let key = self.exact.key(&1);
        let mut levels = [
            Limit::estimated("exact", &key, 3),
            Limit::estimated("shared", &self.shared, 3),
            Limit::new("slots", &self.slots),
        ];
        let mut plain = [
            Limit::new("keyed", &self.keyed.key(&1)),
            Limit::new("shared", &self.shared),
            Limit::new("slots", &self.slots),
        ];
        if number % 2 == 1 {
            levels.reverse();
            plain.reverse();
        }
        let mut spent = 0;
        if let Ok(hold) = stack.hold(&levels, Duration::from_secs(60)) {
            self.visit();
            match number {
                0 => hold.cancel(),
                _ => {
                    hold.settle(1);
                    spent += 1;
                }
            }
        }
        if let Some(pass) = stack.allow(&plain) {
            self.visit();
            pass.success();
            spent += 1;
        }
        if let Some(passed) = stack.check(&plain).allowed() {
            self.visit();
            drop(passed);
            spent += 1;
        }
        spent
    }
}

fn model() {
    let model = Arc::new(Model::new());
    let threads = [0, 1, 2].map(|number| {
        let model = Arc::clone(&model);
        thread::spawn(move || model.run(number))
    });
    let spent: u64 = threads
        .into_iter()
        .map(|one| one.join().expect("no panic"))
        .sum();
    let lost: u64 = model.stacks.iter().map(CompositeLimiter::lost_races).sum();
    LOST.fetch_add(lost, Ordering::Relaxed);
    assert_eq!(model.slots.peek().in_use, 0);
    // Held tokens are refunded exactly; a lost race's charge too, unless others built on it.
    let left = model.shared.peek().remaining;
    assert!(spent + left <= BURST, "{spent} {left}");
    assert!(spent + left + lost >= BURST, "{spent} {left} {lost}");
    let exact = model.exact.key(&1).peek().remaining;
    assert!(exact >= BURST - 2, "{exact}");
    let keyed = model.keyed.key(&1).peek().remaining;
    assert!(keyed <= BURST && keyed + spent + lost >= BURST);
}

#[test]
fn opposite_orders_neither_block_nor_lend_twice() {
    const RUNS: usize = 5_000;
    Runner::new(PctScheduler::new_from_seed(7, 4, RUNS), Config::new()).run(model);
    Runner::new(RandomScheduler::new_from_seed(8, RUNS), Config::new()).run(model);
    assert!(LOST.load(Ordering::Relaxed) > 0);
}

/// A clock whose every reading is a step of the schedule.
#[derive(Clone, Default)]
struct TickingClock(Arc<Nanos>);

impl Clock for TickingClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_nanos(self.0.load(Order::SeqCst))
    }

    /// A request then reads the clock once, long before it takes what it holds.
    fn source_id(&self) -> Option<usize> {
        Some(1)
    }
}

/// Two tokens of two are held while the clock advances by a second, and then both are spent.
fn beside_a_clock() {
    let (clock, second) = (TickingClock::default(), Duration::from_secs(1));
    let (start, rate) = (clock.now(), Rate::per_second(1).burst(2));
    let limiter = Arc::new(Limiter::with_clock(rate, clock.clone()));
    let ticks = clock.clone();
    let ticking = thread::spawn(move || ticks.0.store(1_000_000_000, Order::SeqCst));
    let held = Arc::clone(&limiter);
    let holding = thread::spawn(move || {
        let hold = CompositeLimiter::new().hold(&[Limit::estimated("two", &*held, 2)], second * 9);
        ticking.join().expect("no panic");
        hold.is_ok_and(|hold| {
            hold.settle(2);
            true
        })
    });
    let mut late = 0;
    for _ in 0..2 {
        let is_late = clock.now() > start;
        late += u32::from(limiter.allow() && is_late);
    }
    let held = holding.join().expect("no panic");
    // A request in the next second leaves too little for two, and after the two it is too late.
    assert!(!held || late == 0, "{late} passed beside two that were out");
}

#[test]
fn no_time_passes_between_the_clock_and_the_mark() {
    const RUNS: usize = 60_000;
    Runner::new(PctScheduler::new_from_seed(9, 4, RUNS), Config::new()).run(beside_a_clock);
    Runner::new(RandomScheduler::new_from_seed(10, RUNS), Config::new()).run(beside_a_clock);
}

/// Time stands still, and three threads that need one of two estimates all get theirs: a settlement wakes a
/// waiter.
fn estimates_by_turns() {
    let exact = StoredKeyLimiter::<u8, _>::builder(Rate::per_hour(2), 4)
        .algorithm(Algorithm::TokenBucket)
        .clock(Manual::new());
    let exact = Arc::new(exact.build().expect("a rate that fits"));
    let inside = Arc::new(AtomicU32::new(0));
    let threads = [0, 1, 2].map(|_| {
        let (exact, inside) = (Arc::clone(&exact), Arc::clone(&inside));
        thread::spawn(move || {
            let wait = exact.key_owned(&1).acquire();
            let hold = wait.hold_blocking(Duration::from_secs(60)).expect("a turn");
            let now = inside.fetch_add(1, Order::SeqCst) + 1;
            assert!(now <= 2, "{now} at once");
            inside.fetch_sub(1, Order::SeqCst);
            hold.settle(0);
        })
    });
    for one in threads {
        one.join().expect("no panic");
    }
    assert_eq!((exact.key(&1).peek().remaining, exact.waiters()), (2, 0));
}

#[test]
fn who_waits_for_an_estimate_has_it_when_another_is_settled() {
    const RUNS: usize = 3_000;
    Runner::new(PctScheduler::new_from_seed(11, 4, RUNS), Config::new()).run(estimates_by_turns);
    Runner::new(RandomScheduler::new_from_seed(12, RUNS), Config::new()).run(estimates_by_turns);
}
