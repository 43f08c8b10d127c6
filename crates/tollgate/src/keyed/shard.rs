//! One part of a table: lines that grow, a stash for what finds no place in them, and one lock for
//! everything that changes where a key lives. Charging a key that is there takes no lock.
//!
//! # Memory ordering
//! A slot is two words, the fingerprint and the key's word, and both change together only under the
//! shard's lock. The lock's holder first makes the word [`RELOAD_MARGIN`] by compare-and-swap, which fails if
//! somebody charged it meanwhile, then stores the fingerprint and last the new word, both with
//! release.
//!
//! * A charger loads the fingerprint (acquire), the word (acquire) and the fingerprint again. If it
//!   read the word of another key, its second look sees that key's fingerprint, because that was
//!   stored before the word. If the slot changes hands after the second look, the word has become
//!   `RELOAD_MARGIN` and then another one, and the charger's compare-and-swap fails.
//! * The fast path doesn't look at the fingerprint of the slot that it falls back on, so there the
//!   word comes first. A charge is as safe: the compare-and-swap comes after a look that found the
//!   key, so a word of the key before is gone by then. A refusal swaps nothing, so it looks at the
//!   word a second time instead.
//! * A slot is taken over only if its word lies before the shard's high-water time, and a word that
//!   is stored for a new key lies after it, so the word that a slow charger holds can't come back.
//!   Should it (a key that was moved or evicted, and one of the same time and rate in its place), a
//!   third look at the fingerprint, after the compare-and-swap, finds the slot changed, and the
//!   charger charges again: twice is the safe side. So does a charge that a move overtakes between
//!   its compare-and-swap and that look.
//! * What makes a word smaller (a refund, a cancelled slot, a reset) has no safe side, so it goes
//!   through the lock, under which no slot changes hands. So does a charge that is to be given back:
//!   its receipt stands for one charge, and a second one would stay.
//! * A key that is asked at another interval than its word counts by changes the word and, with the
//!   fingerprint, the tag of its interval: as if the slot changed hands, by the same steps. To a
//!   charger at the old interval it has.
//! * Whoever finds `RELOAD_MARGIN`, or does not find its key, goes through the lock. There nothing is busy and
//!   no key is on its way.
//! * The shape is stored (release) after the keys of a split line were moved; a reader with the old
//!   shape misses those, and goes through the lock.

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

/// The high-water time moves at most this often: a millisecond, in word units.
const HIGH_WATER_STEP: u64 = units::from_nanos(1_000_000);
/// Charges keep the high-water time this close behind them: a second, in word units.
const LATEST_STEP: u64 = units::from_nanos(1_000_000_000);
/// A part of a table with its own lock.
#[derive(Debug)]
pub(crate) struct Shard {
    shape: AtomicU64,
    /// No slot whose key is active at this time is ever reused, and no key starts anew before it.
    high_water: AtomicU64,
    /// Those of all shards; the shape says which are in use.
    cache_lines: Arc<CacheLines>,
    /// Those of the limiter.
    intervals: Arc<IntervalTable>,
    shard_number: usize,
    interleaving: ShardInterleaving,
    /// Cache lines are split so that at most this part of their slots holds keys, in percent.
    fill_percent: usize,
    stash: Stash,
    structure: Mutex<ShardStructure>,
}

/// What only the lock's holder reads or writes.
#[derive(Debug, Default)]
pub(crate) struct ShardStructure {
    /// Slots of lines in use that hold a fingerprint.
    used: usize,
    /// What the shard has done; the decisions are counted elsewhere.
    stats: Stats,
}

/// Which slots a key may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SlotNeed {
    /// Only slots of keys that are idle.
    IdleOnly,
    /// A slot of an active key if need be: the one that is idle next.
    Evict,
    /// Also those that are kept for blocked keys.
    ForBlock,
}

impl Shard {
    /// Shard `number` of those that share these lines, filled up to `fill` percent.
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

    /// Charges a key, whether it is there or new. None if it is new and every slot that it may have holds an active key.
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

    /// Charges a key exactly once, for a caller that may give the charge back: under the lock, so that no move
    /// interferes. A refusal needs no lock.
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

    /// Whether a request passes now, and the key's word then, unless that takes a closer look: then
    /// [`charge`](Self::charge) has to tell.
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

    /// Changes the key's word if it is there, counts by this interval, and `change` gives one.
    ///
    /// Under the lock, because a word may become smaller here: a slot that changed hands meanwhile
    /// could hold the very word that was read, and another key would get the gift.
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

    /// The same by whatever interval it counts, which `change` gets too; zero if that isn't known.
    pub(crate) fn update_any(
        &self,
        ask: &ChargeRequest<'_>,
        change: impl Fn(ForeignWord, Timestamp) -> Option<KeyWord>,
    ) {
        let _structure = self.lock();
        let now = ask.rebased().now();
        self.update_any_locked(ask, |found| change(found, now));
    }

    /// Forgets what a key has spent, if it is there.
    pub(crate) fn reset(&self, ask: &ChargeRequest<'_>) {
        let mut structure = self.lock();
        let found = self.update_any_locked(ask, |_| Some(KeyWord::NEW));
        structure.stats.reset += u64::from(found);
    }

    /// Changes the word of a key that may be new; no if there is no slot to be had.
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

    /// Whether the key was there. The caller holds the lock.
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

    /// What a charge would result in, by the key's word as it stands. Takes no lock: a key that is just being
    /// moved looks new.
    #[inline(always)]
    pub(crate) fn peek(&self, slot: &Slot, ask: &ChargeRequest<'_>) -> WordDecision {
        while let Some(word) = word_in(slot, ask.fingerprint) {
            let judged = word.evaluate(ask.pace, ask.now(), ask.cost);
            if !ask.is_timely() {
                return self.peek_again(slot, ask);
            }
            // Nothing but a second look tells a refusal by a word of another key or interval.
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

    /// The key's slot, unless it is just being moved.
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

    /// Keeps track of time after a charge that was made.
    #[inline(always)]
    fn finish_charge(&self, ask: &ChargeRequest<'_>, judged: WordDecision) -> Option<WordDecision> {
        if judged.is_charged {
            self.update_high_water(ask);
        }
        Some(judged)
    }

    /// Keeps the high-water time close behind those that charges are made at.
    #[inline(always)]
    fn update_high_water(&self, ask: &ChargeRequest<'_>) {
        // It only grows, and may be late: that is allowed for.
        let high = self.high_water.load(Ordering::Relaxed);
        if units::from_time(ask.now()) > high + LATEST_STEP {
            self.raise_to(ask.anchor, ask.time);
        }
    }

    /// Under the lock, where it is known what the time counts from; once a second at most.
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

    /// Lets time pass for the whole shard, and gives the time to decide at: a key that was taken
    /// over for being idle must not start anew at an earlier one.
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

/// The caller holds the lock, so the slot stays the key's; only a charge can come first.
fn update_locked(slot: &Slot, change: impl Fn(KeyWord) -> Option<KeyWord>) {
    loop {
        let word = slot.word.load(Ordering::Acquire);
        match change(KeyWord(word)) {
            Some(to) if !swap_word(slot, word, to.0) => {}
            _ => return,
        }
    }
}

/// Whether nobody has changed a word since it was read.
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

/// How many lines a shard uses: `base` of the table's lines are open to it at the start of a round,
/// and of those the ones below `split` have been split in two.
///
/// Cache lines grow one by one, never all at once: a key's line number is its hash modulo `base`, or
/// modulo twice that if its line was split in this round. Shards take turns line by line, so a
/// line's number modulo the number of shards is its shard's, and `base` and `split` go by as many
/// at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LineLayout {
    base: u64,
    split: u64,
}

/// How many shards take turns: a power of two, kept as the mask of what does not tell a key's shard.
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

    /// Which shard a key belongs to.
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

    /// Most lines of all shards: 256 GiB of them.
    pub(crate) const MOST_LINES: usize = u32::MAX as usize;

    /// As one word: how many lines there are in the low half, and in the high half the mask of a
    /// line's number.
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

    /// How many lines of all shards there are if all have this shape.
    pub(crate) const fn lines(self) -> u64 {
        self.base + self.split
    }

    /// The shape after one more line, the number of the line that is split for it, and its own,
    /// both of the first shard.
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

    /// The two lines that a key may be in, both computed from the fingerprint alone, without the bits
    /// that tell an interval, and both of its own shard.
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
        // A line above the last was not split off yet: its keys are still where they were.
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
