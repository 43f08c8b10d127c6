//! Randomness from a seed: the same numbers in every run, for algorithms that probe and for
//! simulations.

use std::hash::{BuildHasher, RandomState};

/// A pseudo-random number generator with one word of state (SplitMix64).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SplitMix64(u64);

impl SplitMix64 {
    pub(crate) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        mix_bits(self.0)
    }

    /// A number from 0 up to, but excluding, 1.
    #[expect(
        clippy::cast_precision_loss,
        reason = "53 bits are what a double holds exactly"
    )]
    pub(crate) fn next_fraction(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }
}

/// A seed that differs between the processes of a fleet, whenever and wherever they start, and between
/// calls in one process.
pub(crate) fn random_seed() -> u64 {
    RandomState::new().hash_one(0)
}

/// Mixes the bits of a word, so that each depends on all of them.
pub(crate) const fn mix_bits(word: u64) -> u64 {
    let word = (word ^ (word >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    word ^ (word >> 31)
}
