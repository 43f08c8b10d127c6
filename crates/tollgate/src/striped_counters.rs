//! Counters that only grow, on the calling thread's own cache lines: many threads count, and few read.

// Not loom's: no decision depends on a counter, so counters are no part of any model.
use std::sync::atomic::{AtomicU64, Ordering};

use crate::sync::{Padded, cached_thread_number, thread_number};

/// Counters of any type, one set for each thread that counts often.
///
/// A thread with a small number has a stripe of its own, and adds to it by a plain load and store, without an atomic
/// addition. All other threads share some more stripes.
///
/// ```
/// use std::sync::atomic::AtomicU64;
/// use tollgate::striped_counters::StripedCounters;
///
/// let stripes = StripedCounters::new(|| [const { AtomicU64::new(0) }; 2]);
/// stripes.add(|both| &both[1], 3);
/// assert_eq!((stripes.sum(|both| &both[0]), stripes.sum(|both| &both[1])), (0, 3));
/// ```
#[derive(Debug)]
pub struct StripedCounters<T> {
    /// The stripes with one thread each.
    own: Box<[Padded<T>]>,
    shared: Box<[Padded<T>]>,
}

/// Whether one or several threads write to a stripe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Writers {
    /// Only the calling thread: a load and a store suffice to add.
    One,
    /// Several threads: additions must be atomic.
    Many,
}

impl<T> StripedCounters<T> {
    /// Two stripes for each core, and as many again to share.
    pub fn new(make: impl Fn() -> T) -> Self {
        let count = 2 * cores();
        Self::with(count, count, make)
    }

    /// One stripe for each core and a few more, for counters that take much memory.
    pub fn with_few_stripes(make: impl Fn() -> T) -> Self {
        Self::with(cores() + 2, 2, make)
    }

    fn with(own: usize, shared: usize, make: impl Fn() -> T) -> Self {
        let stripes = |count: usize| (0..count).map(|_| Padded(make())).collect();
        Self {
            // The model checker's threads are one thread to the system, and would share a number.
            own: if cfg!(any(loom, shuttle)) {
                Box::default()
            } else {
                stripes(own)
            },
            shared: stripes(shared),
        }
    }

    /// Adds to one of the counters. `counter` must select the same one in every stripe.
    #[inline(always)]
    pub fn add(&self, counter: impl Fn(&T) -> &AtomicU64, count: u64) {
        let Some(stripe) = self.own.get(cached_thread_number()) else {
            return self.add_shared(counter, count);
        };
        let counter = counter(&stripe.0);
        // No other thread writes here: a thread number belongs to one thread at a time.
        let sum = counter.load(Ordering::Relaxed);
        counter.store(sum.wrapping_add(count), Ordering::Relaxed);
    }

    /// Counts for a thread without a stripe, or without a number so far.
    #[cold]
    #[inline(never)]
    fn add_shared(&self, counter: impl Fn(&T) -> &AtomicU64, count: u64) {
        let stripe = &self.shared[thread_number() % self.shared.len()];
        // Relaxed: no other memory depends on the counter.
        counter(&stripe.0).fetch_add(count, Ordering::Relaxed);
    }

    /// The stripe of the calling thread, and whether other threads may write to it, too.
    #[inline(always)]
    pub fn with_own_stripe<R>(&self, look: impl FnOnce(&T, Writers) -> R) -> R {
        match self.own.get(cached_thread_number()) {
            Some(stripe) => look(&stripe.0, Writers::One),
            None => look(
                &self.shared[thread_number() % self.shared.len()].0,
                Writers::Many,
            ),
        }
    }

    /// Visits all stripes, one after another.
    pub fn for_each_stripe(&self, look: impl FnMut(&T)) {
        let stripes = self.own.iter().chain(&self.shared);
        stripes.map(|stripe| &stripe.0).for_each(look);
    }

    /// The sum of one of the counters over all threads.
    pub fn sum(&self, counter: impl Fn(&T) -> &AtomicU64) -> u64 {
        let stripes = self.own.iter().chain(&self.shared);
        let counts = stripes.map(|stripe| counter(&stripe.0).load(Ordering::Relaxed));
        counts.fold(0, u64::wrapping_add)
    }
}

/// Counters that only grow, spread so that threads don't share a cache line.
#[derive(Debug)]
pub(crate) struct Counters<const KINDS: usize = 2>(StripedCounters<[AtomicU64; KINDS]>);

impl<const KINDS: usize> Counters<KINDS> {
    pub(crate) fn new() -> Self {
        Self(StripedCounters::new(|| {
            [const { AtomicU64::new(0) }; KINDS]
        }))
    }

    #[inline(always)]
    pub(crate) fn add(&self, kind: usize) {
        self.add_many(kind, 1);
    }

    #[inline(always)]
    fn add_many(&self, kind: usize, several: u64) {
        self.0.add(|kinds| &kinds[kind], several);
    }

    /// The sum of one kind of event.
    pub(crate) fn sum(&self, kind: usize) -> u64 {
        self.0.sum(|kinds| &kinds[kind])
    }
}

/// Denied and allowed.
impl Counters {
    #[inline(always)]
    pub(crate) fn count(&self, allowed: bool) {
        self.add(usize::from(allowed));
    }

    /// Counts several allowed requests.
    #[inline(always)]
    pub(crate) fn count_allowed(&self, several: u64) {
        self.add_many(1, several);
    }

    /// The allowed and denied requests so far.
    pub(crate) fn sums(&self) -> (u64, u64) {
        (self.sum(1), self.sum(0))
    }
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}
