//! How much was allowed and denied: counted on the calling thread's own cache line.

use crate::sync::{AtomicU64, Ordering, Padded, thread_number};

/// Counts that only ever grow, spread so that threads don't share a line.
///
/// A thread with a small number has a stripe to itself, and adds to it by a plain load and store,
/// which needs no atomic addition. The others share the stripes of the second half.
#[derive(Debug)]
pub(crate) struct Counters {
    stripes: Box<[Padded<Stripe>]>,
}

/// Denied and allowed.
type Stripe = [AtomicU64; 2];

impl Counters {
    /// Two stripes for each core, as many again to share, and a power of two of them.
    pub(crate) fn new() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Self {
            stripes: (0..4 * cores.next_power_of_two())
                .map(|_| Padded([AtomicU64::new(0), AtomicU64::new(0)]))
                .collect(),
        }
    }

    #[inline(always)]
    pub(crate) fn count(&self, allowed: bool) {
        let (number, own) = (thread_number(), self.stripes.len() / 2);
        // The threads of a model are one thread to the system, and would share a number.
        if number >= own || cfg!(any(loom, shuttle)) {
            return self.count_shared(number, allowed);
        }
        let counter = &self.stripes[number].0[usize::from(allowed)];
        // Nobody else writes here: thread numbers are given to one thread at a time.
        let count = counter.load(Ordering::Relaxed);
        counter.store(count.wrapping_add(1), Ordering::Relaxed);
    }

    #[cold]
    #[inline(never)]
    fn count_shared(&self, number: usize, allowed: bool) {
        let own = self.stripes.len() / 2;
        let counter = &self.stripes[own + number % own].0[usize::from(allowed)];
        // A lone count: nothing else is read by what it says.
        counter.fetch_add(1, Ordering::Relaxed);
    }

    /// Allowed and denied so far.
    pub(crate) fn sums(&self) -> (u64, u64) {
        let sum = |index: usize| {
            let counts = self.stripes.iter().map(|stripe| &stripe.0[index]);
            counts.map(|count| count.load(Ordering::Relaxed)).sum()
        };
        (sum(1), sum(0))
    }
}
