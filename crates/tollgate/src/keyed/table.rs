//! All shards of one limiter, and the time they count from.

use std::sync::Arc;

use tollgate_core::{Timestamp, units};

use super::anchor::{Anchor, TableTime};
use super::memory::{CacheLines, fetch};
use super::rate_cell::IntervalTable;
use super::shard::{LineLayout, Shard, ShardInterleaving};
use super::slot::{CacheLine, SLOTS, Slot, select_slot};
use crate::sharding::ShardLayout;
use crate::sync::Padded;

/// Fewest keys worth a shard of their own.
const SHARD_KEYS: usize = 16_384;
/// Most shards: enough that threads rarely meet at one lock.
const MAX_SHARDS: usize = 64;
/// Cache lines are split so that at most this part of their slots holds keys: 69 %, 23.2 bytes a key.
const FILL_PERCENT: usize = 69;
/// The same for the keys of one shard: few enough that memory doesn't matter, and so few to a line
/// that threads seldom meet at one for the sake of different keys. A model has no time for many
/// lines.
const SMALL_FILL_PERCENT: usize = if cfg!(any(loom, shuttle)) { 69 } else { 12 };

/// A table for a number of keys.
#[derive(Debug)]
pub(crate) struct Table {
    /// The lines of all shards, which take turns: so those in use lie together, and large pages
    /// hold no more than those.
    lines: Arc<CacheLines>,
    shards: Box<[Padded<Shard>]>,
    intervals: Arc<IntervalTable>,
    turns: ShardInterleaving,
    /// Times are counted from here.
    anchor: Anchor,
}

/// Where a key may be.
#[derive(Clone, Copy)]
pub(crate) struct Candidates<'a> {
    pub(crate) shard: &'a Shard,
    lines: [&'a CacheLine; 2],
}

impl<'a> Candidates<'a> {
    /// Starts to bring the lines into the cache.
    #[inline(always)]
    pub(crate) fn prefetch(&self) {
        self.lines.into_iter().for_each(fetch);
    }

    /// The key's slot, if it is in one of the two lines, or else another key's: charging it with
    /// [`QuotaShard::try_pass`] tells. Both lines are compared before anything depends on it, so that
    /// the two waits for memory overlap.
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

    /// The intervals that keys were asked at.
    #[inline(always)]
    pub(crate) fn intervals(&self) -> &IntervalTable {
        &self.intervals
    }

    /// Where a key may be: its shard, and its two lines there.
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

    /// A time as the words count it.
    #[inline(always)]
    pub(crate) fn table_time(&self, now: Timestamp) -> TableTime {
        match self.anchor.time_if_near(now) {
            Some(moment) => moment,
            None => self.table_time_when_far(now),
        }
    }

    /// The same for a waiter whose turn came at this time, which may be long ago. That must not look like a clock that
    /// was set back, so the time is moved forward until it doesn't.
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

    /// The same time, after all words have followed a clock that was set back by far since this shard was
    /// charged, if it was.
    #[inline]
    pub(crate) fn follow_clock(&self, shard: &Shard, moment: TableTime) -> TableTime {
        // A guess, as the anchor may just have moved: under the locks it is looked at again.
        let ahead = shard
            .high_water()
            .saturating_sub(units::from_time(moment.now));
        if ahead <= self.intervals.longest_reach() {
            return moment;
        }
        self.follow_back(moment.clock());
        self.anchor.rebase(moment)
    }

    /// Lets all words follow a clock that was set back to this time by far, if it was. As
    /// [`move_anchor`](Self::move_anchor), seldom.
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

    /// Lets all words count from close behind this time. No other thread holds more than one of these locks, so
    /// taking all of them in order can't deadlock.
    fn move_anchor(&self, now: Timestamp) {
        let locks: Vec<_> = self.shards().map(Shard::lock).collect();
        self.anchor.move_forward(now, |by| {
            self.shards().for_each(|shard| shard.move_words(by));
            self.intervals.move_shared(|word| word.moved(by));
        });
        drop(locks);
    }

    /// The bytes that all shards may come to use.
    pub(crate) fn reserved_bytes(&self) -> usize {
        let stashed: usize = self.shards().map(Shard::stash_lines).sum();
        (self.lines.len() + stashed) * size_of::<CacheLine>() + size_of::<IntervalTable>()
    }
}
