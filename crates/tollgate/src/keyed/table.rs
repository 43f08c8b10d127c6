//! All shards of one limiter, and their anchor in time.

use std::sync::Arc;

use tollgate_core::{Timestamp, units};

use super::anchor::{Anchor, TableTime};
use super::memory::{CacheLines, fetch};
use super::rate_cell::IntervalTable;
use super::shard::{LineLayout, Shard, ShardInterleaving};
use super::slot::{CacheLine, SLOTS, Slot, select_slot};
use crate::sharding::ShardLayout;
use crate::sync::Padded;

/// The fewest keys that are worth a shard of their own.
const SHARD_KEYS: usize = 16_384;
/// The most shards: enough that threads rarely contend for one lock.
const MAX_SHARDS: usize = 64;
/// Cache lines are split so that at most this part of their slots holds keys: 69 %, 23.2 bytes a key.
const FILL_PERCENT: usize = 69;
/// The same for a table with one shard: few enough keys that memory doesn't matter, and so few per cache line that
/// threads with different keys seldom write to the same line. Under a model checker, many lines would take too long.
const SMALL_FILL_PERCENT: usize = if cfg!(any(loom, shuttle)) { 69 } else { 12 };

/// A table for a number of keys.
#[derive(Debug)]
pub(crate) struct Table {
    /// The cache lines of all shards, interleaved. So the lines in use are contiguous, and huge pages hold no unused
    /// lines between them.
    lines: Arc<CacheLines>,
    shards: Box<[Padded<Shard>]>,
    intervals: Arc<IntervalTable>,
    turns: ShardInterleaving,
    /// The times in the words count from here.
    anchor: Anchor,
}

/// The two cache lines that may hold a key, and its shard.
#[derive(Clone, Copy)]
pub(crate) struct Candidates<'a> {
    pub(crate) shard: &'a Shard,
    lines: [&'a CacheLine; 2],
}

impl<'a> Candidates<'a> {
    /// Prefetches the cache lines.
    #[inline(always)]
    pub(crate) fn prefetch(&self) {
        self.lines.into_iter().for_each(fetch);
    }

    /// The key's slot if it is in one of the two cache lines, or else another key's slot: charging it with
    /// [`Shard::try_pass`] detects that. Both lines are compared before anything depends on the result, so that the two
    /// memory latencies overlap.
    #[inline(always)]
    pub(crate) fn select(&self, fingerprint: u64) -> &'a Slot {
        select_slot(self.lines, fingerprint)
    }
}

impl Table {
    pub(crate) fn new(capacity: usize, anchor: Timestamp, intervals: Arc<IntervalTable>) -> Self {
        let ShardLayout {
            count,
            capacity_per_shard: room,
            ..
        } = ShardLayout::for_threads(capacity, SHARD_KEYS, MAX_SHARDS);
        let fill = if count == 1 {
            SMALL_FILL_PERCENT
        } else {
            FILL_PERCENT
        };
        let slots = room.saturating_mul(100).div_ceil(fill);
        let lines = slots
            .div_ceil(SLOTS)
            .clamp(1, LineLayout::MOST_LINES / count)
            * count;
        let lines = Arc::new(CacheLines::new(lines));
        let turns = ShardInterleaving::new(count);
        let shard = |number| {
            let (lines, intervals) = (Arc::clone(&lines), Arc::clone(&intervals));
            Padded(Shard::new(lines, intervals, number, turns, fill))
        };
        Self {
            shards: (0..count).map(shard).collect(),
            lines,
            intervals,
            turns,
            anchor: Anchor::new(anchor),
        }
    }

    #[inline(always)]
    pub(crate) fn anchor(&self) -> &Anchor {
        &self.anchor
    }

    #[inline(always)]
    pub(crate) fn shard(&self, fingerprint: u64) -> &Shard {
        &self.shards[self.turns.shard_of(fingerprint)].0
    }

    /// The intervals of the rates that keys were charged at.
    #[inline(always)]
    pub(crate) fn intervals(&self) -> &IntervalTable {
        &self.intervals
    }

    /// The shard of a key, and its two cache lines there.
    #[inline(always)]
    pub(crate) fn candidates(&self, fingerprint: u64) -> Candidates<'_> {
        let shard = self.shard(fingerprint);
        let lines: &[CacheLine] = &self.lines;
        let [first, second] = shard.shape().lines_of(fingerprint, self.turns);
        Candidates {
            shard,
            lines: [&lines[first], &lines[second]],
        }
    }

    pub(crate) fn shards(&self) -> impl Iterator<Item = &Shard> {
        self.shards.iter().map(|shard| &shard.0)
    }

    /// A time counted as in the words.
    #[inline(always)]
    pub(crate) fn table_time(&self, now: Timestamp) -> TableTime {
        match self.anchor.time_if_near(now) {
            Some(moment) => moment,
            None => self.table_time_when_far(now),
        }
    }

    /// As [`table_time`](Self::table_time), for a waiter that became due at this time, which may be long ago. Such a
    /// time must not look like a clock that was set back, so it is moved forward until it doesn't.
    pub(crate) fn table_time_in_order(
        &self,
        fingerprint: u64,
        turn: Timestamp,
        clock: Timestamp,
    ) -> TableTime {
        if turn >= clock {
            return self.table_time(turn);
        }
        let shard = self.shard(fingerprint);
        let latest = self.follow_clock(shard, self.table_time(clock));
        let turn = self.anchor.time_clamped(turn).unwrap_or(latest);
        let floor = shard
            .high_water()
            .saturating_sub(self.intervals.longest_reach());
        turn.at_least(floor)
    }

    #[cold]
    #[inline(never)]
    fn table_time_when_far(&self, now: Timestamp) -> TableTime {
        if self.anchor.is_ahead(now, self.intervals.longest_reach()) {
            self.follow_back(now);
        }
        loop {
            if let Some(moment) = self.anchor.time_clamped(now) {
                return moment;
            }
            self.move_anchor(now);
        }
    }

    /// The same time. If the clock was set back far since this shard was charged, all words follow the clock first.
    #[inline]
    pub(crate) fn follow_clock(&self, shard: &Shard, moment: TableTime) -> TableTime {
        // Only a guess, as the anchor may be moving: it is checked again under the locks.
        let ahead = shard
            .high_water()
            .saturating_sub(units::from_time(moment.now));
        if ahead <= self.intervals.longest_reach() {
            return moment;
        }
        self.follow_back(moment.clock());
        self.anchor.rebase(moment)
    }

    /// Moves all words if the clock was set back far to this time. It is as rare as [`move_anchor`](Self::move_anchor).
    #[cold]
    #[inline(never)]
    fn follow_back(&self, clock: Timestamp) {
        let locks: Vec<_> = self.shards().map(Shard::lock).collect();
        let high = self.shards().map(Shard::high_water).max().unwrap_or(0);
        let reach = self.intervals.longest_reach();
        self.anchor.move_back(clock, high, reach, |back| {
            self.shards().for_each(|shard| shard.move_back(back));
            self.intervals
                .move_shared(|word| back.rebased_word(word, high));
        });
        drop(locks);
    }

    /// Moves the anchor close behind this time. No other thread holds more than one of these locks, so taking all of
    /// them in order can't deadlock.
    fn move_anchor(&self, now: Timestamp) {
        let locks: Vec<_> = self.shards().map(Shard::lock).collect();
        self.anchor.move_forward(now, |by| {
            self.shards().for_each(|shard| shard.move_words(by));
            self.intervals.move_shared(|word| word.moved(by));
        });
        drop(locks);
    }

    /// The most bytes that all shards can use.
    pub(crate) fn reserved_bytes(&self) -> usize {
        let stashed: usize = self.shards().map(Shard::stash_lines).sum();
        (self.lines.len() + stashed) * size_of::<CacheLine>() + size_of::<IntervalTable>()
    }
}
