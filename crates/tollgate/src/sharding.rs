//! The number of shards of a key table, the keys per shard, and the shard of a key: one definition for all tables.

/// A table divided into shards, each with a lock of its own.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ShardLayout {
    /// The number of shards: a power of two.
    pub(crate) count: usize,
    /// The number of keys per shard.
    pub(crate) capacity_per_shard: usize,
    /// Shifts a hash so that its top bits are the number of a shard.
    shift: u32,
}

impl ShardLayout {
    /// A layout for this many keys, with `shard_keys` or more in each shard, and at most `most` shards: enough that
    /// threads rarely contend for one lock.
    pub(crate) fn for_threads(capacity: usize, shard_keys: usize, most: usize) -> Self {
        Self::new(capacity, (capacity / shard_keys).clamp(1, most))
    }

    /// A layout for this many keys, in at least `least` shards.
    pub(crate) fn new(capacity: usize, least: usize) -> Self {
        let count = least.next_power_of_two();
        // Keys are spread over shards at random, so a shard may get more than its share. Exceeding it by six standard
        // deviations practically never happens.
        let share = capacity.div_ceil(count);
        let spread = if count == 1 { 0 } else { 6 * share.isqrt() };
        Self {
            count,
            capacity_per_shard: share.saturating_add(spread),
            shift: (u64::BITS - count.trailing_zeros()) % u64::BITS,
        }
    }

    /// The shard of a key with this hash.
    #[inline]
    pub(crate) fn shard_of(&self, hash: u64) -> usize {
        // With one shard the mask is zero, so the shift doesn't matter.
        usize::try_from(hash >> self.shift).unwrap_or(0) & (self.count - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_hash_is_in_a_shard_and_all_shards_are_used() {
        for least in [1, 2, 5, 256] {
            let shards = ShardLayout::new(1_000_000, least);
            let number = |part: usize| shards.shard_of((part as u64) << (u64::BITS - 8));
            let mut used: Vec<usize> = (0..256).map(number).collect();
            used.sort_unstable();
            used.dedup();
            assert_eq!(used, (0..least.next_power_of_two()).collect::<Vec<_>>());
        }
    }

    #[test]
    fn one_shard_takes_the_capacity_and_several_have_room_to_spare() {
        assert_eq!(
            ShardLayout::for_threads(1_000, 1_024, 256).capacity_per_shard,
            1_000
        );
        let many = ShardLayout::for_threads(1_000_000, 1_024, 256);
        assert_eq!(many.count, 256);
        assert_eq!(many.capacity_per_shard, 3_907 + 6 * 62);
        assert_eq!(ShardLayout::for_threads(usize::MAX, 1, 64).count, 64);
    }
}
