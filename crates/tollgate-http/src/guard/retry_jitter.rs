//! Clients that were refused together don't come again together.

use std::hash::BuildHasher;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use foldhash::quality::RandomState;
use tollgate::Clock;

use super::blocking::AnyClock;
use super::denial::Denial;

/// Counts of recent refusals; keys that share one are spread further than need be.
const COUNTS: usize = 4_096;

/// Adds a random time to `Retry-SettlementTiming`.
///
/// As many as were refused lately need `refusals ÷ rate` to be served, so that is how far they are spread, and at least over
/// the limit's window: over less, most would be refused again.
pub(super) struct RetryJitter {
    most: Duration,
    clock: AnyClock,
    seed: RandomState,
    drawn: AtomicU64,
    /// The number of a window above, and the refusals in it below; what was in those before counts half for each that has
    /// passed. Nothing else is told by them, so no order is needed.
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

    /// How much longer than it has to this one is told to wait.
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
        // Evenly: the upper half of a random number times the range.
        let part = (u128::from(self.seed.hash_one(drawn)) * (u128::from(nanos) + 1)) >> 64;
        Duration::from_nanos(u64::try_from(part).unwrap_or(nanos))
    }

    /// Counts a refusal, and says how many there were lately of this key at this limit.
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
