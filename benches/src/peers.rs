//! Limiters behind one trait: ours, the floor that no exact limiter can beat, and the crates to compare with.
//! All get the same rate and burst.

use std::hint::black_box;
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use governor::clock::{QuantaClock, QuantaUpkeepClock};
use governor::middleware::NoOpMiddleware;
use governor::state::{InMemoryState, NotKeyed};
use tollgate::{Clock, Limiter, Rate};

use crate::timing;

/// A limiter.
pub(crate) trait Gate: Send + Sync {
    fn allow(&self) -> bool;

    /// Calls `allow` in a tight loop, and returns how many passed. One virtual call covers the whole loop.
    fn run_calls(&self, calls: u64) -> u64 {
        let mut passed = 0;
        for _ in 0..calls {
            passed += u64::from(black_box(black_box(self).allow()));
        }
        passed
    }
}

/// A rate and a burst.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    count: u32,
    period: Duration,
    burst: u32,
}

impl Load {
    /// More than any loop can use, even while a cached clock stands still.
    pub(crate) const ADMIT: Self = Self::per_second(1_000_000_000, 1_000_000_000);
    /// Once it is drained, nothing passes for as long as a benchmark runs.
    pub(crate) const DENY: Self = Self {
        count: 1,
        period: Duration::from_secs(3600),
        burst: 10,
    };

    pub(crate) const fn per_second(count: u32, burst: u32) -> Self {
        Self {
            count,
            period: Duration::from_secs(1),
            burst,
        }
    }

    pub(crate) fn rate(self) -> Rate {
        Rate::new(u64::from(self.count), self.period).burst(u64::from(self.burst))
    }

    fn quota(self) -> governor::Quota {
        let burst = NonZeroU32::new(self.burst).expect("a burst of at least 1");
        governor::Quota::with_period(self.period / self.count)
            .expect("an interval of at least 1 ns")
            .allow_burst(burst)
    }
}

/// A value on cache lines of its own.
#[repr(align(128))]
pub(crate) struct Padded<T>(pub(crate) T);

/// Spends the whole burst.
pub(crate) fn drained<G: Gate>(gate: G) -> G {
    while gate.allow() {}
    gate
}

impl<C: Clock> Gate for Limiter<C> {
    #[inline(always)]
    fn allow(&self) -> bool {
        Limiter::allow(self)
    }
}

pub(crate) fn tollgate_gate(load: Load) -> Limiter {
    Limiter::new(load.rate())
}

/// Our limiter, with every field of its decision.
pub(crate) struct FullDecision(pub(crate) Limiter);

impl Gate for FullDecision {
    #[inline(always)]
    fn allow(&self) -> bool {
        // All of it has to be in memory, because the reference could be read.
        black_box(&self.0.check()).is_allowed()
    }
}

/// The least work of an exact limiter with one atomic word: read the counter, convert it to nanoseconds, load,
/// compare, swap.
pub(crate) struct AtomicFloor {
    clock: quanta::Clock,
    anchor: u64,
    interval: u64,
    capacity: u64,
    tat: Padded<AtomicU64>,
}

impl AtomicFloor {
    pub(crate) fn new(load: Load) -> Self {
        let clock = quanta::Clock::new();
        let period = u64::try_from(load.period.as_nanos()).expect("a period below 584 years");
        let interval = period / u64::from(load.count);
        Self {
            anchor: clock.raw(),
            clock,
            interval,
            capacity: interval * u64::from(load.burst),
            tat: Padded(AtomicU64::new(0)),
        }
    }
}

impl Gate for AtomicFloor {
    #[inline(always)]
    fn allow(&self) -> bool {
        let now = self.clock.delta_as_nanos(self.anchor, self.clock.raw());
        let mut tat = self.tat.0.load(Ordering::Relaxed);
        loop {
            let after = tat.max(now) + self.interval;
            if after - now > self.capacity {
                return false;
            }
            let swapped =
                self.tat
                    .0
                    .compare_exchange_weak(tat, after, Ordering::Relaxed, Ordering::Relaxed);
            match swapped {
                Ok(_) => return true,
                Err(seen) => tat = seen,
            }
        }
    }
}

/// governor's direct limiter, on any clock.
pub(crate) type Governor<C = QuantaClock> = governor::RateLimiter<
    NotKeyed,
    InMemoryState,
    C,
    NoOpMiddleware<governor::clock::QuantaInstant>,
>;

pub(crate) fn governor(load: Load) -> Governor {
    Governor::direct(load.quota())
}

/// governor on its own cached clock, updated every millisecond as ours is.
pub(crate) fn governor_upkeep(load: Load) -> Governor<QuantaUpkeepClock> {
    let clock = QuantaUpkeepClock::from_interval(Duration::from_millis(1))
        .expect("one upkeep thread can be started");
    Governor::direct_with_clock(load.quota(), clock)
}

impl Gate for Governor {
    #[inline(always)]
    fn allow(&self) -> bool {
        self.check().is_ok()
    }
}

impl Gate for Governor<QuantaUpkeepClock> {
    #[inline(always)]
    fn allow(&self) -> bool {
        self.check().is_ok()
    }
}

pub(crate) fn ratelimit(load: Load) -> ratelimit::Ratelimiter {
    ratelimit::Ratelimiter::builder(u64::from(load.count))
        .period(load.period)
        .max_tokens(u64::from(load.burst))
        .initial_available(u64::from(load.burst))
        .build()
        .expect("a rate that ratelimit can represent")
}

impl Gate for ratelimit::Ratelimiter {
    #[inline(always)]
    fn allow(&self) -> bool {
        self.try_wait().is_ok()
    }
}

pub(crate) fn leaky_bucket(load: Load) -> leaky_bucket::RateLimiter {
    let per_millisecond = Duration::from_millis(1);
    // It refills in steps of whole milliseconds.
    let (refill, interval) = if load.period == Duration::from_secs(1) {
        (load.count / 1000, per_millisecond)
    } else {
        (load.count, load.period)
    };
    let size = |count| usize::try_from(count).expect("32 bits fit");
    leaky_bucket::RateLimiter::builder()
        .refill(size(refill))
        .interval(interval)
        .max(size(load.burst))
        .initial(size(load.burst))
        .build()
}

impl Gate for leaky_bucket::RateLimiter {
    #[inline(always)]
    fn allow(&self) -> bool {
        self.try_acquire(1)
    }
}

/// throttlecrab keeps its state in a store that needs a lock.
pub(crate) struct Throttlecrab {
    limiter: Mutex<throttlecrab::RateLimiter<throttlecrab::PeriodicStore>>,
    load: Load,
}

impl Throttlecrab {
    pub(crate) fn new(load: Load) -> Self {
        let store = throttlecrab::PeriodicStore::new();
        Self {
            limiter: Mutex::new(throttlecrab::RateLimiter::new(store)),
            load,
        }
    }
}

impl Gate for Throttlecrab {
    #[inline(always)]
    fn allow(&self) -> bool {
        let Load {
            count,
            period,
            burst,
        } = self.load;
        let seconds = i64::try_from(period.as_secs()).unwrap_or(i64::MAX);
        let now = timing::wall_now();
        let mut limiter = self.limiter.lock().unwrap_or_else(PoisonError::into_inner);
        limiter
            .rate_limit("k", i64::from(burst), i64::from(count), seconds, 1, now)
            .is_ok_and(|(allowed, _)| allowed)
    }
}

/// The floor and the four crates, by name.
pub(crate) fn all(load: Load) -> [(&'static str, Arc<dyn Gate>); 5] {
    [
        ("floor", Arc::new(AtomicFloor::new(load))),
        ("governor", Arc::new(governor(load))),
        ("ratelimit", Arc::new(ratelimit(load))),
        ("leaky-bucket", Arc::new(leaky_bucket(load))),
        ("throttlecrab", Arc::new(Throttlecrab::new(load))),
    ]
}
