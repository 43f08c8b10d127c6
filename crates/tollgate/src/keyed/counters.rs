//! How much was allowed and denied: counted on the calling thread's own cache line.

use crate::sync::{AtomicU64, Ordering, Padded, known_thread_number, thread_number};

/// Counts that only ever grow, spread so that threads don't share a line.
///
/// A thread with a small number has a stripe to itself, and adds to it by a plain load and store,
/// which needs no atomic addition. The others share the stripes of the second half.
#[derive(Debug)]
pub(crate) struct Counters {
    /// One thread's each.
    own: Box<[Padded<Stripe>]>,
    shared: Box<[Padded<Stripe>]>,
}

/// Denied and allowed.
type Stripe = [AtomicU64; 2];

impl Counters {
    /// Two stripes for each core, and as many again to share.
    pub(crate) fn new() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let stripes = || {
            (0..2 * cores)
                .map(|_| Padded([AtomicU64::new(0), AtomicU64::new(0)]))
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
    pub(crate) fn count(&self, allowed: bool) {
        let Some(stripe) = self.own.get(known_thread_number()) else {
            return self.count_shared(allowed);
        };
        let counter = &stripe.0[usize::from(allowed)];
        // Nobody else writes here: thread numbers are given to one thread at a time.
        let count = counter.load(Ordering::Relaxed);
        counter.store(count.wrapping_add(1), Ordering::Relaxed);
    }

    /// Counts for a thread without a stripe, or without a number so far.
    #[cold]
    #[inline(never)]
    fn count_shared(&self, allowed: bool) {
        let number = thread_number();
        let stripe = &self.shared[number % self.shared.len()];
        // A lone count: nothing else is read by what it says.
        stripe.0[usize::from(allowed)].fetch_add(1, Ordering::Relaxed);
    }

    /// Allowed and denied so far.
    pub(crate) fn sums(&self) -> (u64, u64) {
        let sum = |index: usize| {
            let counts = self
                .own
                .iter()
                .chain(&self.shared)
                .map(|stripe| &stripe.0[index]);
            counts.map(|count| count.load(Ordering::Relaxed)).sum()
        };
        (sum(1), sum(0))
    }
}
