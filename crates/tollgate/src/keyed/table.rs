//! All shards of one limiter, and the time they count from.

use tollgate_core::Timestamp;

use super::shard::{Answer, Need, Shard};
use super::slot::Ask;
use crate::sync::Padded;

/// Fewest keys worth a shard of their own.
const SHARD_KEYS: usize = 16_384;
/// Most shards: enough that threads rarely meet at one lock.
const MOST_SHARDS: usize = 64;
/// Times are counted up to here, four and a half years, because one bit of a word is a flag.
const LAST_NANO: u64 = (1 << 57) - 1;

/// A table for a number of keys.
#[derive(Debug)]
pub(crate) struct Table {
    shards: Box<[Padded<Shard>]>,
    /// Shifts half a fingerprint so that its top bits are a shard's number.
    shift: u32,
    /// Times are counted from here.
    anchor: Timestamp,
}

impl Table {
    pub(crate) fn new(capacity: usize, anchor: Timestamp) -> Self {
        let count = (capacity / SHARD_KEYS)
            .clamp(1, MOST_SHARDS)
            .next_power_of_two();
        // Keys spread over shards at random, so a shard may get more than its share: six standard
        // deviations more are as good as never.
        let share = capacity.div_ceil(count);
        let spread = if count == 1 { 0 } else { 6 * share.isqrt() };
        Self {
            shards: (0..count)
                .map(|_| Padded(Shard::new(share + spread)))
                .collect(),
            shift: u64::BITS - 1 - count.trailing_zeros(),
            anchor,
        }
    }

    #[inline(always)]
    pub(crate) fn shard(&self, fingerprint: u64) -> &Shard {
        // In two steps, because a single shard leaves no bit.
        let number = fingerprint >> 1 >> self.shift;
        &self.shards[usize::try_from(number).unwrap_or(0)].0
    }

    pub(crate) fn shards(&self) -> impl Iterator<Item = &Shard> {
        self.shards.iter().map(|shard| &shard.0)
    }

    pub(crate) fn charge(&self, ask: &Ask, need: Need) -> Answer {
        self.shard(ask.fingerprint).charge(ask, need)
    }

    /// A time as the words count it: from 1 ns at the anchor.
    #[inline(always)]
    pub(crate) fn since_anchor(&self, now: Timestamp) -> Timestamp {
        let nanos = now.nanos_since(self.anchor).min(LAST_NANO - 1);
        Timestamp::from_nanos(nanos + 1)
    }

    /// The bytes that all shards may come to use.
    pub(crate) fn reserved_bytes(&self) -> usize {
        self.shards().map(Shard::reserved_bytes).sum()
    }
}
