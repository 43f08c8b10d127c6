//! The time that a table's words count from. It follows the clock, so the uptime is unbounded.
//!
//! # Memory ordering
//! Words count from the anchor, in 63 bits: four and a half years, of which a full bucket may take two and a booking
//! one. Before the first year is over, a thread moves the anchor: under the locks of all shards it stores [`MOVING`],
//! moves each word by compare-and-swap (release), and stores the new anchor (release).
//!
//! * A thread that charges without a lock reads the anchor, then the word (acquire), then the anchor again. If the word
//!   had been moved already, the second read sees another anchor, because `MOVING` was stored before the word, and the
//!   charge takes the lock.
//! * If the word is moved after the second read, the compare-and-swap of the charge fails: a move always changes the
//!   value of a word, and replaces one that means "nothing spent" by another that means it.
//! * Under the lock of any shard the anchor stays, so a time that counts from an older anchor is converted there.
//!
//! A clock that was set back far behind the charges moves the anchor in the same way.
//!
//! # A clock that was set back
//! A shard's high-water time is what the clock showed before. A key keeps the debt that it had then. State that had
//! expired by then is forgotten, except charges that may have been made before the clock ran ahead.

use tollgate_core::{Timestamp, units};

use super::slot::KeyWord;
use crate::sync::{AtomicU64, Backoff, Ordering};

/// The clock may be this far after the anchor before the anchor is moved: a year.
pub(crate) const ANCHOR_SPAN: u64 = 31_536_000 * 1_000_000_000;
/// The anchor is put this far behind the clock: a day, so that times a little out of order stay distinct.
pub(super) const ANCHOR_LAG: u64 = 86_400 * 1_000_000_000;
/// Marks an anchor that is being moved. No clock shows this time, nor one a year after.
const MOVING: u64 = 1 << 63;
/// The last time that the anchor distinguishes from later ones.
const LAST: u64 = MOVING - 1;
const LAST_TIME: Timestamp = Timestamp::from_nanos(LAST);

/// The time that words count from, in nanoseconds of the clock.
#[derive(Debug)]
pub(crate) struct Anchor(AtomicU64);

/// A time in the units of the words, and the anchor that it counts from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TableTime {
    /// The time; the anchor itself is 1 ns.
    pub(crate) now: Timestamp,
    from: u64,
}

impl TableTime {
    /// The same time counted from another anchor. A time before that anchor counts as the anchor itself.
    const fn rebased_to(self, anchor: u64) -> Self {
        let clock = self.clock().as_nanos();
        Self::at(clock.saturating_sub(anchor), anchor)
    }

    /// The later of this time and `after`, which is in word units from the anchor.
    pub(super) fn at_least(self, after: u64) -> Self {
        let floor = Timestamp::from_nanos(units::to_nanos(after));
        Self {
            now: self.now.max(floor),
            ..self
        }
    }

    /// The time on the clock.
    pub(super) const fn clock(self) -> Timestamp {
        Timestamp::from_nanos(self.from.saturating_add(self.now.as_nanos() - 1))
    }

    const fn at(nanos: u64, from: u64) -> Self {
        Self {
            now: Timestamp::from_nanos(nanos + 1),
            from,
        }
    }
}

impl Anchor {
    /// An anchor close behind this time, so that a clock that is set back a little doesn't look as if it stood still.
    pub(crate) fn new(at: Timestamp) -> Self {
        let behind = at.as_nanos().min(LAST).saturating_sub(ANCHOR_LAG);
        Self(AtomicU64::new(behind))
    }

    /// A time of the clock, if the anchor covers it.
    #[inline(always)]
    pub(crate) fn time_if_near(&self, clock: Timestamp) -> Option<TableTime> {
        let from = self.0.load(Ordering::Acquire);
        // One comparison excludes a time before the anchor, which wraps, a time far after it, and a move in progress.
        let nanos = clock.as_nanos().wrapping_sub(from);
        (nanos < ANCHOR_SPAN).then(|| TableTime::at(nanos, from))
    }

    /// A time of the clock, which may be before the anchor; `None` if it is far after the anchor.
    pub(crate) fn time_clamped(&self, clock: Timestamp) -> Option<TableTime> {
        let from = self.load_settled();
        // The anchor moves no further, so a time beyond `LAST` counts as `LAST`.
        let nanos = clock.as_nanos().min(LAST).saturating_sub(from);
        (nanos < ANCHOR_SPAN).then(|| TableTime::at(nanos, from))
    }

    /// Whether a time counts from the present anchor. To be called after a word was read.
    #[inline(always)]
    pub(crate) fn is_anchor_of(&self, moment: TableTime) -> bool {
        self.0.load(Ordering::Relaxed) == moment.from
    }

    /// The time counted from the present anchor. It stays valid while the caller holds the lock of a shard.
    pub(crate) fn rebase(&self, moment: TableTime) -> TableTime {
        if self.is_anchor_of(moment) {
            return moment;
        }
        moment.rebased_to(self.load_settled())
    }

    /// Moves the anchor close behind this time; `move_words` must move all words by the given units. The caller holds
    /// the locks of all shards.
    pub(crate) fn move_forward(&self, clock: Timestamp, move_words: impl FnOnce(u64)) {
        let from = self.0.load(Ordering::Relaxed);
        let to = clock.as_nanos().min(LAST).saturating_sub(ANCHOR_LAG);
        if to.saturating_sub(from) < ANCHOR_SPAN - ANCHOR_LAG {
            // Another thread has moved it.
            return;
        }
        self.0.store(MOVING, Ordering::Release);
        move_words(units::from_nanos(to - from));
        self.0.store(to, Ordering::Release);
    }

    /// Moves the anchor close behind a time that the clock was set back to; `move_words` must move all words with it.
    /// Nothing happens unless a word or the anchor is further ahead of that time than `reach`. The caller holds the
    /// locks of all shards, whose latest time is `high`.
    pub(super) fn move_back(
        &self,
        clock: Timestamp,
        high: u64,
        reach: u64,
        move_words: impl FnOnce(&ClockSetBack),
    ) {
        let back = ClockSetBack::new(self.0.load(Ordering::Relaxed), clock.min(LAST_TIME), reach);
        if back.is_behind(high) {
            self.0.store(MOVING, Ordering::Release);
            move_words(&back);
            self.0.store(back.anchor(), Ordering::Release);
        }
    }

    /// Whether a time is further before the anchor than `reach`.
    pub(super) fn is_ahead(&self, clock: Timestamp, reach: u64) -> bool {
        self.load_settled().saturating_sub(clock.as_nanos()) > units::to_nanos_floor(reach)
    }

    /// The anchor, once no thread moves it.
    fn load_settled(&self) -> u64 {
        let mut backoff = Backoff::default();
        loop {
            match self.0.load(Ordering::Acquire) {
                MOVING => backoff.back_off(),
                anchor => return anchor,
            }
        }
    }
}

/// Moves a word to another anchor. The caller holds the locks of all shards.
pub(crate) fn move_word(word: &AtomicU64, moved: impl Fn(KeyWord) -> KeyWord) {
    let mut before = word.load(Ordering::Acquire);
    loop {
        let after = match moved(KeyWord(before)) {
            // A blocked key is charged only under the lock, so its word needn't change.
            KeyWord(same) if same == before && KeyWord(same).is_blocked() => return,
            // Another value with the same meaning, so that the compare-and-swap of a thread that read the old one
            // fails.
            KeyWord(same) if same == before => KeyWord((before + 1).min(KeyWord::LAST)),
            after => after,
        };
        let swapped = word.compare_exchange(before, after.0, Ordering::AcqRel, Ordering::Acquire);
        match swapped {
            Ok(_) => return,
            Err(now) => before = now,
        }
    }
}

/// A time that is behind by less than this and the lifetime of a state is merely out of order: a day, in word units.
pub(crate) const SLACK: u64 = units::from_nanos(ANCHOR_LAG);

/// A clock that is far behind the time of the charges.
#[derive(Debug)]
pub(crate) struct ClockSetBack {
    /// The time of the clock, counted from the old anchor; it may be negative.
    before: i128,
    /// The time of the clock, counted from the new anchor.
    now: u64,
    anchor: u64,
    /// The difference of the anchors: a word that keeps its time on the clock grows by this.
    shift: i128,
    reach: u64,
}

impl ClockSetBack {
    pub(super) fn new(from: u64, clock: Timestamp, reach: u64) -> Self {
        let behind = clock.as_nanos().saturating_sub(ANCHOR_LAG);
        // The new anchor must differ from the old one, so that a thread that counts from the old anchor and has not
        // seen the new high-water time must read again.
        let anchor = match behind {
            same if same == from => same.saturating_add(1).min(clock.as_nanos()),
            other => other,
        };
        let now = units::from_nanos(clock.as_nanos() - anchor + 1);
        let shift =
            units::signed_difference(Timestamp::from_nanos(anchor), Timestamp::from_nanos(from));
        Self {
            before: i128::from(now) - shift,
            now,
            anchor,
            shift,
            reach,
        }
    }

    pub(super) const fn anchor(&self) -> u64 {
        self.anchor
    }

    /// Whether a shard with this high-water time was charged so far ahead that the clock must have been set back since.
    pub(crate) fn is_behind(&self, high: u64) -> bool {
        i128::from(high) - self.before > i128::from(self.reach)
    }

    /// The high-water time counted from the new anchor.
    pub(crate) fn high_water(&self, high: u64) -> u64 {
        if self.is_behind(high) {
            self.now
        } else {
            self.shifted(high)
        }
    }

    /// A word counted from the new anchor, in a shard with this high-water time.
    pub(crate) fn rebased_word(&self, word: KeyWord, high: u64) -> KeyWord {
        if word.is_endless() {
            return word;
        }
        let idle = word.idle_at();
        if !self.is_behind(high) || i128::from(idle) <= self.before + i128::from(SLACK) {
            return word.with_times(|time| self.shifted(time));
        }
        if idle <= high {
            return KeyWord::NEW;
        }
        word.after_block(high)
            .with_times(|time| self.now.saturating_add(time.saturating_sub(high)))
    }

    fn shifted(&self, time: u64) -> u64 {
        let time = i128::from(time) + self.shift;
        u64::try_from(time.max(0)).map_or(KeyWord::LAST, |time| time.min(KeyWord::LAST))
    }
}
