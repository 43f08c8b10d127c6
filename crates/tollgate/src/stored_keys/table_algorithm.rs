//! The interface of an algorithm to the table, beyond its arithmetic: its tiers, and its states as words.

use std::fmt;
use std::sync::Arc;

use tollgate_core::{
    Arithmetic, Bucket, BucketLevel, FixedWindow, Gcra, HitLog, LeakyBucket, SlidingCounter,
    SlidingCounts, SlidingLog, TatState, Timestamp, TokenBucket, WindowAlignment, WindowCount,
};

use crate::tier::{ChooseTier, Tier};

/// An algorithm whose states a table can store.
pub(super) trait TableAlgorithm: Arithmetic + PartialEq + 'static {
    /// Its number in a snapshot.
    const NUMBER: u64;

    /// The limit of a tier of this algorithm.
    fn of_tier(tier: &Tier) -> Option<&Arc<Self>> {
        tier.limit().downcast_ref()
    }

    /// The alignment of its windows, for an algorithm that has one.
    fn alignment_of(&self) -> WindowAlignment {
        WindowAlignment::default()
    }

    /// The same limit with this window alignment.
    fn aligned_to(self, _align: WindowAlignment) -> Self {
        self
    }

    /// The most bytes that a state of this limit has on the heap.
    fn heap_bytes(&self) -> usize {
        0
    }

    /// The state as words.
    fn write(state: &Self::State, words: &mut Vec<u64>);

    /// The state from the words that were written; `None` if they are too few.
    fn read(words: &mut impl Iterator<Item = u64>) -> Option<Self::State>;
}

fn read_time(words: &mut impl Iterator<Item = u64>) -> Option<Timestamp> {
    words.next().map(Timestamp::from_nanos)
}

impl TableAlgorithm for Gcra {
    const NUMBER: u64 = 1;

    fn write(tat: &TatState, words: &mut Vec<u64>) {
        words.push(tat.to_word());
    }

    fn read(words: &mut impl Iterator<Item = u64>) -> Option<TatState> {
        words.next().map(TatState::from_word)
    }
}

/// A level as three words.
fn write_level(level: &BucketLevel, words: &mut Vec<u64>) {
    let BucketLevel { debt, as_of } = level;
    let half = |units: u128| u64::try_from(units & u128::from(u64::MAX)).unwrap_or(u64::MAX);
    words.extend([half(debt >> u64::BITS), half(*debt), as_of.as_nanos()]);
}

fn read_level(words: &mut impl Iterator<Item = u64>) -> Option<BucketLevel> {
    let high = u128::from(words.next()?) << u64::BITS;
    let low = u128::from(words.next()?);
    Some(BucketLevel {
        debt: high | low,
        as_of: read_time(words)?,
    })
}

impl TableAlgorithm for TokenBucket {
    const NUMBER: u64 = 2;

    fn write(bucket: &Bucket, words: &mut Vec<u64>) {
        write_level(&bucket.level, words);
        words.push(bucket.latest_reservation.as_nanos());
    }

    fn read(words: &mut impl Iterator<Item = u64>) -> Option<Bucket> {
        Some(Bucket {
            level: read_level(words)?,
            latest_reservation: read_time(words)?,
        })
    }
}

impl TableAlgorithm for LeakyBucket {
    const NUMBER: u64 = 3;

    fn write(level: &BucketLevel, words: &mut Vec<u64>) {
        write_level(level, words);
    }

    fn read(words: &mut impl Iterator<Item = u64>) -> Option<BucketLevel> {
        read_level(words)
    }
}

impl TableAlgorithm for FixedWindow {
    const NUMBER: u64 = 4;

    fn alignment_of(&self) -> WindowAlignment {
        self.alignment()
    }

    fn aligned_to(self, align: WindowAlignment) -> Self {
        self.with_alignment(align)
    }

    fn write(window: &WindowCount, words: &mut Vec<u64>) {
        words.extend([window.start.as_nanos(), window.count]);
    }

    fn read(words: &mut impl Iterator<Item = u64>) -> Option<WindowCount> {
        Some(WindowCount {
            start: read_time(words)?,
            count: words.next()?,
        })
    }
}

impl TableAlgorithm for SlidingLog {
    const NUMBER: u64 = 5;

    /// A hit has two words. A log holds up to its count of hits, twice that with a window booked ahead, and its
    /// capacity doubles as it grows.
    fn heap_bytes(&self) -> usize {
        let hits = usize::try_from(self.rate().count()).unwrap_or(usize::MAX);
        if self.rate().is_unlimited() {
            return 0;
        }
        let room = hits.saturating_mul(2).max(4);
        room.checked_next_power_of_two()
            .unwrap_or(usize::MAX)
            .saturating_mul(2 * size_of::<u64>())
    }

    fn write(log: &HitLog, words: &mut Vec<u64>) {
        let hits = log.entries();
        words.push(hits.len() as u64);
        words.extend(hits.flat_map(|(at, weight)| [at.as_nanos(), weight]));
    }

    fn read(words: &mut impl Iterator<Item = u64>) -> Option<HitLog> {
        let hits = words.next()?;
        let mut entries = Vec::new();
        for _ in 0..hits {
            // The length in the file is not trusted with an allocation: the loop ends where the words do.
            entries.push((read_time(words)?, words.next()?));
        }
        Some(HitLog::from_entries(entries))
    }
}

impl TableAlgorithm for SlidingCounter {
    const NUMBER: u64 = 6;

    fn write(counts: &SlidingCounts, words: &mut Vec<u64>) {
        words.extend([counts.start.as_nanos(), counts.previous, counts.current]);
    }

    fn read(words: &mut impl Iterator<Item = u64>) -> Option<SlidingCounts> {
        Some(SlidingCounts {
            start: read_time(words)?,
            previous: words.next()?,
            current: words.next()?,
        })
    }
}

/// The function of a limiter that selects a key's tier, if there is one.
pub(super) struct KeyTiers<K>(pub(super) Option<Box<dyn ChooseTier<K>>>);

impl<K> KeyTiers<K> {
    /// The tier that it selects for this key, compiled for the limiter's algorithm.
    pub(super) fn tier<A: TableAlgorithm>(&self, key: &K) -> Option<Arc<A>> {
        let tier = self.0.as_ref()?.tier_of(key)?;
        A::of_tier(tier).map(Arc::clone)
    }

    pub(super) fn is_none(&self) -> bool {
        self.0.is_none()
    }
}

impl<K> fmt::Debug for KeyTiers<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_none() { "None" } else { "Some(fn)" })
    }
}
