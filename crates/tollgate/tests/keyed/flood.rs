//! A flood of hostile keys: no limited key gets free by it, and memory stays within its bound.
//!
//! In a process of its own, so that its resident memory is the table's.

use std::time::Duration;

use tollgate::clock::Manual;
use tollgate::{Clock, KeyedLimiter, Rate, Timestamp, WhenFull};
use tollgate_testkit::allocation_counter::{held_bytes, is_isolated};
use tollgate_testkit::traffic::Random;

const BLOCKED: u64 = 1_000;
const LIMITED: u64 = 1_000;

/// Stacks and heaps of two threads, should those of the warm-up have run one after the other on one.
const THREADS: usize = 256 << 10;

/// Each kind of key has names of its own.
fn key(kind: &'static str, number: u64) -> (&'static str, u64) {
    (kind, number)
}

struct Flood {
    limiter: KeyedLimiter<Manual>,
    clock: Manual,
    blocked_until: Timestamp,
}

impl Flood {
    fn new(capacity: usize) -> Self {
        let clock = Manual::starting_at(Timestamp::from_secs(77));
        let limiter = KeyedLimiter::builder(Rate::per_hour(10), capacity)
            .at_cap(WhenFull::SharedBucket)
            .clock(clock.clone())
            .build()
            .expect("a rate that fits");
        let blocked_until = clock.now() + Duration::from_secs(600);
        for number in 0..BLOCKED {
            let key = key("blocked", number);
            let blocked = limiter.key(&key).block_for(Duration::from_secs(600));
            assert_eq!(blocked, Ok(()));
        }
        for number in 0..LIMITED {
            assert!(limiter.key(&key("limited", number)).allow_n(10));
        }
        Self {
            limiter,
            clock,
            blocked_until,
        }
    }

    /// `keys` hostile keys on two threads, all within the time of the block, while those who may
    /// not pass try. How many of the hostile requests passed.
    fn run(&self, keys: u64) -> u64 {
        let step = Duration::from_nanos(500_000_000_000 / keys);
        std::thread::scope(|scope| {
            let threads = [0, 1].map(|first| scope.spawn(move || self.half(first, keys, step)));
            let passed = threads.map(|thread| thread.join().expect("no panic"));
            passed.iter().sum()
        })
    }

    fn half(&self, first: u64, keys: u64, step: Duration) -> u64 {
        let mut random = Random::new(first);
        let mut passed = 0;
        for number in (first..keys).step_by(2) {
            self.clock.advance(step);
            passed += u64::from(self.limiter.allow(&key("hostile", number)));
            if number % 16 == first {
                let turn = random.below(BLOCKED);
                assert!(!self.limiter.allow(&key("blocked", turn)), "{number}");
                // In 500 s of 360 s a token each limited key gets one at most.
                let turn = random.below(LIMITED);
                assert!(!self.limiter.key(&key("limited", turn)).allow_n(2));
            }
        }
        passed
    }

    fn nobody_was_let_go(&self) {
        let now = self.clock.now();
        assert!(now < self.blocked_until);
        for number in 0..BLOCKED {
            let decision = self.limiter.check(&key("blocked", number));
            assert_eq!(decision.wait_or_max(), self.blocked_until - now);
        }
        for number in 0..LIMITED {
            let left = self.limiter.key(&key("limited", number)).peek().remaining;
            assert!(left <= 1, "limited key {number} has {left} left");
        }
    }
}

#[test]
fn a_flood_frees_nobody_and_stays_within_the_memory_bound() {
    if !is_isolated() {
        return;
    }
    let soak = std::env::var_os("TOLLGATE_SOAK").is_some();
    let (capacity, hostile) = if soak {
        (1_000_000, 10_000_000)
    } else {
        (100_000, 1_000_000)
    };
    // What threads and the allocator need for themselves is there, for the most part, before anything
    // is measured.
    Flood::new(2_000).run(20_000);
    let before = held_bytes();
    let flood = Flood::new(capacity);
    let passed = flood.run(hostile);
    let bound = flood.limiter.memory_bound();
    assert!(bound <= capacity * 25 + 20_000, "{bound} bytes");
    let grown = held_bytes().saturating_sub(before);
    assert!(
        grown <= bound + bound / 20 + THREADS,
        "{grown} bytes of {bound}"
    );
    assert!(grown >= bound / 2, "{grown} bytes of {bound}: not full");
    flood.nobody_was_let_go();
    // Those without a slot share one bucket: 10 at once and one in 360 s.
    let stats = flood.limiter.stats();
    let slots = hostile - stats.overflowed;
    assert!(slots + 2_000 >= capacity as u64, "{stats:?}");
    assert!(passed <= slots + 11, "{passed} passed, {slots} had slots");
    assert_eq!(stats.evicted, 0);
}
