//! One part of a table: cache lines that grow in number, a stash for keys that find no room in them, and one lock for
//! all changes of a key's position. Charging an existing key takes no lock.
//!
//! # Memory ordering
//! A slot is two words, the fingerprint and the key's word. Both change together only under the shard's lock. The
//! holder of the lock first makes the word [`BUSY`] by compare-and-swap, which fails if a charge came first, then
//! stores the fingerprint and last the new word, both with release.
//!
//! * A charge loads the fingerprint (acquire), the word (acquire) and the fingerprint again. If it read the word of
//!   another key, the second load sees that key's fingerprint, because that was stored before the word. If the slot
//!   changes hands after the second load, the word has become `BUSY` and then another value, so the charge's
//!   compare-and-swap fails.
//! * The fast path doesn't compare the fingerprint of its fallback slot, so it loads the word first. A charge stays
//!   safe: its compare-and-swap comes after a load that found the key, so a word of the previous key is gone by then. A
//!   denial swaps nothing, so it loads the word a second time instead.
//! * A slot is handed over only if its word lies before the shard's high-water time, and the word stored for the new
//!   key lies after it, so the word that a slow charge holds can't come back. If it does come back (a key was moved or
//!   evicted, and a key with the same time and rate took its slot), a third load of the fingerprint, after the
//!   compare-and-swap, finds the slot changed, and the charge is repeated: charging twice is the safe side. The same
//!   happens to a charge whose key is moved between its compare-and-swap and that load.
//! * A change that makes a word smaller (a refund, a cancelled reservation, a reset) has no safe side, so it takes the
//!   lock, under which no slot changes hands. A charge that may be refunded takes the lock, too: its receipt stands for
//!   one charge, and a second charge would stay.
//! * A request at another interval than that of the key's word changes the word and, with the fingerprint, the tag of
//!   its interval, by the steps of a handover. To a charge at the old interval, the slot has changed hands.
//! * A thread that finds `BUSY`, or doesn't find its key, takes the lock. Under the lock nothing is busy and no key is
//!   being moved.
//! * The layout is stored (release) after the keys of a split line were moved. A reader with the old layout doesn't
//!   find those keys, and takes the lock.

use std::sync::Arc;

use tollgate_core::{Outcome, Timestamp, units};

use super::anchor::{Anchor, TableTime};
use super::memory::CacheLines;
use super::rate_cell::IntervalTable;
use super::slot::{BUSY, ForeignWord, KeyWord, WordDecision};
use super::slot::{CacheLine, SLOTS, Slot};
use super::slot::{
    ChargeLost, ChargeRequest, is_free_of_charge, is_passed, publish, swap_word, try_charge,
    try_pass,
};
use super::stash::Stash;
use crate::key_table::Stats;
use crate::key_table::hasher::KEY_BITS;
use crate::sync::{AtomicU64, Backoff, Mutex, MutexGuard, Ordering, ignore_poison};

mod other_interval;
mod scan;
mod slot_allocation;

/// The high-water time is updated at most this often: a millisecond, in word units.
const HIGH_WATER_STEP: u64 = units::from_nanos(1_000_000);
/// Charges keep the high-water time this close behind the clock: a second, in word units.
const LATEST_STEP: u64 = units::from_nanos(1_000_000_000);
/// A part of a table with its own lock.
#[derive(Debug)]
pub(crate) struct Shard {
    shape: AtomicU64,
    /// A slot whose key is active at this time is never reused, and no key starts afresh before it.
    high_water: AtomicU64,
    /// The cache lines of all shards; the layout tells which are in use.
    cache_lines: Arc<CacheLines>,
    /// The intervals of the limiter.
    intervals: Arc<IntervalTable>,
    shard_number: usize,
    interleaving: ShardInterleaving,
    /// Cache lines are split so that at most this part of their slots holds keys, in percent.
    fill_percent: usize,
    stash: Stash,
    structure: Mutex<ShardStructure>,
}

/// Data that only the holder of the lock reads or writes.
#[derive(Debug, Default)]
pub(crate) struct ShardStructure {
    /// Slots that hold a fingerprint, of cache lines in use.
    used: usize,
    /// Statistics of the shard; decisions are counted elsewhere.
    stats: Stats,
}

/// Which slots a key may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SlotNeed {
    /// Only slots of idle keys.
    IdleOnly,
    /// If necessary the slot of an active key: the key that will be idle next.
    Evict,
    /// Also slots that are reserved for blocked keys.
    ForBlock,
}

impl Shard {
    /// Shard `number` of the shards that share these cache lines, filled up to `fill` percent.
    pub(crate) fn new(
        lines: Arc<CacheLines>,
        intervals: Arc<IntervalTable>,
        number: usize,
        turns: ShardInterleaving,
        fill: usize,
    ) -> Self {
        let shape = LineLayout::smallest(turns);
        let own = lines.len() / usize::try_from(shape.lines()).unwrap_or(usize::MAX);
        Self {
            shape: AtomicU64::new(shape.to_word()),
            high_water: AtomicU64::new(0),
            cache_lines: lines,
            intervals,
            shard_number: number,
            interleaving: turns,
            fill_percent: fill,
            stash: Stash::new(own * SLOTS),
            structure: Mutex::new(ShardStructure::default()),
        }
    }

    pub(crate) fn stash_lines(&self) -> usize {
        self.stash.lines().len()
    }

    /// Charges a key, existing or new. `None` if it is new and every slot that it may have holds an active key.
    pub(crate) fn charge(&self, ask: &ChargeRequest<'_>, need: SlotNeed) -> Option<WordDecision> {
        let mut backoff = Backoff::default();
        while let Some(slot) = self.find(ask.fingerprint) {
            match try_charge(slot, ask) {
                Ok(judged) => return self.finish_charge(ask, judged),
                Err(ChargeLost::Race) => backoff.back_off(),
                Err(ChargeLost::SlotChanged) => break,
            }
        }
        self.denied_at_other_interval(ask)
            .or_else(|| self.charge_slowly(ask, need))
    }

    /// Charges a key exactly once, for a caller that may refund the charge: under the lock, so that no move interferes.
    /// A denial takes no lock.
    pub(crate) fn charge_or_book(
        &self,
        ask: &ChargeRequest<'_>,
        need: SlotNeed,
    ) -> Option<WordDecision> {
        let slot = self.find(ask.fingerprint);
        let found = slot.and_then(|slot| Some((slot, word_in(slot, ask.fingerprint)?)));
        if let Some((slot, word)) = found {
            let judged = word.evaluate(ask.pace, ask.now(), ask.cost);
            if !is_passed(&judged, ask) && is_still(slot, word) && ask.is_timely() {
                return Some(judged);
            }
        }
        self.denied_at_other_interval(ask)
            .or_else(|| self.charge_slowly(ask, need))
    }

    /// Whether a request passes now, and the key's word afterwards. `None` if the fast path doesn't suffice:
    /// [`charge`](Self::charge) must decide then.
    #[inline(always)]
    pub(crate) fn try_pass(&self, slot: &Slot, ask: &ChargeRequest<'_>) -> Option<(bool, KeyWord)> {
        let passed = try_pass(slot, ask);
        if let Some((true, _)) = passed {
            self.update_high_water(ask);
        }
        passed
    }

    #[inline(always)]
    pub(crate) fn shape(&self) -> LineLayout {
        LineLayout::from_word(self.shape.load(Ordering::Acquire))
    }

    fn lines_in_use(&self) -> usize {
        usize::try_from(self.shape().lines()).unwrap_or(usize::MAX) / self.interleaving.count()
    }

    fn lines_of(&self, fingerprint: u64) -> [&CacheLine; 2] {
        self.lines_in(self.shape(), fingerprint)
    }

    fn lines_in(&self, shape: LineLayout, fingerprint: u64) -> [&CacheLine; 2] {
        let lines = shape.lines_of(fingerprint, self.interleaving);
        lines.map(|line| &self.cache_lines[line])
    }

    /// Changes the word of an existing key that counts by this interval, if `change` returns a word.
    ///
    /// It takes the lock, because a word may become smaller here: a slot that changed hands meanwhile could hold the
    /// very word that was read, and another key would get the refund.
    pub(crate) fn update(
        &self,
        ask: &ChargeRequest<'_>,
        change: impl Fn(KeyWord, Timestamp) -> Option<KeyWord>,
    ) {
        let _structure = self.lock();
        let now = ask.rebased().now();
        if let Some(slot) = self.find(ask.fingerprint) {
            update_locked(slot, |word| change(word, now));
        }
    }

    /// As [`update`](Self::update), for a word of any interval. `change` gets the interval, or zero if it isn't known.
    pub(crate) fn update_any(
        &self,
        ask: &ChargeRequest<'_>,
        change: impl Fn(ForeignWord, Timestamp) -> Option<KeyWord>,
    ) {
        let _structure = self.lock();
        let now = ask.rebased().now();
        self.update_any_locked(ask, |found| change(found, now));
    }

    /// Forgets what a key has spent, if the table has it.
    pub(crate) fn reset(&self, ask: &ChargeRequest<'_>) {
        let mut structure = self.lock();
        let found = self.update_any_locked(ask, |_| Some(KeyWord::NEW));
        structure.stats.reset += u64::from(found);
    }

    /// Changes the word of a key that may be new; false if there is no slot for it.
    pub(crate) fn set_word(
        &self,
        ask: &ChargeRequest<'_>,
        need: SlotNeed,
        change: impl Fn(ForeignWord, Timestamp) -> KeyWord,
    ) -> bool {
        let mut structure = self.lock();
        let asked = ask.rebased().now();
        let new = self.foreign_word(KeyWord::NEW, ask.tag);
        if self.replace_idle_word(ask, asked, || change(new, asked))
            || self.update_any_locked(ask, |found| Some(change(found, asked)))
        {
            return true;
        }
        let now = self.raise_high_water(asked);
        let Some(slot) =
            self.claim_slot(&mut structure, ask.fingerprint, units::from_time(now), need)
        else {
            return false;
        };
        self.intervals.note_untagged(ask.tag);
        publish(slot, ask.fingerprint, change(new, asked));
        self.grow(&mut structure);
        true
    }

    /// Whether the table has the key. The caller holds the lock.
    fn update_any_locked(
        &self,
        ask: &ChargeRequest<'_>,
        change: impl Fn(ForeignWord) -> Option<KeyWord>,
    ) -> bool {
        let own = || self.find(ask.fingerprint).map(|slot| (slot, ask.tag));
        let Some((slot, tag)) = own().or_else(|| self.find_at_other_interval(ask)) else {
            return false;
        };
        update_locked(slot, |word| change(self.foreign_word(word, tag)));
        true
    }

    /// The effect of a charge on the key's present word. It takes no lock: a key that is being moved looks new.
    #[inline(always)]
    pub(crate) fn peek(&self, slot: &Slot, ask: &ChargeRequest<'_>) -> WordDecision {
        while let Some(word) = word_in(slot, ask.fingerprint) {
            let judged = word.evaluate(ask.pace, ask.now(), ask.cost);
            if !ask.is_timely() {
                return self.peek_again(slot, ask);
            }
            // Only a second read detects a denial by a word of another key or interval.
            if judged.outcome == Outcome::Allowed || is_still(slot, word) {
                return judged;
            }
        }
        self.peek_elsewhere(ask)
    }

    #[cold]
    #[inline(never)]
    fn peek_again(&self, slot: &Slot, ask: &ChargeRequest<'_>) -> WordDecision {
        self.peek(slot, &ask.rebased())
    }

    #[inline(never)]
    fn peek_elsewhere(&self, ask: &ChargeRequest<'_>) -> WordDecision {
        let stashed = self.stash.find(ask.fingerprint);
        let stashed = stashed.and_then(|slot| word_in(slot, ask.fingerprint));
        if let Some(word) = stashed {
            let judged = word.evaluate(ask.pace, ask.now(), ask.cost);
            if ask.is_timely() {
                return judged;
            }
            return self.peek_elsewhere(&ask.rebased());
        }
        match self.peek_at_other_interval(ask) {
            Some((other, judged)) => other.evaluated_beside(judged, ask.pace, ask.now(), ask.cost),
            None => KeyWord::NEW.evaluate(ask.pace, ask.now(), ask.cost),
        }
    }

    pub(crate) fn stats(&self) -> Stats {
        Stats {
            slots: (self.lines_in_use() * SLOTS) as u64,
            ..self.lock().stats
        }
    }

    /// The key's slot, unless the key is being moved.
    fn find(&self, fingerprint: u64) -> Option<&Slot> {
        let [first, second] = self.lines_of(fingerprint);
        first
            .find(fingerprint)
            .or_else(|| second.find(fingerprint))
            .or_else(|| self.stash.find(fingerprint))
    }

    #[cold]
    #[inline(never)]
    fn charge_slowly(&self, ask: &ChargeRequest<'_>, need: SlotNeed) -> Option<WordDecision> {
        let mut backoff = Backoff::default();
        loop {
            let mut structure = self.lock();
            let ask = &ask.rebased();
            if let Some(slot) = self.find(ask.fingerprint) {
                // Under the lock the slot can't change hands; only another charge can come first.
                let attempted = try_charge(slot, ask);
                drop(structure);
                if let Ok(judged) = attempted {
                    return self.finish_charge(ask, judged);
                }
                backoff.back_off();
                continue;
            }
            if let Some((slot, tag)) = self.find_at_other_interval(ask) {
                let judged = self.charge_at_other_interval(slot, tag, ask);
                drop(structure);
                if let Some(judged) = judged {
                    return self.finish_charge(ask, judged);
                }
                backoff.back_off();
                continue;
            }
            let now = ask.now().max(self.latest_time());
            let judged = KeyWord::NEW.evaluate(ask.pace, now, ask.cost);
            let judged = WordDecision {
                is_charged: is_passed(&judged, ask),
                now: ask.now(),
                ..judged
            };
            if !judged.is_charged || is_free_of_charge(ask) {
                return Some(judged);
            }
            self.intervals.note_capacity(ask.pace);
            let now = units::from_time(self.raise_high_water(now));
            let slot = self.claim_slot(&mut structure, ask.fingerprint, now, need)?;
            publish(slot, ask.fingerprint, judged.after);
            self.grow(&mut structure);
            return Some(judged);
        }
    }

    /// Updates the high-water time after a charge.
    #[inline(always)]
    fn finish_charge(&self, ask: &ChargeRequest<'_>, judged: WordDecision) -> Option<WordDecision> {
        if judged.is_charged {
            self.update_high_water(ask);
        }
        Some(judged)
    }

    /// Keeps the high-water time close behind the charges.
    #[inline(always)]
    fn update_high_water(&self, ask: &ChargeRequest<'_>) {
        // Relaxed: the time only grows, and a late value is allowed for.
        let high = self.high_water.load(Ordering::Relaxed);
        if units::from_time(ask.now()) > high + LATEST_STEP {
            self.raise_to(ask.anchor, ask.time);
        }
    }

    /// Takes the lock, under which the anchor of the time is fixed; at most once a second.
    #[cold]
    #[inline(never)]
    fn raise_to(&self, anchor: &Anchor, moment: TableTime) {
        let _structure = self.lock();
        let now = units::from_time(anchor.rebase(moment).now);
        self.high_water.fetch_max(now, Ordering::AcqRel);
    }

    fn latest_time(&self) -> Timestamp {
        Timestamp::from_nanos(units::to_nanos_floor(
            self.high_water.load(Ordering::Acquire),
        ))
    }

    /// Raises the high-water time of the shard, and returns the time to decide at: a key whose slot was reused because
    /// it was idle must not start afresh at an earlier time.
    fn raise_high_water(&self, now: Timestamp) -> Timestamp {
        let latest = self.latest_time();
        if units::from_time(now) > units::from_time(latest).saturating_add(HIGH_WATER_STEP) {
            self.high_water
                .fetch_max(units::from_time(now), Ordering::AcqRel);
        }
        now.max(latest)
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, ShardStructure> {
        ignore_poison(self.structure.lock())
    }
}

/// Changes a word. The caller holds the lock, so the slot stays the key's; only a charge can come first.
fn update_locked(slot: &Slot, change: impl Fn(KeyWord) -> Option<KeyWord>) {
    loop {
        let word = slot.word.load(Ordering::Acquire);
        match change(KeyWord(word)) {
            Some(to) if !swap_word(slot, word, to.0) => {}
            _ => return,
        }
    }
}

/// Whether a word is unchanged since it was read.
#[inline(always)]
fn is_still(slot: &Slot, word: KeyWord) -> bool {
    slot.word.load(Ordering::Acquire) == word.0
}

/// The key's word, if it is in this slot and counts by this interval.
#[inline(always)]
fn word_in(slot: &Slot, fingerprint: u64) -> Option<KeyWord> {
    let word = slot.word.load(Ordering::Acquire);
    let here = slot.fingerprint.load(Ordering::Acquire) == fingerprint;
    (here && word != BUSY).then_some(KeyWord(word))
}

/// The number of cache lines that a shard uses. At the start of a round it uses `base` lines; the lines below `split`
/// have been split in two since.
///
/// Cache lines are added one by one (linear hashing): a key's line number is its hash modulo `base`, or modulo twice
/// that if its line was split in this round. Shards are interleaved line by line, so a line's number modulo the number
/// of shards is its shard, and `base` and `split` grow by the number of shards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LineLayout {
    base: u64,
    split: u64,
}

/// The number of interleaved shards: a power of two, stored as the mask of the bits that don't select a key's shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ShardInterleaving(u64);

impl ShardInterleaving {
    pub(crate) fn new(shards: usize) -> Self {
        Self(!(shards.next_power_of_two() as u64 - 1))
    }

    #[expect(clippy::cast_possible_truncation, reason = "made from a `usize`")]
    pub(crate) const fn count(self) -> usize {
        (!self.0 + 1) as usize
    }

    /// The shard of a key.
    #[inline(always)]
    #[expect(
        clippy::cast_possible_truncation,
        reason = "a shard's number is below the number of shards, which are in memory"
    )]
    pub(crate) const fn shard_of(self, fingerprint: u64) -> usize {
        (fingerprint & !self.0) as usize
    }
}

impl LineLayout {
    /// A shard of one line.
    pub(crate) const fn smallest(turns: ShardInterleaving) -> Self {
        Self {
            base: !turns.0 + 1,
            split: 0,
        }
    }

    /// The most cache lines of all shards: 256 GiB of them.
    pub(crate) const MOST_LINES: usize = u32::MAX as usize;

    /// The layout as one word: the number of lines in the low half, the mask of a line's number in the high half.
    pub(crate) const fn to_word(self) -> u64 {
        (self.base - 1) << 32 | self.lines()
    }

    #[inline(always)]
    pub(crate) const fn from_word(word: u64) -> Self {
        let base = (word >> 32) + 1;
        Self {
            base,
            split: (word & 0xFFFF_FFFF) - base,
        }
    }

    /// The number of lines of all shards, if all have this layout.
    pub(crate) const fn lines(self) -> u64 {
        self.base + self.split
    }

    /// The layout after one more line, the number of the line that is split for it, and its own number, both in the
    /// first shard.
    #[expect(
        clippy::cast_possible_truncation,
        reason = "a line number is below the number of lines, which are in memory"
    )]
    pub(crate) const fn grown(self, turns: ShardInterleaving) -> (Self, usize, usize) {
        let split = self.split + !turns.0 + 1;
        let next = if split == self.base {
            Self {
                base: self.base * 2,
                split: 0,
            }
        } else {
            Self { split, ..self }
        };
        (next, self.split as usize, self.lines() as usize)
    }

    /// The two lines that may hold a key, both in its own shard. They are computed from the fingerprint without the
    /// bits of the interval's tag.
    #[inline(always)]
    pub(crate) const fn lines_of(self, fingerprint: u64, turns: ShardInterleaving) -> [usize; 2] {
        let mixed = fingerprint
            .wrapping_mul(0x9E37_79B9_7F4A_7C15)
            .rotate_left(u32::BITS + KEY_BITS.leading_zeros());
        let second = fingerprint ^ (mixed & turns.0);
        [self.line_of(fingerprint), self.line_of(second)]
    }

    #[inline(always)]
    #[expect(
        clippy::cast_possible_truncation,
        reason = "a line number is below the number of lines, which are in memory"
    )]
    const fn line_of(self, hash: u64) -> usize {
        let long = hash & (2 * self.base - 1);
        // A line above the last was not split off yet: its keys are still in the line before the split.
        let line = if long < self.lines() {
            long
        } else {
            long - self.base
        };
        line as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interval_moves_no_key() {
        let turns = ShardInterleaving::new(64);
        let mut shape = LineLayout::smallest(turns);
        while shape.lines() < 1 << 32 {
            let shapes = [shape, LineLayout { split: 64, ..shape }];
            for fingerprint in (1..100u64).map(|key| key.wrapping_mul(0x1234_5678_9ABC_DEF1)) {
                for tag in [1, 2, 512, 1_023].map(|tag| tag << 54) {
                    for shape in shapes {
                        let lines = |fingerprint| shape.lines_of(fingerprint, turns);
                        assert_eq!(lines(fingerprint), lines(fingerprint ^ tag));
                    }
                }
            }
            shape.base *= 2;
        }
    }

    #[test]
    fn a_split_moves_keys_only_between_the_line_and_its_new_half() {
        for shards in [1, 2, 64] {
            let turns = ShardInterleaving::new(shards);
            let mut shape = LineLayout::smallest(turns);
            for _ in 0..1_000 {
                let (next, from, to) = shape.grown(turns);
                assert_eq!(to as u64, shape.lines());
                assert_eq!(next.lines(), shape.lines() + shards as u64);
                assert_eq!(LineLayout::from_word(next.to_word()), next);
                for key in 0..200u64 {
                    let fingerprint = key.wrapping_mul(0x1234_5678_9ABC_DEF1);
                    let shard = turns.shard_of(fingerprint);
                    let before = shape.lines_of(fingerprint, turns);
                    let after = next.lines_of(fingerprint, turns);
                    for (before, after) in before.into_iter().zip(after) {
                        let split = before == from + shard && after == to + shard;
                        assert!(after == before || split);
                        assert!((after as u64) < next.lines());
                        assert_eq!(after % shards, shard);
                    }
                }
                shape = next;
            }
        }
    }
}
