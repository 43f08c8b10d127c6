//! Slots for keys that find no room in their own cache lines.

use super::memory::CacheLines;
use super::shard::SlotNeed;
use super::slot::{CacheLine, SLOTS, Slot, claim_if_idle};
use crate::key_table::hasher::KEY_BITS;
use crate::sync::{AtomicU64, Ordering};

/// How many slots of a table have one slot in its stash.
const SLOTS_PER_STASH_SLOT: usize = 64;
/// The fewest cache lines of a stash. Under a model checker it would take too long to fill many.
const LEAST_LINES: usize = if cfg!(any(loom, shuttle)) { 1 } else { 16 };

/// Cache lines for keys that find no room in their own, searched in order from a key's first line.
#[derive(Debug)]
pub(crate) struct Stash {
    lines: CacheLines,
    /// The longest distance of any key from its first line: a search has to go this far.
    longest_path: AtomicU64,
    /// The lines after these are only for blocked keys.
    regular_lines: usize,
}

impl Stash {
    /// A stash with one slot per [`SLOTS_PER_STASH_SLOT`] of `slots`, and a quarter more for blocked keys.
    pub(crate) fn new(slots: usize) -> Self {
        let open_lines = (slots / SLOTS_PER_STASH_SLOT)
            .div_ceil(SLOTS)
            .max(LEAST_LINES);
        Self {
            lines: CacheLines::new(open_lines + open_lines.div_ceil(4)),
            longest_path: AtomicU64::new(0),
            regular_lines: open_lines,
        }
    }

    pub(crate) fn lines(&self) -> &[CacheLine] {
        &self.lines
    }

    #[inline]
    pub(crate) fn find(&self, fingerprint: u64) -> Option<&Slot> {
        self.lines_to(fingerprint)
            .find_map(|line| line.find(fingerprint))
    }

    /// The lines that may hold a key.
    #[inline]
    pub(crate) fn lines_to(&self, fingerprint: u64) -> impl Iterator<Item = &CacheLine> {
        let reach = self.longest_path.load(Ordering::Acquire);
        let path = (reach > 0).then(|| self.path(fingerprint));
        path.into_iter()
            .flatten()
            .take(usize::try_from(reach).unwrap_or(usize::MAX))
    }

    /// The lines in the order in which a key searches for room; those for blocked keys come last.
    fn path(&self, fingerprint: u64) -> impl Iterator<Item = &CacheLine> {
        let open = &self.lines[..self.regular_lines];
        // All searches start in the first quarter, so that a table with few keys touches few pages.
        let starts = (open.len() / 4).max(1);
        let start = usize::try_from((fingerprint & KEY_BITS) >> 30).unwrap_or(0) % starts;
        let (before, after) = open.split_at(start);
        after
            .iter()
            .chain(before)
            .chain(&self.lines[self.regular_lines..])
    }

    /// Makes a reusable slot busy for a key that has none. The caller holds the shard's lock.
    pub(crate) fn claim(&self, fingerprint: u64, high: u64, need: SlotNeed) -> Option<&Slot> {
        let lines = match need {
            SlotNeed::ForBlock => self.lines.len(),
            SlotNeed::IdleOnly | SlotNeed::Evict => self.regular_lines,
        };
        for (distance, line) in self.path(fingerprint).take(lines).enumerate() {
            if let Some(slot) = line.0.iter().find(|slot| claim_if_idle(slot, high)) {
                // Stored before the key is, so that no lookup of the key stops short.
                let reach = u64::try_from(distance + 1).unwrap_or(u64::MAX);
                self.longest_path.fetch_max(reach, Ordering::AcqRel);
                return Some(slot);
            }
        }
        None
    }
}
