//! Linear hashing: how many lines are in use, and which of them a key may be in.

/// How many lines a table uses: `base` of them at the start of a round, and of those the first
/// `split` have been split in two.
///
/// Lines grow one by one, never all at once: a key's line number is its hash modulo `base`, or
/// modulo twice that if its line was split in this round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    base: u64,
    split: u64,
}

impl Shape {
    /// A table of one line.
    pub(crate) const SMALLEST: Self = Self { base: 1, split: 0 };

    /// Most lines: 256 GiB of them.
    pub(crate) const MOST_LINES: usize = u32::MAX as usize;

    /// As one word: the split in the low half, and in the high half the mask that a check needs.
    pub(crate) const fn to_word(self) -> u64 {
        (self.base - 1) << 32 | self.split
    }

    #[inline(always)]
    pub(crate) const fn from_word(word: u64) -> Self {
        Self {
            base: (word >> 32) + 1,
            split: word & 0xFFFF_FFFF,
        }
    }

    pub(crate) const fn lines(self) -> u64 {
        self.base + self.split
    }

    /// The shape after one more line, the number of the line that is split for it, and its own.
    #[expect(
        clippy::cast_possible_truncation,
        reason = "a line number is below the number of lines, which are in memory"
    )]
    pub(crate) const fn grown(self) -> (Self, usize, usize) {
        let next = if self.split + 1 == self.base {
            Self {
                base: self.base * 2,
                split: 0,
            }
        } else {
            Self {
                split: self.split + 1,
                ..self
            }
        };
        (next, self.split as usize, self.lines() as usize)
    }

    /// The two lines that a key may be in, both computed from the fingerprint alone.
    #[inline]
    pub(crate) fn lines_of(self, fingerprint: u64) -> [usize; 2] {
        let second = fingerprint
            .wrapping_mul(0x9E37_79B9_7F4A_7C15)
            .rotate_left(32);
        [self.line_of(fingerprint), self.line_of(second)]
    }

    #[inline]
    #[expect(
        clippy::cast_possible_truncation,
        reason = "a line number is below the number of lines, which are in memory"
    )]
    fn line_of(self, hash: u64) -> usize {
        let short = hash & (self.base - 1);
        let line = if short < self.split {
            hash & (2 * self.base - 1)
        } else {
            short
        };
        line as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_split_moves_keys_only_between_the_line_and_its_new_half() {
        let mut shape = Shape::SMALLEST;
        for _ in 0..1_000 {
            let (next, from, to) = shape.grown();
            assert_eq!(to as u64, shape.lines());
            assert_eq!(next.lines(), shape.lines() + 1);
            assert_eq!(Shape::from_word(next.to_word()), next);
            for key in 0..200u64 {
                let fingerprint = key.wrapping_mul(0x1234_5678_9ABC_DEF1);
                let pairs = shape.lines_of(fingerprint).into_iter();
                for (before, after) in pairs.zip(next.lines_of(fingerprint)) {
                    assert!(after == before || (before == from && after == to));
                    assert!((after as u64) < next.lines());
                }
            }
            shape = next;
        }
    }
}
