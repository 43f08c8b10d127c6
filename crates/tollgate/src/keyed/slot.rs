//! What is done to one slot: charged by anyone, taken and given to another key under the lock. The
//! memory ordering is argued in `shard.rs`.

use tollgate_core::{Outcome, Pace, Tat, Timestamp};

use super::anchor::{Anchor, Moment};
use super::back::SLACK;
use super::cache_line::Slot;
use super::intervals::Tag;
use super::word::{BUSY, Judged, KeyWord};
use crate::sync::Ordering;

/// What to charge, by whom and when: the same for every attempt.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ChargeRequest<'a> {
    /// With the tag.
    pub(crate) fingerprint: u64,
    /// Of the pace's interval.
    pub(crate) tag: Tag,
    pub(crate) pace: Pace,
    pub(crate) moment: Moment,
    /// What words count from.
    pub(crate) anchor: &'a Anchor,
    pub(crate) cost: u64,
    /// How long it may have to wait, in nanoseconds.
    pub(crate) patience: u64,
}

impl ChargeRequest<'_> {
    #[inline(always)]
    pub(crate) fn now(&self) -> Timestamp {
        self.moment.now
    }

    /// Whether the time counts from what the words do that were read before this.
    #[inline(always)]
    pub(crate) fn is_timely(&self) -> bool {
        self.anchor.is_of(self.moment)
    }

    /// The same at a time that counts from what words do now: for good under the lock of a shard.
    pub(crate) fn renewed(&self) -> Self {
        let moment = self.anchor.renew(self.moment);
        Self { moment, ..*self }
    }
}

/// Why a slot was not charged.
pub(crate) enum Lost {
    /// Another charge came first.
    Race,
    /// It is busy, or another key's.
    Slot,
}

/// Whether a request passes now, and is charged, and the word then; nothing if that takes a closer
/// look: the slot is busy, blocked, another key's, or counts by another interval.
///
/// The same answer as [`attempt`], in as few steps as possible that wait for the slot's memory, so that the
/// processor can begin with the next request meanwhile.
#[inline(always)]
pub(crate) fn try_pass(slot: &Slot, ask: &ChargeRequest<'_>) -> Option<(bool, KeyWord)> {
    let word = slot.word.load(Ordering::Acquire);
    // A busy word looks blocked.
    if KeyWord(word).is_blocked()
        || slot.fingerprint.load(Ordering::Acquire) != ask.fingerprint
        || !ask.is_timely()
    {
        return None;
    }
    let Some(after) = ask.pace.pass(Tat::from_word(word), ask.now(), ask.cost) else {
        // Further ahead than a bucket holds, and a day: booked, or charged by a clock that was set back since.
        let empty = ask.pace.empty(ask.now()).to_word();
        if word > empty.saturating_add(SLACK) {
            return None;
        }
        // A pass is found out by its compare-and-swap, but nothing else tells a refusal by the word
        // of the key that was here before.
        let own = slot.word.load(Ordering::Acquire) == word;
        return own.then_some((false, KeyWord(word)));
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
pub(crate) fn attempt(slot: &Slot, ask: &ChargeRequest<'_>) -> Result<Judged, Lost> {
    let word = slot.word.load(Ordering::Acquire);
    let here = slot.fingerprint.load(Ordering::Acquire) == ask.fingerprint;
    if word == BUSY || !here || !ask.is_timely() {
        return Err(Lost::Slot);
    }
    let judged = KeyWord(word).judge(ask.pace, ask.now(), ask.cost);
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

/// Whether a request with this judgement is to be charged: it passes, or may wait long enough.
#[inline]
pub(crate) fn passes(judged: &Judged, ask: &ChargeRequest<'_>) -> bool {
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
pub(crate) fn is_free(ask: &ChargeRequest<'_>) -> bool {
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

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::super::anchor::SPAN;
    use super::*;
    use crate::sync::AtomicU64;
    use proptest::prelude::*;
    use tollgate_core::units;
    use tollgate_core::{Arithmetic, Gcra, Rate};

    fn slot(fingerprint: u64, word: u64) -> Slot {
        Slot {
            fingerprint: AtomicU64::new(fingerprint),
            word: AtomicU64::new(word),
        }
    }

    /// Numbers of every size.
    fn number() -> impl Strategy<Value = u64> {
        (0..64u32, any::<u64>()).prop_map(|(shift, bits)| bits >> shift)
    }

    fn pace() -> impl Strategy<Value = Pace> {
        let of_rate = (1..1_000_000u64, 1..1_000u64).prop_map(|(nanos, burst)| {
            let every = std::time::Duration::from_nanos(nanos);
            let limit = Gcra::new(Rate::every(every).burst(burst));
            limit.expect("a rate that fits").pace()
        });
        let any = (number(), number());
        prop_oneof![
            of_rate,
            any.prop_map(|(interval, capacity)| Pace { interval, capacity }),
            Just(Pace::UNLIMITED),
            Just(Pace::ZERO),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(20_000))]

        /// Words around the edges that matter: now, and an empty bucket ahead.
        #[test]
        fn the_fast_path_answers_as_the_full_one(
            pace in pace(),
            nanos in number(),
            cost in prop_oneof![0..4u64, number()],
            edge in 0..3u8,
            off in -70..70i64,
            other in number(),
            foreign in any::<bool>(),
        ) {
            let anchor = Anchor::new(Timestamp::ZERO);
            let moment = anchor.near(Timestamp::from_nanos(nanos % SPAN)).expect("within the span");
            let ask = ChargeRequest { fingerprint: 7, tag: Tag::NONE, pace, moment, anchor: &anchor, cost, patience: 0 };
            let now = ask.now();
            let edge = match edge {
                0 => units::of(now),
                1 => units::of(now).saturating_add(pace.capacity),
                _ => other,
            };
            let word = edge.saturating_add_signed(off);
            let (fast, full) = (slot(7, word), slot(7, word));
            let passed = try_pass(&fast, &ask);
            let judged = attempt(&full, &ask);
            let stored = |slot: &Slot| slot.word.load(Ordering::Relaxed);
            match (passed, judged) {
                (Some((true, after)), Ok(judged)) => {
                    prop_assert!(judged.taken && judged.after == after);
                    prop_assert_eq!(stored(&fast), after.0);
                    prop_assert_eq!(stored(&full), after.0);
                }
                (Some((false, before)), Ok(judged)) => {
                    prop_assert!(!judged.taken && judged.outcome != Outcome::Allowed);
                    prop_assert_eq!((before.0, stored(&fast), stored(&full)), (word, word, word));
                }
                (Some(_), Err(_)) => prop_assert!(false, "a busy slot was charged"),
                (None, _) => prop_assert_eq!(stored(&fast), word),
            }
            if foreign {
                let slot = slot(8, word);
                prop_assert!(try_pass(&slot, &ask).is_none() && stored(&slot) == word);
            }
        }
    }
}
