//! Linear hashing: how many lines are in use, and which of them a key may be in.

use crate::table::hasher::KEY_BITS;

/// How many lines a shard uses: `base` of the table's lines are open to it at the start of a round,
/// and of those the ones below `split` have been split in two.
///
/// Cache lines grow one by one, never all at once: a key's line number is its hash modulo `base`, or
/// modulo twice that if its line was split in this round. Shards take turns line by line, so a
/// line's number modulo the number of shards is its shard's, and `base` and `split` go by as many
/// at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    base: u64,
    split: u64,
}

/// How many shards take turns: a power of two, kept as the mask of what does not tell a key's shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Turns(u64);

impl Turns {
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

impl Shape {
    /// A shard of one line.
    pub(crate) const fn smallest(turns: Turns) -> Self {
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
    pub(crate) const fn grown(self, turns: Turns) -> (Self, usize, usize) {
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
    pub(crate) const fn lines_of(self, fingerprint: u64, turns: Turns) -> [usize; 2] {
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
        let turns = Turns::new(64);
        let mut shape = Shape::smallest(turns);
        while shape.lines() < 1 << 32 {
            let shapes = [shape, Shape { split: 64, ..shape }];
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
            let turns = Turns::new(shards);
            let mut shape = Shape::smallest(turns);
            for _ in 0..1_000 {
                let (next, from, to) = shape.grown(turns);
                assert_eq!(to as u64, shape.lines());
                assert_eq!(next.lines(), shape.lines() + shards as u64);
                assert_eq!(Shape::from_word(next.to_word()), next);
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
