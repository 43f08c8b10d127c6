//! The slot of one key: its cache line, the meaning of its word, charges without a lock, and handover to another key
//! under the lock. `shard.rs` explains the memory ordering.

use std::hint::select_unpredictable;

use tollgate_core::{GcraParams, Outcome, TatState, Timestamp, units};

use super::anchor::{Anchor, SLACK, TableTime};
use super::rate_cell::IntervalTag;
use crate::sync::{AtomicU64, Ordering};

/// The state of one key: its fingerprint and its word. A slot with zero in both is empty.
#[derive(Debug)]
pub(crate) struct Slot {
    pub(crate) fingerprint: AtomicU64,
    pub(crate) word: AtomicU64,
}

/// How many slots share a cache line.
pub(crate) const SLOTS: usize = 4;

/// Four slots on one cache line.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct CacheLine(pub(crate) [Slot; SLOTS]);

/// The slot of this key if it is in one of two cache lines, otherwise any slot. The position of a key can't be
/// predicted, so the search has no branches: a misprediction would delay the caller's next steps.
#[inline(always)]
pub(crate) fn select_slot([first, second]: [&CacheLine; 2], fingerprint: u64) -> &Slot {
    // Acquire: a thread that sees a key here also sees that its slot was busy before.
    let here = |slot: &Slot| slot.fingerprint.load(Ordering::Acquire) == fingerprint;
    let mut place = 0;
    // An indexed loop, because iterator adapters aren't always inlined here.
    for number in 1..SLOTS {
        place = select_unpredictable(here(&first.0[number]), number, place);
    }
    for number in 0..SLOTS {
        place = select_unpredictable(here(&second.0[number]), SLOTS + number, place);
    }
    let line = select_unpredictable(place < SLOTS, first, second);
    &line.0[place % SLOTS]
}

impl CacheLine {
    /// The slot of this key, if the line has it.
    #[inline]
    pub(crate) fn find(&self, fingerprint: u64) -> Option<&Slot> {
        let resolve_key = |slot: &&Slot| slot.fingerprint.load(Ordering::Acquire) == fingerprint;
        self.0.iter().find(resolve_key)
    }
}

/// The parameters of a charge: the same for every attempt.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ChargeRequest<'a> {
    /// The fingerprint, with the tag.
    pub(crate) fingerprint: u64,
    /// The tag of the interval of `pace`.
    pub(crate) tag: IntervalTag,
    pub(crate) pace: GcraParams,
    pub(crate) time: TableTime,
    /// The anchor of the words.
    pub(crate) anchor: &'a Anchor,
    pub(crate) cost: u64,
    /// The longest acceptable wait, in nanoseconds.
    pub(crate) patience: u64,
}

impl ChargeRequest<'_> {
    #[inline(always)]
    pub(crate) fn now(&self) -> Timestamp {
        self.time.now
    }

    /// Whether the time counts from the same anchor as the words that were read before this call.
    #[inline(always)]
    pub(crate) fn is_timely(&self) -> bool {
        self.anchor.is_anchor_of(self.time)
    }

    /// The same request with its time counted from the present anchor. It stays valid under the lock of a shard.
    pub(crate) fn rebased(&self) -> Self {
        let moment = self.anchor.rebase(self.time);
        Self {
            time: moment,
            ..*self
        }
    }
}

/// Why a slot was not charged.
pub(crate) enum ChargeLost {
    /// Another charge came first.
    Race,
    /// The slot is busy, or belongs to another key.
    SlotChanged,
}

/// Charges a request that passes now. Returns whether it passed, and the word afterwards. `None` means that the slot
/// needs the full path: it is busy, blocked, belongs to another key, or counts by another interval.
///
/// The result is that of [`try_charge`], in as few steps as possible that depend on the slot's memory, so that the
/// processor can start on the next request meanwhile.
#[inline(always)]
pub(crate) fn try_pass(slot: &Slot, ask: &ChargeRequest<'_>) -> Option<(bool, KeyWord)> {
    let word = slot.word.load(Ordering::Acquire);
    // A busy word has the flag of a block.
    if KeyWord(word).is_blocked()
        || slot.fingerprint.load(Ordering::Acquire) != ask.fingerprint
        || !ask.is_timely()
    {
        return None;
    }
    let Some(after) = ask
        .pace
        .try_pass(TatState::from_word(word), ask.now(), ask.cost)
    else {
        // Further ahead than a full bucket and a day: the key has a booking, or the clock was set back since.
        let empty = ask.pace.empty(ask.now()).to_word();
        if word > empty.saturating_add(SLACK) {
            return None;
        }
        // An allowed request is validated by its compare-and-swap. A denial writes nothing, so a second read must
        // exclude the word of the previous key.
        let own = slot.word.load(Ordering::Acquire) == word;
        return own.then_some((false, KeyWord(word)));
    };
    let after = KeyWord(after.to_word());
    if after.is_blocked() || is_free_of_charge(ask) {
        return None;
    }
    let charged = swap_word(slot, word, after.0)
        && slot.fingerprint.load(Ordering::Acquire) == ask.fingerprint;
    charged.then_some((true, after))
}

/// Tries once to charge a slot; a denied request isn't charged.
#[inline(always)]
pub(crate) fn try_charge(slot: &Slot, ask: &ChargeRequest<'_>) -> Result<WordDecision, ChargeLost> {
    let word = slot.word.load(Ordering::Acquire);
    let here = slot.fingerprint.load(Ordering::Acquire) == ask.fingerprint;
    if word == BUSY || !here || !ask.is_timely() {
        return Err(ChargeLost::SlotChanged);
    }
    let judged = KeyWord(word).evaluate(ask.pace, ask.now(), ask.cost);
    let taken = is_passed(&judged, ask);
    let judged = WordDecision {
        is_charged: taken,
        ..judged
    };
    if !taken || is_free_of_charge(ask) {
        return Ok(judged);
    }
    if !swap_word(slot, word, judged.after.0) {
        return Err(ChargeLost::Race);
    }
    if slot.fingerprint.load(Ordering::Acquire) != ask.fingerprint {
        return Err(ChargeLost::SlotChanged);
    }
    Ok(judged)
}

/// Whether a request with this decision is to be charged: it passes, or its wait is acceptable.
#[inline]
pub(crate) fn is_passed(judged: &WordDecision, ask: &ChargeRequest<'_>) -> bool {
    match judged.outcome {
        Outcome::Allowed => true,
        // A blocked key books nothing: the word of a block counts no tokens that a booking could be charged to.
        Outcome::Denied => {
            ask.patience > 0
                && GcraParams::wait_nanos(judged.wait) <= ask.patience
                && !judged.after.is_blocked()
        }
        Outcome::Never => false,
    }
}

/// Whether a request charges nothing: a peek, or a rate that counts no tokens.
#[inline]
pub(crate) fn is_free_of_charge(ask: &ChargeRequest<'_>) -> bool {
    ask.cost == 0 || ask.pace.interval == 0
}

#[inline]
pub(crate) fn swap_word(slot: &Slot, from: u64, to: u64) -> bool {
    slot.word
        .compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire)
        .is_ok()
}

/// Whether the slot is empty, or its key is equivalent to one never seen.
pub(crate) fn is_reusable(slot: &Slot, high: u64) -> bool {
    let empty = slot.fingerprint.load(Ordering::Acquire) == 0;
    let word = slot.word.load(Ordering::Acquire);
    word != BUSY && (empty || KeyWord(word).idle_at() < high)
}

/// Makes a reusable slot busy. False if it isn't reusable, or was charged at this moment. The caller holds the lock, so
/// the fingerprint stays.
pub(crate) fn claim_if_idle(slot: &Slot, high: u64) -> bool {
    let word = slot.word.load(Ordering::Acquire);
    // As `is_reusable`, but for exactly the word that is swapped.
    let idle = KeyWord(word).idle_at() < high || slot.fingerprint.load(Ordering::Acquire) == 0;
    word != BUSY && idle && swap_word(slot, word, BUSY)
}

/// Assigns a busy slot to a key.
pub(crate) fn publish(slot: &Slot, fingerprint: u64, word: KeyWord) {
    slot.fingerprint.store(fingerprint, Ordering::Release);
    slot.word.store(word.0, Ordering::Release);
}

/// Leaves a busy slot empty.
pub(crate) fn clear(slot: &Slot) {
    publish(slot, 0, KeyWord::NEW);
}

/// The slot is being handed over or moved; no thread may charge it.
pub(crate) const BUSY: u64 = u64::MAX;
/// The flag of a block, which applies at every rate. The low bits are the nanosecond at which the block ends. The six
/// bits above them are a power of two: the debt after the block, in nanoseconds, or none if they are 0.
const BLOCKED: u64 = 1 << 63;
const NANO_BITS: u32 = 57;
const LAST_NANO: u64 = (1 << NANO_BITS) - 1;

/// A word that is not [`BUSY`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KeyWord(pub(crate) u64);

/// The effect of one charge.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WordDecision {
    pub(crate) outcome: Outcome,
    /// The word before the charge.
    pub(crate) before: KeyWord,
    /// The word after the charge, if it is made.
    pub(crate) after: KeyWord,
    /// How long the request has to wait, in word units.
    pub(crate) wait: u64,
    /// The time of the request, counted as the words are.
    pub(crate) now: Timestamp,
    /// Whether the charge was made, to act now or after the wait. An evaluation alone makes none.
    pub(crate) is_charged: bool,
    /// Whether a faster rate than that of the word denied the request. The word must count by the faster rate from now
    /// on; `before` has the debt at that rate.
    pub(crate) migrates: bool,
}

impl KeyWord {
    /// A key never seen.
    pub(crate) const NEW: Self = Self(0);
    /// The last time that a word can represent.
    pub(crate) const LAST: u64 = units::from_nanos(LAST_NANO);

    /// A block until this time. Earlier debt is not forgiven: the part that would remain after the block is kept,
    /// rounded up.
    pub(crate) fn blocked(until: u64, idle_at: u64) -> Self {
        let nanos = units::to_nanos(until).min(LAST_NANO);
        let owed = idle_at
            .min(Self::LAST)
            .saturating_sub(units::from_nanos(nanos));
        let power = match units::to_nanos(owed) {
            0 => 0,
            owed => u64::from(owed.next_power_of_two().trailing_zeros().max(1)),
        };
        Self(BLOCKED | power << NANO_BITS | nanos)
    }

    /// Whether the word is a block, expired or not.
    #[inline]
    pub(crate) fn is_blocked(self) -> bool {
        self.0 & BLOCKED != 0
    }

    /// Whether the key is blocked at this time.
    #[inline]
    pub(crate) fn is_blocked_at(self, now: u64) -> bool {
        self.is_blocked() && self.until() > now
    }

    /// The end of the block, in word units.
    pub(crate) fn until(self) -> u64 {
        units::from_nanos(self.0 & LAST_NANO)
    }

    /// The word without an expired block.
    #[inline]
    pub(crate) fn after_block(self, now: u64) -> Self {
        if !self.is_blocked() || self.is_blocked_at(now) {
            return self;
        }
        match self.idle_at() {
            idle if idle > self.until() => Self(idle),
            _ => Self::NEW,
        }
    }

    /// The same word counted from a time that is later by these units; earlier times become zero. A block without an
    /// end stays as it is.
    pub(crate) fn moved(self, by: u64) -> Self {
        if self.is_endless() {
            return self;
        }
        self.after_block(by)
            .with_times(|time| time.saturating_sub(by))
    }

    /// Whether it is a block without an end.
    pub(crate) fn is_endless(self) -> bool {
        self.is_blocked() && self.until() == Self::LAST
    }

    /// The same word with its times changed.
    pub(crate) fn with_times(self, change: impl Fn(u64) -> u64) -> Self {
        if self.is_blocked() {
            Self::blocked(change(self.until()), change(self.idle_at()))
        } else {
            // Limited to the bits below the flag.
            Self(change(self.0).min(Self::LAST))
        }
    }

    /// The same word with its TAT changed; for a key that isn't blocked.
    pub(crate) fn changed(self, change: impl FnOnce(TatState) -> TatState) -> Self {
        Self(change(TatState::from_word(self.0)).to_word())
    }

    /// The time from which the key is equivalent to one never seen, in word units.
    #[inline]
    pub(crate) fn idle_at(self) -> u64 {
        if !self.is_blocked() {
            return self.0;
        }
        let owed = match self.0 >> NANO_BITS & 63 {
            0 => 0,
            power => 1 << power,
        };
        units::from_nanos(((self.0 & LAST_NANO) + owed).min(LAST_NANO))
    }

    /// How long a cost waits: for the end of the block, and then for the debt after it.
    #[cold]
    #[inline(never)]
    fn wait_of_a_block(self, pace: GcraParams, now: u64, cost: u64) -> u64 {
        let ends = Timestamp::from_nanos(self.0 & LAST_NANO);
        let owed = TatState::from_word(self.idle_at());
        let behind = pace.plan(owed, ends, cost).map_or(0, |(_, wait)| wait);
        (self.until() - now).saturating_add(behind)
    }

    /// Decides a cost at this rate.
    #[inline(always)]
    pub(crate) fn evaluate(self, pace: GcraParams, now: Timestamp, cost: u64) -> WordDecision {
        let judged = |outcome, after, wait| WordDecision {
            outcome,
            before: self,
            after,
            wait,
            now,
            is_charged: false,
            migrates: false,
        };
        let local = units::from_time(now);
        let key = self.after_block(local);
        if key.is_blocked() {
            return judged(
                Outcome::Denied,
                self,
                self.wait_of_a_block(pace, local, cost),
            );
        }
        match pace.plan(TatState::from_word(key.0), now, cost) {
            // A TAT that reaches the flag is years ahead, further than any wait. It would read as a block, so it is
            // not stored.
            Some((after, wait)) if wait > 0 || after.to_word() < BLOCKED => {
                let outcome = if wait == 0 {
                    Outcome::Allowed
                } else {
                    Outcome::Denied
                };
                judged(outcome, Self(after.to_word()), wait)
            }
            _ => judged(Outcome::Never, self, 0),
        }
    }
}

/// A word that counts by another interval than that of the request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ForeignWord {
    pub(crate) word: KeyWord,
    /// The interval of the word; zero if it isn't known.
    pub(crate) interval: u64,
}

impl ForeignWord {
    /// Decides a cost at another rate. All debt stays, in tokens. If a faster rate denies the cost, the debt drains at
    /// that rate from now on.
    pub(crate) fn evaluate(self, pace: GcraParams, now: Timestamp, cost: u64) -> WordDecision {
        let word = self.word.after_block(units::from_time(now));
        if word.is_blocked() {
            return word.evaluate(pace, now, cost);
        }
        if !pace.is_counting() {
            // A rate that counts no tokens ignores debt at other rates.
            return KeyWord::NEW.evaluate(pace, now, cost);
        }
        let owed = pace.migrated_tat(TatState::from_word(word.0), &self.pace(pace), now);
        let judged = KeyWord(owed.to_word()).evaluate(pace, now, cost);
        let refused = judged.outcome == Outcome::Denied && cost > 0;
        WordDecision {
            migrates: refused && pace.interval < self.interval,
            ..judged
        }
    }

    /// The decision to report for a request that wasn't charged, so that its wait is true: a denial at a slower rate
    /// than that of the word stores nothing, and the debt keeps draining at the faster rate.
    pub(crate) fn evaluated_beside(
        self,
        judged: WordDecision,
        pace: GcraParams,
        now: Timestamp,
        cost: u64,
    ) -> WordDecision {
        let (word, old) = (
            self.word.after_block(units::from_time(now)),
            self.pace(pace),
        );
        let slower = pace.is_counting() && pace.interval > old.interval;
        if judged.outcome == Outcome::Allowed || word.is_blocked() || !slower {
            return judged;
        }
        let tat = TatState::from_word(word.0);
        let wait = match judged.outcome {
            Outcome::Denied => pace.wait_before_migration(tat, &old, now, cost),
            _ => judged.wait,
        };
        WordDecision {
            before: KeyWord(pace.tat_before_migration(tat, &old, now).to_word()),
            wait,
            ..judged
        }
    }

    /// The rate of the word, without a burst. If it isn't known, the caller's rate.
    const fn pace(self, asking: GcraParams) -> GcraParams {
        self.pace_with(asking, 0)
    }

    /// The rate of the word, or else the caller's, with a burst of this many tokens.
    pub(crate) const fn pace_with(self, asking: GcraParams, burst: u64) -> GcraParams {
        let interval = match self.interval {
            0 => asking.interval,
            known => known,
        };
        GcraParams {
            interval,
            capacity: interval.saturating_mul(burst),
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::super::anchor::ANCHOR_SPAN;
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

    /// Numbers of every magnitude.
    fn number() -> impl Strategy<Value = u64> {
        (0..64u32, any::<u64>()).prop_map(|(shift, bits)| bits >> shift)
    }

    fn pace() -> impl Strategy<Value = GcraParams> {
        let from_rate = (1..1_000_000u64, 1..1_000u64).prop_map(|(nanos, burst)| {
            let every = std::time::Duration::from_nanos(nanos);
            let limit = Gcra::new(Rate::every(every).burst(burst));
            limit.expect("a rate that fits").params()
        });
        let any = (number(), number());
        prop_oneof![
            from_rate,
            any.prop_map(|(interval, capacity)| GcraParams { interval, capacity }),
            Just(GcraParams::UNLIMITED),
            Just(GcraParams::ZERO),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(20_000))]

        /// Words around the critical values: now, and an empty bucket ahead.
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
            let moment = anchor.time_if_near(Timestamp::from_nanos(nanos % ANCHOR_SPAN)).expect("within the span");
            let ask = ChargeRequest { fingerprint: 7, tag: IntervalTag::NONE, pace, time: moment, anchor: &anchor, cost, patience: 0 };
            let now = ask.now();
            let edge = match edge {
                0 => units::from_time(now),
                1 => units::from_time(now).saturating_add(pace.capacity),
                _ => other,
            };
            let word = edge.saturating_add_signed(off);
            let (fast, full) = (slot(7, word), slot(7, word));
            let passed = try_pass(&fast, &ask);
            let judged = try_charge(&full, &ask);
            let stored = |slot: &Slot| slot.word.load(Ordering::Relaxed);
            match (passed, judged) {
                (Some((true, after)), Ok(judged)) => {
                    prop_assert!(judged.is_charged && judged.after == after);
                    prop_assert_eq!(stored(&fast), after.0);
                    prop_assert_eq!(stored(&full), after.0);
                }
                (Some((false, before)), Ok(judged)) => {
                    prop_assert!(!judged.is_charged && judged.outcome != Outcome::Allowed);
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

#[cfg(test)]
mod word_tests {
    use super::*;
    use proptest::prelude::*;

    /// Any time that a table can count.
    fn time() -> impl Strategy<Value = u64> {
        (0..64u32, any::<u64>()).prop_map(|(shift, bits)| (bits >> shift).min(KeyWord::LAST))
    }

    proptest! {
        #[test]
        fn a_block_ends_when_it_should_and_forgives_nothing(until in time(), idle in time()) {
            let word = KeyWord::blocked(until, idle);
            prop_assert!(word.is_blocked() && word.0 != BUSY);
            let end = units::from_nanos(units::to_nanos(until).min(LAST_NANO));
            prop_assert_eq!(word.until(), end);
            prop_assert!(word.is_blocked_at(end.saturating_sub(1)) || end == 0);
            prop_assert!(!word.is_blocked_at(end));
            // The debt after the block is kept, and at most doubled.
            let owed = idle.saturating_sub(end);
            let kept = word.idle_at() - end;
            prop_assert!(kept >= owed.min(KeyWord::LAST - end), "{} of {}", kept, owed);
            prop_assert!(kept <= owed.saturating_mul(2).max(2 * units::PER_NANO) && (owed > 0 || kept == 0));
            let after = word.after_block(end);
            prop_assert!(!after.is_blocked());
            prop_assert_eq!(after.0, if kept == 0 { 0 } else { word.idle_at() });
        }
    }
}
