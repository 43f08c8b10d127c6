//! Keyed limiters behind one trait: ours and governor's, with keys of sixteen bytes.

use std::cell::Cell;
use std::hint::black_box;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use governor::Quota;
use governor::clock::DefaultClock;
use governor::state::keyed::DashMapStateStore;
use tollgate::{KeyedLimiter, Rate};

use super::keys::{Buffer, Keys, name};
use crate::peers::Padded;
use crate::runner::{Measure, OneThread, Sample};
use crate::two_threads::Work;

/// A keyed limiter.
pub(crate) trait KeyedGate: Send + Sync + 'static {
    #[expect(clippy::ptr_arg, reason = "governor looks keys up by `&String`")]
    fn allow(&self, key: &String) -> bool;
}

/// One token for each key in a period.
#[derive(Clone, Copy, PartialEq)]
pub(crate) struct KeyedLoad {
    period: Duration,
    burst: u32,
}

impl KeyedLoad {
    /// A key stays active for a minute after its last request, and all keys fit.
    pub(crate) const ADMIT: Self = Self {
        period: Duration::from_secs(60),
        burst: 1_000_000,
    };
    /// The second request of a key is denied, for as long as a benchmark runs.
    pub(crate) const DENY: Self = Self {
        period: Duration::from_secs(3600),
        burst: 1,
    };

    fn quota(self) -> Quota {
        let burst = NonZeroU32::new(self.burst).expect("a burst of at least 1");
        Quota::with_period(self.period)
            .expect("an interval of at least 1 ns")
            .allow_burst(burst)
    }
}

pub(crate) fn tollgate_gate(load: KeyedLoad, keys: u64) -> KeyedLimiter {
    let rate = Rate::new(1, load.period).burst(u64::from(load.burst));
    KeyedLimiter::new(rate, usize::try_from(keys).expect("keys fit into memory"))
}

impl KeyedGate for KeyedLimiter {
    #[inline(always)]
    fn allow(&self, key: &String) -> bool {
        Self::allow(self, key.as_str())
    }
}

/// Our limiter with a second counter of the same kind as its own: on a cache line of the calling thread, with a
/// plain load and store. The difference is the cost of a counter.
pub(crate) struct RecountedLimiter {
    limiter: KeyedLimiter,
    counts: [Padded<[AtomicU64; 2]>; 2],
}

thread_local! {
    /// The thread's cache line: the benchmark has one thread.
    static LINE: Cell<usize> = const { Cell::new(0) };
}

impl RecountedLimiter {
    pub(crate) fn new(limiter: KeyedLimiter) -> Self {
        Self {
            limiter,
            counts: [const { Padded([const { AtomicU64::new(0) }; 2]) }; 2],
        }
    }
}

impl KeyedGate for RecountedLimiter {
    #[inline(always)]
    fn allow(&self, key: &String) -> bool {
        let allowed = self.limiter.allow(key.as_str());
        if let Some(line) = self.counts.get(LINE.get()) {
            let count = &line.0[usize::from(allowed)];
            count.store(count.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        }
        allowed
    }
}

type Store<S> = DashMapStateStore<String, S>;
/// governor by key, with whatever hasher.
pub(crate) type KeyedGovernor<S> = governor::RateLimiter<String, Store<S>, DefaultClock>;

pub(crate) fn governor(load: KeyedLoad) -> KeyedGovernor<std::hash::RandomState> {
    governor::RateLimiter::keyed(load.quota())
}

pub(crate) fn governor_ahash(load: KeyedLoad) -> KeyedGovernor<ahash::RandomState> {
    governor::RateLimiter::dashmap_with_hasher(load.quota(), ahash::RandomState::new())
}

impl<S: std::hash::BuildHasher + Clone + Send + Sync + 'static> KeyedGate for KeyedGovernor<S> {
    #[inline(always)]
    fn allow(&self, key: &String) -> bool {
        self.check_key(key).is_ok()
    }
}

/// Makes requests for keys one by one, from a step on. Returns how many passed.
#[inline(always)]
pub(crate) fn run_calls(
    gate: &impl KeyedGate,
    keys: &Keys,
    buffer: &mut Buffer,
    steps: std::ops::Range<u64>,
) -> u64 {
    let mut passed = 0;
    for step in steps {
        let key = buffer.set(keys.at(step));
        passed += u64::from(black_box(black_box(gate).allow(key)));
    }
    passed
}

/// Makes a request for each key, so that all are in the table.
pub(crate) fn filled<G: KeyedGate>(gate: G, keys: u64) -> Arc<G> {
    let mut buffer = Buffer::new();
    for index in 0..keys {
        assert!(gate.allow(buffer.set(&name(index))), "a new key passes");
    }
    Arc::new(gate)
}

/// Calls in one measurement: a fraction of a millisecond for ours. A multiple of [`BATCH`].
pub(crate) const CALLS: u64 = 4096;
/// Measurements that don't count before each that does.
const WARM_UP: usize = 4;

/// The participant before left its own data in the caches, page tables above all; warming up measures a limiter
/// in steady use.
pub(crate) struct WarmedUp<M>(pub(crate) M);

impl<M: Measure> Measure for WarmedUp<M> {
    fn sample(&mut self) -> Sample {
        for _ in 0..WARM_UP {
            self.0.sample();
        }
        self.0.sample()
    }
}

/// A loop on this thread, in which every request has to pass, or none.
pub(crate) fn alone<'a>(gate: Arc<impl KeyedGate>, keys: &'a Keys, pass: bool) -> OneThread<'a> {
    let (mut buffer, mut step) = (Buffer::new(), 0);
    OneThread::fixed(CALLS, move |calls| {
        let passed = run_calls(gate.as_ref(), keys, &mut buffer, step..step + calls);
        step += calls;
        assert_eq!(passed, if pass { calls } else { 0 });
    })
}

/// The same on two threads, each in an order of its own.
pub(crate) fn work(gate: Arc<impl KeyedGate>, keys: Arc<Keys>) -> Work {
    let steps: [Padded<AtomicU64>; 2] = [0, 1 << 19].map(|step| Padded(AtomicU64::new(step)));
    Arc::new(move |thread, calls| {
        let step = steps[thread].0.load(Ordering::Relaxed);
        steps[thread].0.store(step + calls, Ordering::Relaxed);
        run_calls(gate.as_ref(), &keys, &mut Buffer::new(), step..step + calls)
    })
}

/// How many requests form a batch.
const BATCH: usize = 16;

/// A loop over our limiter with batches of sixteen keys.
pub(crate) fn batches(gate: Arc<KeyedLimiter>, keys: &Keys) -> OneThread<'_> {
    let mut buffers = [(); BATCH].map(|()| Buffer::new());
    let mut decisions = Vec::new();
    let mut step = 0;
    OneThread::fixed(CALLS, move |calls| {
        let (mut passed, end) = (0, step + calls);
        while step < end {
            for (buffer, step) in buffers.iter_mut().zip(step..) {
                buffer.set(keys.at(step));
            }
            let requests = buffers.each_ref().map(|buffer| (buffer.as_str(), 1));
            black_box(&gate).check_many(&requests, &mut decisions);
            let allowed = black_box(&decisions).iter().filter(|it| it.is_allowed());
            passed += allowed.count();
            step += BATCH as u64;
        }
        assert_eq!(passed as u64, calls);
    })
}
