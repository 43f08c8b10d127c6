//! Following a clock that was set back by far: how words change that count from an anchor ahead of it.
//!
//! A shard's high-water time says what the clock showed before. A key still owes what it owed then. What was
//! over by then is forgotten, except what may have been charged before the clock ran ahead.

use tollgate_core::{Timestamp, units};

use super::anchor::BEHIND;
use super::word::KeyWord;

/// A time that is behind by less than this, and the time that states last, is merely out of order: a day, in
/// word units.
pub(crate) const SLACK: u64 = units::from_nanos(BEHIND);

/// A clock that is behind what words were charged at.
#[derive(Debug)]
pub(crate) struct Back {
    /// What the clock shows, from the anchor as it was: before it, perhaps.
    before: i128,
    /// The same from the new anchor.
    now: u64,
    anchor: u64,
    /// How much larger words become that stay where they are on the clock.
    shift: i128,
    reach: u64,
}

impl Back {
    pub(super) fn new(from: u64, clock: Timestamp, reach: u64) -> Self {
        let behind = clock.as_nanos().saturating_sub(BEHIND);
        // Never the same anchor again: a thread that counts from the old one, and has not seen the new
        // high-water time, must look again.
        let anchor = match behind {
            same if same == from => same.saturating_add(1).min(clock.as_nanos()),
            other => other,
        };
        let now = units::from_nanos(clock.as_nanos() - anchor + 1);
        let shift = units::between(Timestamp::from_nanos(anchor), Timestamp::from_nanos(from));
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
    pub(crate) fn word(&self, word: KeyWord, high: u64) -> KeyWord {
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
        word.at(high)
            .with_times(|time| self.now.saturating_add(time.saturating_sub(high)))
    }

    fn shifted(&self, time: u64) -> u64 {
        let time = i128::from(time) + self.shift;
        u64::try_from(time.max(0)).map_or(KeyWord::LAST, |time| time.min(KeyWord::LAST))
    }
}
