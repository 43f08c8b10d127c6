//! The rates of a limiter: its own rate, which may change live; the tier of a key; and the interval of each key's word,
//! as a tag in its slot's fingerprint.
//!
//! # Intervals and tags
//! A word is a time, so it stands for a number of tokens only at a known interval. Few limiters use many intervals, so
//! each interval gets a number, its *tag*. A slot holds the key's fingerprint with the tag in its top bits, by
//! exclusive-or. A request at the interval of the word finds the slot as if there were no tags. Other requests find it
//! by the lower bits, and the difference in the upper bits is the tag of the word's interval. With n intervals in use,
//! a collision of two keys is n times as likely.

use std::fmt;
use std::sync::atomic::AtomicU64 as RateWord;

use tollgate_core::{Arithmetic, Gcra, GcraParams, LimitError, Rate};

use super::anchor::{SLACK, move_word};
use super::slot::KeyWord;
use crate::Tier;
use crate::key_table::hasher::{KEY_BITS, TAG_SHIFT};
use crate::snapshot::{rate_from_words, rate_words};
use crate::sync::{AtomicU64, Backoff, Mutex, MutexGuard, Ordering, fence, ignore_poison};
use crate::tier::ChooseTier;

/// The rate in force, as the numbers that decide, behind a sequence number that is odd while they change. The memory
/// ordering is that of `cell/word.rs`, without a TAT to rescale.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct RateCell {
    interval: AtomicU64,
    capacity: AtomicU64,
    burst: AtomicU64,
    /// The tag of the interval.
    tag: AtomicU64,
    sequence: AtomicU64,
    /// The rate as it was set, which decisions report and nothing is decided by: so these aren't a model checker's
    /// atomics.
    rate: [RateWord; 5],
    limit: Mutex<Gcra>,
}

/// A rate in the form that a check needs.
#[derive(Clone, Copy, Debug)]
pub struct RateInForce {
    pub(crate) pace: GcraParams,
    pub(crate) burst: u64,
    pub(crate) tag: IntervalTag,
}

impl RateInForce {
    #[inline(always)]
    pub(crate) fn of(limit: &Gcra, intervals: &IntervalTable) -> Self {
        Self {
            pace: limit.params(),
            burst: limit.limit(),
            tag: intervals.tag(limit.interval_units()),
        }
    }
}

impl RateCell {
    pub(crate) fn new(limit: Gcra, intervals: &IntervalTable) -> Self {
        let RateInForce { pace, burst, tag } = RateInForce::of(&limit, intervals);
        Self {
            interval: AtomicU64::new(pace.interval),
            capacity: AtomicU64::new(pace.capacity),
            burst: AtomicU64::new(burst),
            tag: AtomicU64::new(tag.to_bits()),
            sequence: AtomicU64::new(0),
            rate: rate_words(limit.rate()).map(RateWord::new),
            limit: Mutex::new(limit),
        }
    }

    #[inline(always)]
    pub(crate) fn read(&self) -> RateInForce {
        self.read_by(|cell| RateInForce {
            pace: cell.pace_now(),
            burst: cell.burst.load(Ordering::Relaxed),
            tag: cell.tag_now(),
        })
    }

    /// The numbers that decide, without those that are only reported.
    #[inline(always)]
    pub(crate) fn read_pace(&self) -> (GcraParams, IntervalTag) {
        self.read_by(|cell| (cell.pace_now(), cell.tag_now()))
    }

    #[inline(always)]
    fn tag_now(&self) -> IntervalTag {
        IntervalTag::from_bits(self.tag.load(Ordering::Relaxed))
    }

    #[inline(always)]
    fn pace_now(&self) -> GcraParams {
        GcraParams {
            interval: self.interval.load(Ordering::Relaxed),
            capacity: self.capacity.load(Ordering::Relaxed),
        }
    }

    /// Repeats a read until no change overlapped it.
    #[inline(always)]
    fn read_by<T>(&self, read: impl Fn(&Self) -> T) -> T {
        let mut losses = 0;
        loop {
            let before = self.sequence.load(Ordering::Acquire);
            let in_force = read(self);
            fence(Ordering::Acquire);
            let after = self.sequence.load(Ordering::Relaxed);
            if before == after && before & 1 == 0 {
                return in_force;
            }
            losses = Self::wait(losses);
        }
    }

    /// Waits for a change to end, longer each time. It takes a number, so that a check that doesn't wait keeps nothing
    /// in memory.
    #[cold]
    #[inline(never)]
    fn wait(losses: u32) -> u32 {
        let mut backoff = Backoff::default();
        for _ in 0..=losses {
            backoff.back_off();
        }
        losses.saturating_add(1).min(8)
    }

    /// The rate, without a lock, because many decisions report it.
    #[inline]
    pub(crate) fn rate(&self) -> Rate {
        let words = self.read_by(|cell| {
            cell.rate
                .each_ref()
                .map(|word| word.load(Ordering::Relaxed))
        });
        let rate = rate_from_words(words).filter(|rate| rate.period().is_some());
        rate.unwrap_or_else(|| self.lock().rate())
    }

    pub(crate) fn set(&self, rate: Rate, intervals: &IntervalTable) -> Result<(), LimitError> {
        let limit = Gcra::new(rate)?;
        let mut current = self.lock();
        *current = limit;
        let RateInForce { pace, burst, tag } = RateInForce::of(&limit, intervals);
        let before = self.sequence.load(Ordering::Relaxed);
        self.sequence.store(before + 1, Ordering::Relaxed);
        fence(Ordering::Release);
        self.interval.store(pace.interval, Ordering::Relaxed);
        self.capacity.store(pace.capacity, Ordering::Relaxed);
        self.burst.store(burst, Ordering::Relaxed);
        self.tag.store(tag.to_bits(), Ordering::Relaxed);
        for (word, value) in self.rate.iter().zip(rate_words(rate)) {
            word.store(value, Ordering::Relaxed);
        }
        self.sequence.store(before + 2, Ordering::Release);
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, Gcra> {
        ignore_poison(self.limit.lock())
    }
}

/// No `tier_of` function: all keys are at the limiter's own rate, unless their handles select a tier with
/// [`at`](super::Key::at).
#[derive(Clone, Copy, Debug, Default)]
pub struct SingleRate(());

/// The function that returns the tier of a key of this type, given to [`tier_of`](super::Builder::tier_of).
pub struct TierByKey<K: ?Sized>(pub(super) Box<dyn ChooseTier<K>>);

/// Selects the tier of a key of this type: [`SingleRate`] for any type, [`TierByKey`] for its own.
///
/// The trait is sealed: it is there to be named, not to be implemented.
pub trait TierOf<K: ?Sized>: sealed::TierOf<K> {}

impl<K: ?Sized, T: sealed::TierOf<K>> TierOf<K> for T {}

pub(super) mod sealed {
    use crate::Tier;

    /// Selects the tier of a key.
    pub trait TierOf<K: ?Sized> {
        fn tier_of(&self, key: &K) -> Option<&Tier>;
    }
}

impl SingleRate {
    pub(super) const fn new() -> Self {
        Self(())
    }
}

impl<K: ?Sized> sealed::TierOf<K> for SingleRate {
    #[inline(always)]
    fn tier_of(&self, _key: &K) -> Option<&Tier> {
        None
    }
}

impl<K: ?Sized> sealed::TierOf<K> for TierByKey<K> {
    #[inline]
    fn tier_of(&self, key: &K) -> Option<&Tier> {
        self.0.tier_of(key)
    }
}

/// A reference to a key hashes as the key does.
impl<K: ?Sized> sealed::TierOf<&K> for TierByKey<K> {
    #[inline]
    fn tier_of(&self, key: &&K) -> Option<&Tier> {
        self.0.tier_of(key)
    }
}

impl<K: ?Sized> fmt::Debug for TierByKey<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ByKey").field(&self.0.tiers()).finish()
    }
}

/// How many intervals are distinguished, including "none". A model checker has no time for many.
const MAX_INTERVALS: usize = if cfg!(any(loom, shuttle)) { 8 } else { 1 << 10 };
/// The tag of an interval, at its position in a fingerprint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct IntervalTag(u64);

/// The intervals of a limiter, each at the position of its tag. They are never removed.
///
/// A position is taken by compare-and-swap (release), after it was counted, and never changes afterwards. A thread that
/// gives a slot its tag has read the position (acquire), and publishes the slot with release. So a thread that finds
/// the slot, or takes the lock later, also finds the interval and the count.
#[derive(Debug)]
pub(crate) struct IntervalTable {
    intervals: [AtomicU64; MAX_INTERVALS],
    /// The words of the buckets that keys without a slot share, one an interval.
    shared_words: [AtomicU64; MAX_INTERVALS],
    /// An upper bound of the number of intervals.
    interval_count: AtomicU64,
    /// The longest that a full bucket of a new key took so far, in word units.
    longest_capacity: AtomicU64,
}

impl IntervalTag {
    /// The tag of rates that count no tokens, and of intervals beyond the maximum.
    pub(crate) const NONE: Self = Self(0);

    const fn new(place: usize) -> Self {
        Self((place as u64) << TAG_SHIFT)
    }

    /// The tag by which two fingerprints differ, if they are of one key.
    pub(crate) const fn between(one: u64, other: u64) -> Option<Self> {
        let difference = one ^ other;
        if difference & KEY_BITS == 0 {
            Some(Self(difference))
        } else {
            None
        }
    }

    #[inline(always)]
    pub(crate) const fn to_bits(self) -> u64 {
        self.0
    }

    /// The tag from the bits that [`to_bits`](Self::to_bits) returned.
    #[inline(always)]
    pub(crate) const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// Adds this tag to a fingerprint, or removes it.
    #[inline(always)]
    pub(crate) const fn tagged(self, fingerprint: u64) -> u64 {
        fingerprint ^ self.0
    }

    const fn place(self) -> usize {
        (self.0 >> TAG_SHIFT) as usize
    }
}

impl IntervalTable {
    pub(crate) fn new() -> Self {
        Self {
            intervals: std::array::from_fn(|_| AtomicU64::new(0)),
            shared_words: std::array::from_fn(|_| AtomicU64::new(0)),
            interval_count: AtomicU64::new(0),
            longest_capacity: AtomicU64::new(0),
        }
    }

    /// The tag of an interval. A new interval gets a tag.
    #[inline(always)]
    pub(crate) fn tag(&self, interval: u64) -> IntervalTag {
        let place = Self::first_place(interval);
        // Only an unlimited rate has an interval of zero, and its position is the first, which is never taken.
        if self.intervals[place].load(Ordering::Acquire) == interval {
            return IntervalTag::new(place);
        }
        self.tag_elsewhere(interval, place)
    }

    #[inline(always)]
    #[expect(
        clippy::cast_possible_truncation,
        reason = "below the number of places"
    )]
    const fn first_place(interval: u64) -> usize {
        let mixed = interval.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        (mixed >> (u64::BITS - MAX_INTERVALS.trailing_zeros())) as usize
    }

    #[cold]
    #[inline(never)]
    fn tag_elsewhere(&self, interval: u64, first: usize) -> IntervalTag {
        if interval == 0 || interval == u64::MAX {
            return IntervalTag::NONE;
        }
        let places = (0..MAX_INTERVALS).map(|step| (first + step) % MAX_INTERVALS);
        for place in places.filter(|place| *place > 0) {
            let mut there = self.intervals[place].load(Ordering::Acquire);
            if there == 0 {
                // Counted before it is visible. If another thread takes the position, a count too high does no harm.
                self.interval_count.fetch_add(1, Ordering::Relaxed);
                let taken = self.intervals[place].compare_exchange(
                    0,
                    interval,
                    Ordering::AcqRel,
                    Ordering::Acquire,
                );
                there = taken.map_or_else(|there| there, |_| interval);
            }
            if there == interval {
                return IntervalTag::new(place);
            }
        }
        IntervalTag::NONE
    }

    /// The interval of a tag; zero if the tag has none, or isn't known.
    pub(crate) fn interval(&self, tag: IntervalTag) -> u64 {
        let place = self.intervals.get(tag.place());
        place.map_or(0, |place| place.load(Ordering::Relaxed))
    }

    /// Whether a slot may have this tag.
    pub(crate) fn knows(&self, tag: IntervalTag) -> bool {
        tag == IntervalTag::NONE || self.interval(tag) != 0
    }

    /// Whether a slot may have another tag than this one.
    #[inline]
    pub(crate) fn has_other_intervals(&self, tag: IntervalTag) -> bool {
        self.interval_count.load(Ordering::Relaxed) > 1 || tag == IntervalTag::NONE
    }

    /// Records that a slot is about to get this tag. `NONE` differs from every interval, so from now on there are at
    /// least two tags.
    pub(crate) fn note_untagged(&self, tag: IntervalTag) {
        if tag == IntervalTag::NONE {
            self.interval_count.fetch_max(2, Ordering::Relaxed);
        }
    }

    /// The bucket that keys without a slot share at this interval.
    pub(crate) fn shared(&self, tag: IntervalTag) -> &AtomicU64 {
        &self.shared_words[tag.place() % MAX_INTERVALS]
    }

    /// Moves the words of all such buckets to another anchor.
    pub(crate) fn move_shared(&self, moved: impl Fn(KeyWord) -> KeyWord) {
        self.shared_words
            .iter()
            .for_each(|word| move_word(word, &moved));
    }

    /// Records that a new key is charged at this rate.
    pub(crate) fn note_capacity(&self, pace: GcraParams) {
        if pace.is_counting() && pace.capacity > self.longest_capacity.load(Ordering::Relaxed) {
            self.longest_capacity
                .fetch_max(pace.capacity, Ordering::Relaxed);
        }
    }

    /// How far behind the latest time another time may be and still count as out of order, in word units.
    pub(crate) fn longest_reach(&self) -> u64 {
        self.longest_capacity
            .load(Ordering::Relaxed)
            .saturating_add(SLACK)
    }

    /// All intervals, each with the bits of its tag.
    pub(crate) fn known_intervals(&self) -> impl Iterator<Item = (u64, u64)> {
        let places = (0..MAX_INTERVALS).map(IntervalTag::new);
        let known = places.map(|tag| (tag.to_bits(), self.interval(tag)));
        known.filter(|(_, interval)| *interval > 0)
    }

    /// Gives an interval the tag that it had in another table. False if there is no such tag, or it is taken. No other
    /// thread uses the table yet.
    pub(crate) fn restore(&self, tag: IntervalTag, interval: u64) -> bool {
        let place = self.intervals.get(tag.place());
        let Some(place) = place.filter(|_| tag != IntervalTag::NONE && tag.0 & KEY_BITS == 0)
        else {
            return false;
        };
        if interval == 0 || place.load(Ordering::Relaxed) != 0 {
            return false;
        }
        place.store(interval, Ordering::Relaxed);
        self.interval_count.fetch_add(1, Ordering::Relaxed);
        true
    }

    /// The words of the buckets that keys without a slot share, each with the bits of its tag.
    pub(crate) fn shared_words(&self) -> impl Iterator<Item = (u64, KeyWord)> {
        let tags = (0..MAX_INTERVALS).map(IntervalTag::new);
        tags.map(|tag| {
            let word = self.shared(tag).load(Ordering::Acquire);
            (tag.to_bits(), KeyWord(word))
        })
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn an_interval_keeps_its_tag_and_those_beyond_have_none() {
        let intervals = IntervalTable::new();
        assert_eq!(intervals.tag(0), IntervalTag::NONE);
        assert_eq!(intervals.tag(u64::MAX), IntervalTag::NONE);
        let tags: Vec<_> = (1..2_000).map(|interval| intervals.tag(interval)).collect();
        let told_apart = tags.iter().filter(|tag| **tag != IntervalTag::NONE).count();
        assert_eq!(told_apart, MAX_INTERVALS - 1);
        for (interval, tag) in (1..).zip(tags) {
            assert_eq!(intervals.tag(interval), tag);
            let known = if tag == IntervalTag::NONE {
                0
            } else {
                interval
            };
            assert_eq!(intervals.interval(tag), known);
            let fingerprint = 0x0123_4567_89AB_CDEF;
            assert_eq!(
                IntervalTag::between(fingerprint, tag.tagged(fingerprint)),
                Some(tag)
            );
        }
        assert_eq!(IntervalTag::between(1, 2), None);
    }
}
