//! Room for a new key: an idle slot, a slot whose key moves to its other cache line, or a slot of the stash; and the
//! split of cache lines as keys become more. All of it under the shard's lock.

use super::super::shard::LineLayout;
use super::super::slot::{BUSY, CacheLine, KeyWord, SLOTS, Slot};
use super::super::slot::{claim_if_idle, clear, is_reusable, publish, swap_word};
use super::{Shard, ShardStructure, SlotNeed};
use crate::sync::Ordering;

/// How many lines one insert may split, so that none takes long.
const SPLITS_PER_INSERT: u32 = 4;

impl Shard {
    /// Makes a slot busy for a key that has none. The caller holds the lock.
    pub(super) fn claim_slot(
        &self,
        structure: &mut ShardStructure,
        fingerprint: u64,
        now: u64,
        need: SlotNeed,
    ) -> Option<&Slot> {
        let shape = self.shape();
        let lines = self.lines_in(shape, fingerprint);
        let high = self.high_water.load(Ordering::Acquire);
        if let Some(slot) = claim_idle(structure, lines, high) {
            return Some(slot);
        }
        // Raised before any key is moved or evicted, so that all keys idle by now count as idle.
        let high = self.high_water.fetch_max(now, Ordering::AcqRel).max(now);
        claim_idle(structure, lines, high)
            .or_else(|| self.displace(structure, shape, lines, high))
            .or_else(|| {
                let slot = self.stash.claim(fingerprint, high, need)?;
                structure.stats.stashed += 1;
                Some(slot)
            })
            .or_else(|| {
                (need == SlotNeed::Evict)
                    .then(|| evict(structure, lines, now))
                    .flatten()
            })
    }

    /// Makes room by moving one of eight keys to its other cache line.
    fn displace<'a>(
        &'a self,
        structure: &mut ShardStructure,
        shape: LineLayout,
        lines: [&'a CacheLine; 2],
        high: u64,
    ) -> Option<&'a Slot> {
        for slot in lines.iter().flat_map(|line| &line.0) {
            let fingerprint = slot.fingerprint.load(Ordering::Relaxed);
            for other in self.lines_in(shape, fingerprint) {
                let Some(to) = other.0.iter().find(|to| claim_if_idle(to, high)) else {
                    continue;
                };
                let was_empty = to.fingerprint.load(Ordering::Relaxed) == 0;
                structure.used += usize::from(was_empty);
                structure.stats.expired += u64::from(!was_empty);
                structure.stats.moved += 1;
                // The swap takes the word after the last charge, so a charge that came just before isn't lost.
                let word = slot.word.swap(BUSY, Ordering::AcqRel);
                publish(to, fingerprint, KeyWord(word));
                return Some(slot);
            }
        }
        None
    }

    /// Splits cache lines, a few at a time, until their fill is below the threshold.
    pub(super) fn grow(&self, structure: &mut ShardStructure) {
        for _ in 0..SPLITS_PER_INSERT {
            let lines = self.lines_in_use();
            let full = lines * SLOTS * self.fill_percent / 100;
            if lines >= self.cache_lines.len() / self.interleaving.count() || structure.used <= full
            {
                return;
            }
            self.split(structure, self.shape());
        }
    }

    /// Moves the keys of one cache line that belong to its new half.
    fn split(&self, structure: &mut ShardStructure, shape: LineLayout) {
        let (next, from, to) = shape.grown(self.interleaving);
        let [from, to] = [from, to].map(|first| first + self.shard_number);
        let high = self.high_water.load(Ordering::Acquire);
        let mut free = self.cache_lines[to].0.iter();
        for slot in &self.cache_lines[from].0 {
            let fingerprint = slot.fingerprint.load(Ordering::Relaxed);
            if fingerprint == 0 {
                continue;
            }
            if claim_if_idle(slot, high) {
                clear(slot);
                structure.used -= 1;
                structure.stats.expired += 1;
            } else if !next
                .lines_of(fingerprint, self.interleaving)
                .contains(&from)
                && let Some(place) = free.next()
            {
                structure.stats.moved += 1;
                let word = slot.word.swap(BUSY, Ordering::AcqRel);
                publish(place, fingerprint, KeyWord(word));
                clear(slot);
            }
        }
        // Stored last, so that a reader with the new layout finds the moved keys.
        self.shape.store(next.to_word(), Ordering::Release);
    }
}

/// Makes a reusable slot busy, of the emptier cache line if possible.
fn claim_idle<'a>(
    structure: &mut ShardStructure,
    lines: [&'a CacheLine; 2],
    high: u64,
) -> Option<&'a Slot> {
    let idle = |line: &CacheLine| line.0.iter().filter(|slot| is_reusable(slot, high)).count();
    structure.stats.examined += 2 * SLOTS as u64;
    let emptier = usize::from(idle(lines[1]) > idle(lines[0]));
    let slots = [lines[emptier], lines[1 - emptier]];
    let slot = slots
        .into_iter()
        .flat_map(|line| &line.0)
        .find(|slot| claim_if_idle(slot, high))?;
    // An empty slot becomes used; a used one only changes hands.
    let empty = slot.fingerprint.load(Ordering::Relaxed) == 0;
    structure.used += usize::from(empty);
    structure.stats.expired += u64::from(!empty);
    Some(slot)
}

/// Takes the slot of the key that will be idle next, but never of a blocked key.
fn evict<'a>(
    structure: &mut ShardStructure,
    lines: [&'a CacheLine; 2],
    now: u64,
) -> Option<&'a Slot> {
    loop {
        let (slot, word) = lines
            .into_iter()
            .flat_map(|line| &line.0)
            .map(|slot| (slot, KeyWord(slot.word.load(Ordering::Acquire))))
            .filter(|(_, word)| !word.is_blocked_at(now))
            .min_by_key(|(_, word)| word.idle_at())?;
        // Fails if the key is charged or blocked at this moment.
        if swap_word(slot, word.0, BUSY) {
            structure.stats.evicted += 1;
            return Some(slot);
        }
    }
}
