//! One key's slot: its cache line, what its word says, and how it is charged by anyone, or taken and given to another
//! key under the lock. The memory ordering is argued in `shard.rs`.

use std::hint::select_unpredictable;

use tollgate_core::{GcraParams, Outcome, TatState, Timestamp, units};

use super::anchor::{Anchor, SLACK, TableTime};
use super::rate_cell::IntervalTag;
use crate::sync::{AtomicU64, Ordering};

/// One key's state: which key, and its word. Zero in both is an empty slot.
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

/// The slot of this key if it is in one of two lines, or else another. Where a key is can't be
/// predicted, so nothing branches on it, and the caller's next steps don't wait for a wrong guess.
#[inline(always)]
pub(crate) fn select_slot([first, second]: [&CacheLine; 2], fingerprint: u64) -> &Slot {
    // Acquire: whoever sees a key here also sees that its slot was busy before.
    let here = |slot: &Slot| slot.fingerprint.load(Ordering::Acquire) == fingerprint;
    let mut place = 0;
    // By number, as adapters of iterators aren't always compiled in place.
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
    /// The slot of this key, if it is here.
    #[inline]
    pub(crate) fn find(&self, fingerprint: u64) -> Option<&Slot> {
        let resolve_key = |slot: &&Slot| slot.fingerprint.load(Ordering::Acquire) == fingerprint;
        self.0.iter().find(resolve_key)
    }
}

/// What to charge, by whom and when: the same for every attempt.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ChargeRequest<'a> {
    /// With the tag.
    pub(crate) fingerprint: u64,
    /// Of the pace's interval.
    pub(crate) tag: IntervalTag,
    pub(crate) pace: GcraParams,
    pub(crate) time: TableTime,
    /// What words count from.
    pub(crate) anchor: &'a Anchor,
    pub(crate) cost: u64,
    /// How long it may have to wait, in nanoseconds.
    pub(crate) patience: u64,
}

impl ChargeRequest<'_> {
    #[inline(always)]
    pub(crate) fn now(&self) -> Timestamp {
        self.time.now
    }

    /// Whether the time counts from what the words do that were read before this.
    #[inline(always)]
    pub(crate) fn is_timely(&self) -> bool {
        self.anchor.is_anchor_of(self.time)
    }

    /// The same at a time that counts from what words do now: for good under the lock of a shard.
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
    /// It is busy, or another key's.
    SlotChanged,
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
    let Some(after) = ask
        .pace
        .try_pass(TatState::from_word(word), ask.now(), ask.cost)
    else {
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
    if after.is_blocked() || is_free_of_charge(ask) {
        return None;
    }
    let charged = swap_word(slot, word, after.0)
        && slot.fingerprint.load(Ordering::Acquire) == ask.fingerprint;
    charged.then_some((true, after))
}

/// Charges a slot once, or decides not to.
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

/// Whether a request with this judgement is to be charged: it passes, or may wait long enough.
#[inline]
pub(crate) fn is_passed(judged: &WordDecision, ask: &ChargeRequest<'_>) -> bool {
    match judged.outcome {
        Outcome::Allowed => true,
        // A blocked key books nothing: a block charges no tokens that could be waited for.
        Outcome::Denied => {
            ask.patience > 0
                && GcraParams::wait_nanos(judged.wait) <= ask.patience
                && !judged.after.is_blocked()
        }
        Outcome::Never => false,
    }
}

/// A look, or a rate that charges nothing.
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

/// Whether the slot's key, if any, is as one never seen.
pub(crate) fn is_reusable(slot: &Slot, high: u64) -> bool {
    let empty = slot.fingerprint.load(Ordering::Acquire) == 0;
    let word = slot.word.load(Ordering::Acquire);
    word != BUSY && (empty || KeyWord(word).idle_at() < high)
}

/// Makes a reusable slot busy; no if it isn't reusable, or was charged at this moment. The caller
/// holds the lock, so the fingerprint stays.
pub(crate) fn claim_if_idle(slot: &Slot, high: u64) -> bool {
    let word = slot.word.load(Ordering::Acquire);
    // As `reusable`, with the word that is swapped.
    let idle = KeyWord(word).idle_at() < high || slot.fingerprint.load(Ordering::Acquire) == 0;
    word != BUSY && idle && swap_word(slot, word, BUSY)
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

/// The slot is being taken over or moved; nobody may charge it.
pub(crate) const BUSY: u64 = u64::MAX;
/// Set: the word is a block, whatever the rate: the nanosecond that it ends at, and in the six bits
/// above which power of two, in nanoseconds, the key has to pay off after it; none if they are 0.
const BLOCKED: u64 = 1 << 63;
const NANO_BITS: u32 = 57;
const LAST_NANO: u64 = (1 << NANO_BITS) - 1;

/// A word that is not [`RELOAD_MARGIN`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KeyWord(pub(crate) u64);

/// What one charge would do.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WordDecision {
    pub(crate) outcome: Outcome,
    /// The word as it was.
    pub(crate) before: KeyWord,
    /// The word after the charge, if it is made.
    pub(crate) after: KeyWord,
    /// How long it has to wait, in word units.
    pub(crate) wait: u64,
    /// When it was asked, as these words count it.
    pub(crate) now: Timestamp,
    /// Whether the charge was made, now or to act after the wait. Judging alone makes none.
    pub(crate) is_charged: bool,
    /// Whether it was refused at a faster rate than the word counts by. Then the word is to count by that rate
    /// from now on; `before` has the debt at that rate.
    pub(crate) migrates: bool,
}

impl KeyWord {
    /// A key never seen.
    pub(crate) const NEW: Self = Self(0);
    /// The last time that a word holds.
    pub(crate) const LAST: u64 = units::from_nanos(LAST_NANO);

    /// A block until then. What the key had spent before is not forgiven: if that would be paid off
    /// only after the block, the rest is kept, rounded up.
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

    /// Whether the word is a block, even if that is over.
    #[inline]
    pub(crate) fn is_blocked(self) -> bool {
        self.0 & BLOCKED != 0
    }

    /// Whether the key is blocked at this time.
    #[inline]
    pub(crate) fn is_blocked_at(self, now: u64) -> bool {
        self.is_blocked() && self.until() > now
    }

    /// When the block ends, in word units.
    pub(crate) fn until(self) -> u64 {
        units::from_nanos(self.0 & LAST_NANO)
    }

    /// The word without a block that is over.
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

    /// The same word counted from so many units later; times before that become zero. A block without end stays
    /// as it is.
    pub(crate) fn moved(self, by: u64) -> Self {
        if self.is_endless() {
            return self;
        }
        self.after_block(by)
            .with_times(|time| time.saturating_sub(by))
    }

    /// Whether it is a block that no time ends.
    pub(crate) fn is_endless(self) -> bool {
        self.is_blocked() && self.until() == Self::LAST
    }

    /// The same word with its times changed.
    pub(crate) fn with_times(self, change: impl Fn(u64) -> u64) -> Self {
        if self.is_blocked() {
            Self::blocked(change(self.until()), change(self.idle_at()))
        } else {
            // Below the flag.
            Self(change(self.0).min(Self::LAST))
        }
    }

    /// The same word with its TAT changed; for a key that isn't blocked.
    pub(crate) fn changed(self, change: impl FnOnce(TatState) -> TatState) -> Self {
        Self(change(TatState::from_word(self.0)).to_word())
    }

    /// When the key is as one never seen, in word units.
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

    /// How long a cost waits for the end of a block, and then for what the key owes beyond it.
    #[cold]
    #[inline(never)]
    fn wait_of_a_block(self, pace: GcraParams, now: u64, cost: u64) -> u64 {
        let ends = Timestamp::from_nanos(self.0 & LAST_NANO);
        let owed = TatState::from_word(self.idle_at());
        let behind = pace.plan(owed, ends, cost).map_or(0, |(_, wait)| wait);
        (self.until() - now).saturating_add(behind)
    }

    /// Decides a cost under this pace.
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
            // A TAT that reaches into the flag is years ahead, further than anybody waits: it reads as a
            // block, and is not stored.
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

/// A word that counts by another interval than the request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ForeignWord {
    pub(crate) word: KeyWord,
    /// The interval that it counts by: zero if that isn't known.
    pub(crate) interval: u64,
}

impl ForeignWord {
    /// Decides a cost at another pace. All tokens that are owed stay owed. If a faster pace refuses it, the
    /// debt is to drain at that pace from now on.
    pub(crate) fn evaluate(self, pace: GcraParams, now: Timestamp, cost: u64) -> WordDecision {
        let word = self.word.after_block(units::from_time(now));
        if word.is_blocked() {
            return word.evaluate(pace, now, cost);
        }
        if !pace.is_counting() {
            // A pace that counts no tokens ignores what is owed at others.
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

    /// What a request that wasn't charged is told, so that the wait comes true: a refusal at a slower pace than
    /// the word counts by stores nothing, and the debt goes on to drain at the faster one.
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

    /// The pace that it counts by, without a bucket. If that isn't known, the caller's.
    const fn pace(self, asking: GcraParams) -> GcraParams {
        self.pace_with(asking, 0)
    }

    /// The pace that it counts by, or else the caller's, with a bucket of this many tokens.
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

    /// Numbers of every size.
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

    /// Any time that a table counts.
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
            // What is owed after it is kept, and at most doubled.
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
