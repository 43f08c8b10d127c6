//! What is done to one slot: charged by anyone, taken and given to another key under the lock. The
//! memory ordering is argued in `shard.rs`.

use tollgate_core::{Outcome, Pace, Tat, Timestamp};

use super::line::Slot;
use super::word::{BUSY, Judged, KeyWord, units};
use crate::sync::Ordering;

/// What to charge, by whom and when: the same for every attempt.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ask {
    pub(crate) fingerprint: u64,
    pub(crate) pace: Pace,
    pub(crate) now: Timestamp,
    pub(crate) cost: u64,
    /// How long it may have to wait, in nanoseconds.
    pub(crate) patience: u64,
    /// How far ahead any charge may act, in word units.
    pub(crate) longest_wait: u64,
}

/// Why a slot was not charged.
pub(crate) enum Lost {
    /// Another charge came first.
    Race,
    /// It is busy, or another key's.
    Slot,
}

/// Whether a request passes now, and is charged, and the word then; nothing if that takes a closer
/// look: the slot is busy, blocked or another key's, or its TAT is one that no booking explains.
///
/// The same answer as [`attempt`], in the fewest steps that wait for the slot's memory: what else the
/// processor has to hold until that comes, it can't spend on the next request.
#[inline(always)]
pub(crate) fn try_pass(slot: &Slot, ask: &Ask) -> Option<(bool, KeyWord)> {
    let word = slot.word.load(Ordering::Acquire);
    // A busy word looks blocked.
    if KeyWord(word).is_blocked() || slot.fingerprint.load(Ordering::Acquire) != ask.fingerprint {
        return None;
    }
    let Some(after) = ask.pace.pass(Tat::from_word(word), ask.now, ask.cost) else {
        let farthest = KeyWord::farthest(ask.pace, units(ask.now), ask.longest_wait);
        return (word <= farthest).then_some((false, KeyWord(word)));
    };
    let after = KeyWord(after.to_word());
    if after.is_blocked() || is_free(ask) {
        return None;
    }
    let charged =
        swap(slot, word, after.0) && slot.fingerprint.load(Ordering::Acquire) == ask.fingerprint;
    charged.then_some((true, after))
}

/// Charges a slot once, or decides not to.
#[inline(always)]
pub(crate) fn attempt(slot: &Slot, ask: &Ask) -> Result<Judged, Lost> {
    let word = slot.word.load(Ordering::Acquire);
    if word == BUSY || slot.fingerprint.load(Ordering::Acquire) != ask.fingerprint {
        return Err(Lost::Slot);
    }
    let judged = KeyWord(word).judge(ask.pace, ask.now, ask.cost, ask.longest_wait);
    let taken = passes(&judged, ask);
    let judged = Judged { taken, ..judged };
    if !taken || is_free(ask) {
        return Ok(judged);
    }
    if !swap(slot, word, judged.after.0) {
        return Err(Lost::Race);
    }
    if slot.fingerprint.load(Ordering::Acquire) != ask.fingerprint {
        return Err(Lost::Slot);
    }
    Ok(judged)
}

/// Whether a request that was judged so is to be charged: it passes, or may wait that long.
#[inline]
pub(crate) fn passes(judged: &Judged, ask: &Ask) -> bool {
    match judged.outcome {
        Outcome::Allowed => true,
        // A blocked key books nothing: a block charges no tokens that could be waited for.
        Outcome::Denied => {
            ask.patience > 0
                && Pace::wait_nanos(judged.wait) <= ask.patience
                && !judged.after.is_blocked()
        }
        Outcome::Never => false,
    }
}

/// A look, or a rate that charges nothing.
#[inline]
pub(crate) fn is_free(ask: &Ask) -> bool {
    ask.cost == 0 || ask.pace.interval == 0
}

#[inline]
pub(crate) fn swap(slot: &Slot, from: u64, to: u64) -> bool {
    slot.word
        .compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire)
        .is_ok()
}

/// Whether the slot's key, if any, is as one never seen.
pub(crate) fn reusable(slot: &Slot, high: u64) -> bool {
    let empty = slot.fingerprint.load(Ordering::Acquire) == 0;
    let word = slot.word.load(Ordering::Acquire);
    word != BUSY && (empty || KeyWord(word).idle_at() < high)
}

/// Makes a reusable slot busy; no if it isn't reusable, or was charged at this moment. The caller
/// holds the lock, so the fingerprint stays.
pub(crate) fn take(slot: &Slot, high: u64) -> bool {
    let word = slot.word.load(Ordering::Acquire);
    // As `reusable`, with the word that is swapped.
    let idle = KeyWord(word).idle_at() < high || slot.fingerprint.load(Ordering::Acquire) == 0;
    word != BUSY && idle && swap(slot, word, BUSY)
}

/// Gives a busy slot to a key.
pub(crate) fn publish(slot: &Slot, fingerprint: u64, word: KeyWord) {
    slot.fingerprint.store(fingerprint, Ordering::Release);
    slot.word.store(word.0, Ordering::Release);
}

/// Leaves a busy slot empty.
pub(crate) fn clear(slot: &Slot) {
    publish(slot, 0, KeyWord::NEW);
}
