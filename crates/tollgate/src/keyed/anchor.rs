//! The time that a table's words count from. It follows the clock, so that uptime has no end.
//!
//! # Memory ordering
//! Words count from the anchor, in 63 bits: four and a half years, of which a full bucket may take two and a
//! booking one. Before the first is over, somebody moves the anchor: under the locks of all shards it
//! stores [`MOVING`], moves each word by compare-and-swap (release), and stores the new anchor (release).
//!
//! * Whoever charges without a lock has read the anchor before, and reads it again after the word
//!   (acquire). If that word was moved already, the second look finds another anchor, because that was
//!   stored first, and the charge goes through the lock.
//! * If the word is moved after that look, the compare-and-swap of the charge fails: moving always gives
//!   a word another value, one that means "nothing spent" for one that does.
//! * Under the lock of any shard the anchor stays, so there a time that counts from an older one is
//!   counted anew.
//!
//! A clock that was set back by far, from where words were charged, moves the anchor in the same way.
//!
//! # A clock that was set back
//! A shard's high-water time says what the clock showed before. A key still owes what it owed then. What was
//! over by then is forgotten, except what may have been charged before the clock ran ahead.

use tollgate_core::{Timestamp, units};

use super::slot::KeyWord;
use crate::sync::{AtomicU64, Backoff, Ordering};

/// How far after the anchor it is moved: a year.
pub(crate) const ANCHOR_SPAN: u64 = 31_536_000 * 1_000_000_000;
/// How far behind the clock it is put: a day, so that times a little out of order are told apart.
pub(super) const ANCHOR_LAG: u64 = 86_400 * 1_000_000_000;
/// Words are on their way from one anchor to another. No clock shows this time, nor one a year after.
const MOVING: u64 = 1 << 63;
/// The last time that is told apart from later ones.
const LAST: u64 = MOVING - 1;
const LAST_TIME: Timestamp = Timestamp::from_nanos(LAST);

/// What words count from, in nanoseconds of the clock.
#[derive(Debug)]
pub(crate) struct Anchor(AtomicU64);

/// A time as words count it, and the anchor that it counts from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TableTime {
    /// From 1 ns at the anchor.
    pub(crate) now: Timestamp,
    from: u64,
}

impl TableTime {
    /// The same time counted from another anchor; a time before that counts as the anchor itself.
    const fn rebased_to(self, anchor: u64) -> Self {
        let clock = self.clock().as_nanos();
        Self::at(clock.saturating_sub(anchor), anchor)
    }

    /// The same, or so many word units after the anchor if that is later.
    pub(super) fn at_least(self, after: u64) -> Self {
        let floor = Timestamp::from_nanos(units::to_nanos(after));
        Self {
            now: self.now.max(floor),
            ..self
        }
    }

    /// The time of the clock.
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
    /// Close behind this time: a clock that is set back to before it is told apart from one that stands still.
    pub(crate) fn new(at: Timestamp) -> Self {
        let behind = at.as_nanos().min(LAST).saturating_sub(ANCHOR_LAG);
        Self(AtomicU64::new(behind))
    }

    /// A time of the clock, if it is within the span of the anchor.
    #[inline(always)]
    pub(crate) fn time_if_near(&self, clock: Timestamp) -> Option<TableTime> {
        let from = self.0.load(Ordering::Acquire);
        // One comparison tells a time before the anchor, which wraps, one far after it, and a move.
        let nanos = clock.as_nanos().wrapping_sub(from);
        (nanos < ANCHOR_SPAN).then(|| TableTime::at(nanos, from))
    }

    /// A time of the clock before the anchor too; none if it is far after it.
    pub(crate) fn time_clamped(&self, clock: Timestamp) -> Option<TableTime> {
        let from = self.load_settled();
        // The anchor follows no further, so a time beyond is as the last.
        let nanos = clock.as_nanos().min(LAST).saturating_sub(from);
        (nanos < ANCHOR_SPAN).then(|| TableTime::at(nanos, from))
    }

    /// Whether a time counts from what words count from. Asked after a word was read.
    #[inline(always)]
    pub(crate) fn is_anchor_of(&self, moment: TableTime) -> bool {
        self.0.load(Ordering::Relaxed) == moment.from
    }

    /// The time as words count it now. It stays so while the caller holds the lock of a shard.
    pub(crate) fn rebase(&self, moment: TableTime) -> TableTime {
        if self.is_anchor_of(moment) {
            return moment;
        }
        moment.rebased_to(self.load_settled())
    }

    /// Moves the anchor close behind this time, and lets `move_words` move all words by as many units. The
    /// caller holds the locks of all shards.
    pub(crate) fn move_forward(&self, clock: Timestamp, move_words: impl FnOnce(u64)) {
        let from = self.0.load(Ordering::Relaxed);
        let to = clock.as_nanos().min(LAST).saturating_sub(ANCHOR_LAG);
        if to.saturating_sub(from) < ANCHOR_SPAN - ANCHOR_LAG {
            // Somebody else has moved it.
            return;
        }
        self.0.store(MOVING, Ordering::Release);
        move_words(units::from_nanos(to - from));
        self.0.store(to, Ordering::Release);
    }

    /// Moves the anchor close behind a time that the clock was set back to, and lets `move_words` take all
    /// words along; nothing if no word, nor the anchor, is further ahead of it than `reach`. The caller holds
    /// the locks of all shards, whose latest time is `high`.
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

    /// The anchor, once nobody moves it.
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

/// Counts a word from another anchor. The caller holds the locks of all shards.
pub(crate) fn move_word(word: &AtomicU64, moved: impl Fn(KeyWord) -> KeyWord) {
    let mut before = word.load(Ordering::Acquire);
    loop {
        let after = match moved(KeyWord(before)) {
            // Nobody charges a blocked key without the lock.
            KeyWord(same) if same == before && KeyWord(same).is_blocked() => return,
            // Another value that means the same, so that whoever has read the old one loses.
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

/// A time that is behind by less than this, and the time that states last, is merely out of order: a day, in
/// word units.
pub(crate) const SLACK: u64 = units::from_nanos(ANCHOR_LAG);

/// A clock that is behind what words were charged at.
#[derive(Debug)]
pub(crate) struct ClockSetBack {
    /// What the clock shows, from the anchor as it was: before it, perhaps.
    before: i128,
    /// The same from the new anchor.
    now: u64,
    anchor: u64,
    /// How much larger words become that stay where they are on the clock.
    shift: i128,
    reach: u64,
}

impl ClockSetBack {
    pub(super) fn new(from: u64, clock: Timestamp, reach: u64) -> Self {
        let behind = clock.as_nanos().saturating_sub(ANCHOR_LAG);
        // Never the same anchor again: a thread that counts from the old one, and has not seen the new
        // high-water time, must look again.
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

    /// Whether a shard with this high-water time was charged so far ahead that the clock was set back since.
    pub(crate) fn is_behind(&self, high: u64) -> bool {
        i128::from(high) - self.before > i128::from(self.reach)
    }

    /// The high-water time from the new anchor.
    pub(crate) fn high_water(&self, high: u64) -> u64 {
        if self.is_behind(high) {
            self.now
        } else {
            self.shifted(high)
        }
    }

    /// A word from the new anchor, of a shard with this high-water time.
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
