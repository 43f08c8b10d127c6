//! Spreads the retries of clients that were denied together.

use std::hash::BuildHasher;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use foldhash::quality::RandomState;
use tollgate::Clock;

use super::blocking::AnyClock;
use super::denial::Denial;

/// The number of counters for recent denials. Keys that share a counter are spread further than necessary.
const COUNTS: usize = 4_096;

/// Adds a random time to `Retry-After`.
///
/// Serving all recently denied requests takes `denials ÷ rate`, so retries are spread over that time, and at least
/// over the limit's window. Over less time, most of them would be denied again.
pub(super) struct RetryJitter {
    most: Duration,
    clock: AnyClock,
    seed: RandomState,
    drawn: AtomicU64,
    /// The upper half is the number of a window, the lower half the denials in it. Earlier denials count half for
    /// each window that has passed. No other memory depends on the counters, so relaxed ordering is enough.
    counts: Box<[AtomicU64]>,
}

impl RetryJitter {
    pub(super) fn new(most: Duration, clock: AnyClock) -> Self {
        Self {
            most,
            clock,
            seed: RandomState::default(),
            drawn: AtomicU64::new(0),
            counts: (0..COUNTS).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    /// The random time for this denial.
    pub(super) fn extra_wait(&self, denial: &Denial) -> Duration {
        let shown = denial.shown();
        let Some(window) = shown.and_then(|shown| shown.window) else {
            return Duration::ZERO;
        };
        let recent = self.count_denial(denial, window);
        let needed =
            window.as_nanos() * u128::from(recent) / u128::from(denial.decision.limit.max(1));
        let nanos = needed.max(window.as_nanos()).min(self.most.as_nanos());
        let nanos = u64::try_from(nanos).unwrap_or(u64::MAX);
        let drawn = self.drawn.fetch_add(1, Ordering::Relaxed);
        // Uniform over the range: the upper half of a random number times the range.
        let part = (u128::from(self.seed.hash_one(drawn)) * (u128::from(nanos) + 1)) >> 64;
        Duration::from_nanos(u64::try_from(part).unwrap_or(nanos))
    }

    /// Counts a denial, and returns the recent denials of this key at this limit.
    fn count_denial(&self, denial: &Denial, window: Duration) -> u64 {
        let place = self.seed.hash_one((denial.key, &denial.limit));
        let place = usize::try_from(place % COUNTS as u64).unwrap_or_default();
        let window = u64::try_from(window.as_nanos()).unwrap_or(u64::MAX).max(1);
        let now = (self.clock.now().as_nanos() / window) & u64::from(u32::MAX);
        let after = |word: u64| {
            let (then, count) = (word >> 32, word & u64::from(u32::MAX));
            let passed = now.wrapping_sub(then) & u64::from(u32::MAX);
            let left = count >> passed.min(63);
            now << 32 | (left + 1).min(u64::from(u32::MAX))
        };
        let cell = &self.counts[place];
        let update = cell.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |word| {
            Some(after(word))
        });
        after(update.unwrap_or_else(|word| word)) & u64::from(u32::MAX)
    }
}
