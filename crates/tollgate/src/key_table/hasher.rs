//! The fingerprint of a key: a hash with a secret seed.

use std::hash::{BuildHasher, Hash, Hasher, RandomState};

use foldhash::SharedSeed;
use foldhash::quality::FoldHasher;

/// The position of the tag in a fingerprint: above the bits that identify a key.
pub(crate) const TAG_SHIFT: u32 = 54;

/// The bits of a fingerprint that identify the key.
pub(crate) const KEY_BITS: u64 = (1 << TAG_SHIFT) - 1;

/// A seeded hash. The seed is stored so that a snapshot can include it.
///
/// The seed determines all factors of the hash. If a factor were known, as those of `FixedState` are, a part of a key
/// could make it zero, which would remove the rest of the key from the hash, and anyone could construct keys that share
/// a fingerprint.
#[derive(Clone, Debug)]
pub(crate) struct KeyHasher {
    start: u64,
    factors: SharedSeed,
    seed: u64,
}

impl KeyHasher {
    /// A hash with a random seed, which nobody outside can know.
    pub(crate) fn random() -> Self {
        // std seeds this from the operating system. A model must run the same way every time, and the keys of
        // `loom/tests/keyed.rs` collide as it expects only with this seed.
        Self::with_seed(if cfg!(any(loom, shuttle)) {
            105
        } else {
            RandomState::new().hash_one(0)
        })
    }

    pub(crate) fn with_seed(seed: u64) -> Self {
        let factors = SharedSeed::from_u64(seed);
        Self {
            // Hashed once more, so that it is independent of the factors.
            start: FoldHasher::with_seed(seed, &factors).finish(),
            factors,
            seed,
        }
    }

    pub(crate) fn seed(&self) -> u64 {
        self.seed
    }

    /// Never zero, with any tag, because zero marks an empty slot.
    #[inline(always)]
    pub(crate) fn fingerprint<K: Hash + ?Sized>(&self, key: &K) -> u64 {
        let mut hasher = FoldHasher::with_seed(self.start, &self.factors);
        key.hash(&mut hasher);
        let hash = hasher.finish();
        hash | u64::from(hash & KEY_BITS == 0)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    /// The default constants of foldhash.
    const KNOWN: [u64; 6] = [
        0xc0ac_29b7_c97c_50dd,
        0x3f84_d5b5_b547_0917,
        0x9216_d5d9_8979_fb1b,
        0xd131_0ba6_98df_b5ac,
        0x2ffd_72db_d01a_dfb7,
        0xb8e1_afed_6a26_7e96,
    ];

    #[test]
    fn no_part_of_a_key_takes_the_rest_out_of_the_hash() {
        let hasher = KeyHasher::random();
        for known in KNOWN {
            let distinct = |of: &dyn Fn(u64) -> u64| {
                let prints: HashSet<u64> = (0..1_000).map(of).collect();
                prints.len()
            };
            // An address of 16 bytes, two numbers, and a key with a repeated tail.
            let address = |n: u64| u128::from(known) << 64 | u128::from(n);
            let bytes = |n: u64| [n.to_ne_bytes(), known.to_ne_bytes()].concat();
            let long =
                |n: u64| [n.to_ne_bytes(), known.to_ne_bytes(), known.to_ne_bytes()].concat();
            assert_eq!(distinct(&|n| hasher.fingerprint(&address(n))), 1_000);
            assert_eq!(distinct(&|n| hasher.fingerprint(&(n, known))), 1_000);
            assert_eq!(distinct(&|n| hasher.fingerprint(&bytes(n)[..])), 1_000);
            assert_eq!(distinct(&|n| hasher.fingerprint(&long(n)[..])), 1_000);
        }
    }

    #[test]
    fn a_seed_tells_all_and_another_seed_is_another_hash() {
        let print = |seed| KeyHasher::with_seed(seed).fingerprint("user:42");
        assert_eq!(print(7), print(7));
        let prints: HashSet<u64> = (0..1_000).map(print).collect();
        assert_eq!(prints.len(), 1_000);
    }

    #[test]
    fn numbers_pairs_and_texts_are_told_apart_whatever_the_seed() {
        for seed in (0..100u64).map(|n| n.wrapping_mul(0x9E37_79B9_7F4A_7C15)) {
            let hasher = KeyHasher::with_seed(seed.max(1));
            let pairs = (0..4u64).flat_map(|a| (1..=1_000u64).map(move |b| (a, b)));
            let mut prints: HashSet<u64> = pairs.map(|pair| hasher.fingerprint(&pair)).collect();
            prints.extend((0..1_000u64).map(|n| hasher.fingerprint(&n)));
            prints.extend((0..1_000u64).map(|n| hasher.fingerprint(&format!("user:{n}"))));
            assert_eq!(prints.len(), 6_000, "{seed:x}");
        }
    }
}
