//! Whether requests have the facts that rules read. It is counted for the first hundred requests of each policy, so
//! that a limit that never applies is reported once.
//!
//! The counts only give advice, so the orderings are relaxed: these numbers publish nothing else. One property must
//! hold: a warning is reported once. It does, because each addition to a number returns another result. Once a
//! hundred are counted, or a key was found, nothing is written any more, so requests without a key don't invalidate
//! the cache line of a rule that others read.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// How many requests are counted.
const MAX_COUNTED: u32 = 100;

/// A counter up to a hundred.
#[derive(Debug, Default)]
pub(crate) struct FirstHundred(AtomicU32);

impl FirstHundred {
    /// Counts one more, and returns whether it is the hundredth.
    #[cold]
    pub(crate) fn count_to_hundred(&self) -> bool {
        // The load first: after the hundredth request, the counter is never written again.
        self.0.load(Ordering::Relaxed) < MAX_COUNTED
            && self.0.fetch_add(1, Ordering::Relaxed) == MAX_COUNTED - 1
    }

    /// Whether none was counted.
    pub(crate) fn is_none(&self) -> bool {
        self.0.load(Ordering::Relaxed) == 0
    }

    /// Whether a hundred were counted.
    pub(crate) fn is_full(&self) -> bool {
        self.0.load(Ordering::Relaxed) >= MAX_COUNTED
    }
}

/// Whether any request that a rule matched had its key.
#[derive(Debug, Default)]
pub(crate) struct FactPresence {
    found: AtomicBool,
    missing: FirstHundred,
}

impl FactPresence {
    /// Records that a request had the key.
    #[inline(always)]
    pub(crate) fn record_found(&self) {
        if !self.found.load(Ordering::Relaxed) {
            self.note_first();
        }
    }

    #[cold]
    fn note_first(&self) {
        self.found.store(true, Ordering::Relaxed);
    }

    /// Records that a request lacked the key. Returns whether it is the hundredth, and none had it.
    #[cold]
    pub(crate) fn record_missing(&self) -> bool {
        !self.found.load(Ordering::Relaxed) && self.missing.count_to_hundred()
    }

    /// Whether the rule matched a request, with its key or without.
    pub(crate) fn is_any(&self) -> bool {
        self.found.load(Ordering::Relaxed) || !self.missing.is_none()
    }

    /// Whether a hundred requests lacked the key, and none had it.
    pub(crate) fn is_never_found(&self) -> bool {
        !self.found.load(Ordering::Relaxed) && self.missing.is_full()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hundredth_is_told_once_however_many_threads_count() {
        let seen = FactPresence::default();
        let told = std::thread::scope(|scope| {
            let count = || (0..500).filter(|_| seen.record_missing()).count();
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(count)).collect();
            threads
                .into_iter()
                .map(|own| own.join().unwrap())
                .sum::<usize>()
        });
        assert_eq!(told, 1);
        assert!(seen.is_never_found() && seen.is_any());
        seen.record_found();
        assert!(!seen.is_never_found());
    }

    #[test]
    fn a_key_that_was_found_once_is_never_told_of() {
        let seen = FactPresence::default();
        assert!(!seen.is_any());
        seen.record_found();
        assert_eq!((0..500).filter(|_| seen.record_missing()).count(), 0);
        assert!(seen.is_any() && !seen.is_never_found());
    }
}
