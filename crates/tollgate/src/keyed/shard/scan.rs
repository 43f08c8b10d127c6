//! All slots of a shard one after the other: for those who watch the table, and to let its words count from
//! another time.

use tollgate_core::Timestamp;

use super::super::anchor::{Anchor, Moment, move_word};
use super::super::line::Slot;
use super::super::word::{KeyWord, units};
use super::Shard;
use crate::sync::Ordering;

impl Shard {
    /// Every key that is active then, as fingerprint, word and the time as the word counts it. Scans all
    /// lines in use.
    pub(crate) fn for_each_active(
        &self,
        anchor: &Anchor,
        moment: Moment,
        mut each: impl FnMut(u64, KeyWord, Timestamp),
    ) {
        // Under the lock no key is on its way from one slot to another.
        let _structure = self.lock();
        let now = anchor.renew(moment).now;
        for slot in self.slots() {
            let fingerprint = slot.fingerprint.load(Ordering::Acquire);
            let word = KeyWord(slot.word.load(Ordering::Acquire));
            if fingerprint != 0 && word.idle_at() > units(now) {
                each(fingerprint, word, now);
            }
        }
    }

    /// Counts all words from so many units later. The caller holds the lock.
    pub(crate) fn move_words(&self, by: u64) {
        for slot in self.slots() {
            if slot.fingerprint.load(Ordering::Acquire) != 0 {
                move_word(&slot.word, by);
            }
        }
        let high = self.high_water.load(Ordering::Acquire);
        self.high_water
            .store(high.saturating_sub(by), Ordering::Release);
    }

    /// All that are in use. Under the lock none becomes so.
    fn slots(&self) -> impl Iterator<Item = &Slot> {
        let own = self.lines.iter().skip(self.number);
        let own = own.step_by(self.turns.count()).take(self.lines_in_use());
        own.chain(self.stash.lines()).flat_map(|line| &line.0)
    }
}
