//! A key whose request has another interval than its word. Its debt stays. The word moves to the interval of the
//! request if that lets the request pass, or if it denies the request but is faster.

use tollgate_core::{Timestamp, units};

use super::super::rate_cell::IntervalTag;
use super::super::slot::{BUSY, ChargeRequest, ForeignWord, KeyWord, Slot, WordDecision};
use super::super::slot::{is_free_of_charge, is_passed, publish, swap_word};
use super::{Shard, is_still, word_in};
use crate::sync::Ordering;

impl Shard {
    /// The key's slot if its word counts by another interval than the request, and the tag of that interval. Without
    /// the lock, a key that is being moved to another slot or interval isn't found.
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

    /// Charges a key whose word counts by another interval, and moves the word to the interval of the request; a denied
    /// request isn't charged. `None` if another charge came first. The caller holds the lock, so the slot stays the
    /// key's.
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

    /// Moves a word to the faster interval that just denied a request.
    pub(crate) fn migrate_interval(&self, ask: &ChargeRequest<'_>) {
        let _structure = self.lock();
        let ask = &ask.rebased();
        if let Some((slot, tag)) = self.find_at_other_interval(ask) {
            let word = KeyWord(slot.word.load(Ordering::Acquire));
            let other = self.foreign_word(word, tag);
            let judged = other.evaluate(ask.pace, ask.now(), ask.cost);
            if judged.migrates {
                // If another charge comes first, the next denial moves the word.
                migrate_word(slot, word, ask, judged.before);
            }
        }
    }

    /// Stores this word for a key whose present word counts by another interval and owes nothing. Such a key is
    /// equivalent to one never seen: another key could have taken its slot. False if there is no such word. The caller
    /// holds the lock.
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

    /// The decision for a key that is blocked, or denied at a slower rate than that of its word. It stores nothing, so
    /// it takes no lock.
    #[cold]
    #[inline(never)]
    pub(super) fn denied_at_other_interval(&self, ask: &ChargeRequest<'_>) -> Option<WordDecision> {
        let (other, judged) = self.peek_at_other_interval(ask)?;
        let told = !is_passed(&judged, ask) && !judged.migrates;
        told.then(|| other.evaluated_beside(judged, ask.pace, ask.now(), ask.cost))
    }

    /// A key whose word counts by another interval than the request, and the decision for the request.
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

/// Moves a word to the interval of the request. False if another charge came first. The caller holds the lock. It takes
/// the same steps as a handover to another key: a thread that charges by the old interval finds the slot busy or
/// changed.
fn migrate_word(slot: &Slot, word: KeyWord, ask: &ChargeRequest<'_>, to: KeyWord) -> bool {
    let busy = swap_word(slot, word.0, BUSY);
    if busy {
        publish(slot, ask.fingerprint, to);
    }
    busy
}
