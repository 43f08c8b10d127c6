//! Policies that a reload has replaced, and that a decision may still read. The next reload drops them, not the last
//! decision: ten thousand rules take milliseconds to drop, and no decision should.

use std::sync::Arc;
use std::thread;

/// How many replaced policies are kept while they are read. A decision that is held across more reloads drops its
/// policy itself.
const MAX_RETIRED: usize = 4;
/// How often a reload yields before it leaves a policy in use to the next reload. A running decision ends in that
/// time.
const MAX_YIELDS: u32 = 100;

/// Replaced values, the oldest first.
#[derive(Debug)]
pub(super) struct RetiredPolicies<T>(Vec<Arc<T>>);

impl<T> RetiredPolicies<T> {
    pub(super) const fn new() -> Self {
        Self(Vec::new())
    }

    /// Takes a replaced value, and drops those that nothing references any more.
    pub(super) fn retire(&mut self, old: Arc<T>) {
        self.0.push(old);
        for _ in 0..MAX_YIELDS {
            // `get_mut` synchronizes with the drops of other references, unlike `strong_count`.
            self.0.retain_mut(|old| Arc::get_mut(old).is_none());
            if self.0.is_empty() {
                return;
            }
            thread::yield_now();
        }
        if self.0.len() > MAX_RETIRED {
            self.0.remove(0);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// Counts drops.
    struct Counted<'a>(&'a AtomicUsize);

    impl Drop for Counted<'_> {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn what_somebody_holds_is_dropped_by_the_next_and_not_by_them() {
        let dropped = AtomicUsize::new(0);
        let count = || dropped.load(Ordering::Relaxed);
        let mut retired = RetiredPolicies::new();
        retired.retire(Arc::new(Counted(&dropped)));
        assert_eq!(count(), 1);
        let held = Arc::new(Counted(&dropped));
        retired.retire(Arc::clone(&held));
        drop(held);
        assert_eq!(count(), 1);
        retired.retire(Arc::new(Counted(&dropped)));
        assert_eq!(count(), 3);
    }

    #[test]
    fn no_more_are_kept_than_a_few() {
        let dropped = AtomicUsize::new(0);
        let mut retired = RetiredPolicies::new();
        let mut held: Vec<_> = (0..MAX_RETIRED + 2)
            .map(|_| Arc::new(Counted(&dropped)))
            .collect();
        for old in &held {
            retired.retire(Arc::clone(old));
        }
        assert_eq!(retired.0.len(), MAX_RETIRED);
        held.drain(..2);
        assert_eq!(dropped.load(Ordering::Relaxed), 2);
        held.clear();
        assert_eq!(dropped.load(Ordering::Relaxed), 2);
    }
}
