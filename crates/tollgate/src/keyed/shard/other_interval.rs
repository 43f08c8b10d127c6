//! A key that is asked at another interval than its word counts by. What it owes stays owed. The word is moved
//! to the new interval if that lets the request pass, or if that refuses it but is faster.

use tollgate_core::{Timestamp, units};

use super::super::rate_cell::IntervalTag;
use super::super::slot::{BUSY, ChargeRequest, ForeignWord, KeyWord, Slot, WordDecision};
use super::super::slot::{is_free_of_charge, is_passed, publish, swap_word};
use super::{Shard, is_still, word_in};
use crate::sync::Ordering;

impl Shard {
    /// The key's slot if its word counts by another interval than asks, and the tag of that. Without
    /// the lock it may be on its way from one slot or interval to another, and is not found then.
    pub(super) fn find_at_other_interval(
        &self,
        ask: &ChargeRequest<'_>,
    ) -> Option<(&Slot, IntervalTag)> {
        if !self.intervals.has_other_intervals(ask.tag) {
            return None;
        }
        let own = ask.tag.tagged(ask.fingerprint);
        let lines = self.lines_of(own).into_iter();
        lines.chain(self.stash.lines_to(own)).find_map(|line| {
            line.0.iter().find_map(|slot| {
                let fingerprint = slot.fingerprint.load(Ordering::Acquire);
                let tag = IntervalTag::between(own, fingerprint)?;
                (tag != ask.tag && self.intervals.knows(tag)).then_some((slot, tag))
            })
        })
    }

    /// Charges a key whose word counts by another interval, which from then on counts by the one that
    /// asks; or decides not to. None if another charge came first. The caller holds the lock, so the
    /// slot stays the key's.
    pub(super) fn charge_at_other_interval(
        &self,
        slot: &Slot,
        tag: IntervalTag,
        ask: &ChargeRequest<'_>,
    ) -> Option<WordDecision> {
        let word = KeyWord(slot.word.load(Ordering::Acquire));
        let other = self.foreign_word(word, tag);
        let judged = other.evaluate(ask.pace, ask.now(), ask.cost);
        let taken = is_passed(&judged, ask);
        let stored = if taken && !is_free_of_charge(ask) {
            migrate_word(slot, word, ask, judged.after)
        } else if !taken && judged.migrates {
            migrate_word(slot, word, ask, judged.before)
        } else {
            let told = other.evaluated_beside(judged, ask.pace, ask.now(), ask.cost);
            return Some(WordDecision {
                is_charged: taken,
                ..told
            });
        };
        stored.then_some(WordDecision {
            is_charged: taken,
            ..judged
        })
    }

    /// Moves a word to the faster interval by which a request was just refused.
    pub(crate) fn migrate_interval(&self, ask: &ChargeRequest<'_>) {
        let _structure = self.lock();
        let ask = &ask.rebased();
        if let Some((slot, tag)) = self.find_at_other_interval(ask) {
            let word = KeyWord(slot.word.load(Ordering::Acquire));
            let other = self.foreign_word(word, tag);
            let judged = other.evaluate(ask.pace, ask.now(), ask.cost);
            if judged.migrates {
                // If a charge comes first, the next refusal does it.
                migrate_word(slot, word, ask, judged.before);
            }
        }
    }

    /// Lets a key count by the interval that asks, with this word, if it counts by another and owes nothing by that: it is as one
    /// never seen then, whose slot another key might have taken. No if it isn't so. The caller holds the lock.
    pub(super) fn replace_idle_word(
        &self,
        ask: &ChargeRequest<'_>,
        now: Timestamp,
        word: impl FnOnce() -> KeyWord,
    ) -> bool {
        if self.find(ask.fingerprint).is_some() {
            return false;
        }
        let Some((slot, _)) = self.find_at_other_interval(ask) else {
            return false;
        };
        let before = KeyWord(slot.word.load(Ordering::Acquire));
        if before.0 == BUSY || before.idle_at() > units::from_time(now) {
            return false;
        }
        self.intervals.note_untagged(ask.tag);
        migrate_word(slot, before, ask, word())
    }

    pub(super) fn foreign_word(&self, word: KeyWord, tag: IntervalTag) -> ForeignWord {
        let interval = self.intervals.interval(tag);
        ForeignWord { word, interval }
    }

    /// What a key is told that is blocked, or refused at a slower rate than its word counts by. Nothing is
    /// stored, so no lock is taken.
    #[cold]
    #[inline(never)]
    pub(super) fn denied_at_other_interval(&self, ask: &ChargeRequest<'_>) -> Option<WordDecision> {
        let (other, judged) = self.peek_at_other_interval(ask)?;
        let told = !is_passed(&judged, ask) && !judged.migrates;
        told.then(|| other.evaluated_beside(judged, ask.pace, ask.now(), ask.cost))
    }

    /// A key whose word counts by another interval than the request's, and what that means for the request.
    pub(super) fn peek_at_other_interval(
        &self,
        ask: &ChargeRequest<'_>,
    ) -> Option<(ForeignWord, WordDecision)> {
        let (slot, tag) = self.find_at_other_interval(ask)?;
        let word = word_in(slot, tag.tagged(ask.tag.tagged(ask.fingerprint)))?;
        let other = self.foreign_word(word, tag);
        let judged = other.evaluate(ask.pace, ask.now(), ask.cost);
        (is_still(slot, word) && ask.is_timely()).then_some((other, judged))
    }
}

/// Moves a word to the interval of the request. False if a charge came first. The caller holds the lock. This works as
/// when another key takes the slot over: a thread that charges it by the old interval finds it busy, or changed.
fn migrate_word(slot: &Slot, word: KeyWord, ask: &ChargeRequest<'_>, to: KeyWord) -> bool {
    let busy = swap_word(slot, word.0, BUSY);
    if busy {
        publish(slot, ask.fingerprint, to);
    }
    busy
}
