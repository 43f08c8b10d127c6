//! How often things happened, as allowed and denied: counted on the calling thread's own cache line.

// Not loom's: no decision reads a count, so counts are no part of any model.
use std::sync::atomic::{AtomicU64, Ordering};

use crate::sync::{Padded, known_thread_number, thread_number};

/// Counts that only ever grow, spread so that threads don't share a line.
///
/// A thread with a small number has a stripe to itself, and adds to it by a plain load and store,
/// which needs no atomic addition. The others share as many more.
#[derive(Debug)]
pub(crate) struct Counters<const KINDS: usize = 2> {
    /// One thread's each.
    own: Box<[Padded<[AtomicU64; KINDS]>]>,
    shared: Box<[Padded<[AtomicU64; KINDS]>]>,
}

impl<const KINDS: usize> Counters<KINDS> {
    /// Two stripes for each core, and as many again to share.
    pub(crate) fn new() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let stripes = || {
            (0..2 * cores)
                .map(|_| Padded([const { AtomicU64::new(0) }; KINDS]))
                .collect()
        };
        Self {
            // The threads of a model are one thread to the system, and would share a number.
            own: if cfg!(any(loom, shuttle)) {
                Box::default()
            } else {
                stripes()
            },
            shared: stripes(),
        }
    }

    #[inline(always)]
    pub(crate) fn add(&self, kind: usize) {
        let Some(stripe) = self.own.get(known_thread_number()) else {
            return self.add_shared(kind);
        };
        let counter = &stripe.0[kind];
        // Nobody else writes here: thread numbers are given to one thread at a time.
        let count = counter.load(Ordering::Relaxed);
        counter.store(count.wrapping_add(1), Ordering::Relaxed);
    }

    /// Counts for a thread without a stripe, or without a number so far.
    #[cold]
    #[inline(never)]
    fn add_shared(&self, kind: usize) {
        let stripe = &self.shared[thread_number() % self.shared.len()];
        // A lone count: nothing else is read by what it says.
        stripe.0[kind].fetch_add(1, Ordering::Relaxed);
    }

    /// How often this kind was counted so far.
    pub(crate) fn sum(&self, kind: usize) -> u64 {
        let stripes = self.own.iter().chain(&self.shared);
        let counts = stripes.map(|stripe| &stripe.0[kind]);
        counts.map(|count| count.load(Ordering::Relaxed)).sum()
    }
}

/// Denied and allowed.
impl Counters {
    #[inline(always)]
    pub(crate) fn count(&self, allowed: bool) {
        self.add(usize::from(allowed));
    }

    /// Allowed and denied so far.
    pub(crate) fn sums(&self) -> (u64, u64) {
        (self.sum(1), self.sum(0))
    }
}
