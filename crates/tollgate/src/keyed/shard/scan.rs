//! Scans all slots of a shard: for statistics and snapshots, and to move words to another anchor.

use tollgate_core::{Timestamp, units};

use super::super::anchor::{Anchor, ClockSetBack, TableTime, move_word};
use super::super::slot::{KeyWord, Slot};
use super::Shard;
use crate::sync::Ordering;

impl Shard {
    /// Visits every key that is active at that time: fingerprint, word, and the time counted as in the word. It scans
    /// all cache lines in use.
    pub(crate) fn for_each_active(
        &self,
        anchor: &Anchor,
        moment: TableTime,
        mut each: impl FnMut(u64, KeyWord, Timestamp),
    ) {
        // Under the lock no key moves from one slot to another.
        let _structure = self.lock();
        let now = anchor.rebase(moment).now;
        for slot in self.slots() {
            let fingerprint = slot.fingerprint.load(Ordering::Acquire);
            let word = KeyWord(slot.word.load(Ordering::Acquire));
            if fingerprint != 0 && word.idle_at() > units::from_time(now) {
                each(fingerprint, word, now);
            }
        }
    }

    /// As [`for_each_active`](Self::for_each_active), for the buckets that keys without a slot share, with the bits of
    /// their tags. All shards have the same buckets.
    pub(crate) fn for_each_shared(
        &self,
        anchor: &Anchor,
        moment: TableTime,
        mut each: impl FnMut(u64, KeyWord, Timestamp),
    ) {
        // Under the lock of any shard the anchor stays.
        let _structure = self.lock();
        let now = anchor.rebase(moment).now;
        for (tag, word) in self.intervals.shared_words() {
            if word.idle_at() > units::from_time(now) {
                each(tag, word, now);
            }
        }
    }

    /// Moves all words to an anchor that is later by these units. The caller holds the lock.
    pub(crate) fn move_words(&self, by: u64) {
        let high = self.high_water();
        self.rebase_words(high.saturating_sub(by), |word| word.moved(by));
    }

    /// Moves all words after the clock was set back. The caller holds the lock.
    pub(crate) fn move_back(&self, back: &ClockSetBack) {
        let high = self.high_water();
        self.rebase_words(back.high_water(high), |word| back.rebased_word(word, high));
    }

    fn rebase_words(&self, high: u64, moved: impl Fn(KeyWord) -> KeyWord) {
        for slot in self.slots() {
            if slot.fingerprint.load(Ordering::Acquire) != 0 {
                move_word(&slot.word, &moved);
            }
        }
        self.high_water.store(high, Ordering::Release);
    }

    /// The latest time of a charge in this shard, or close behind it, in word units.
    pub(crate) fn high_water(&self) -> u64 {
        self.high_water.load(Ordering::Acquire)
    }

    /// All slots in use. Under the lock their number doesn't grow.
    fn slots(&self) -> impl Iterator<Item = &Slot> {
        let own = self.cache_lines.iter().skip(self.shard_number);
        let own = own
            .step_by(self.interleaving.count())
            .take(self.lines_in_use());
        own.chain(self.stash.lines()).flat_map(|line| &line.0)
    }
}
