//! From a key to its fingerprint, by a hash with a secret seed.

use std::hash::{BuildHasher, Hash, RandomState};

use foldhash::quality::FixedState;

/// A seeded hash. The seed is kept so that a snapshot can carry it.
#[derive(Clone, Debug)]
pub(crate) struct KeyHasher {
    state: FixedState,
    seed: u64,
}

impl KeyHasher {
    /// A hash that nobody outside can know.
    pub(crate) fn random() -> Self {
        // std seeds this from the operating system; a model must run the same way every time.
        Self::with_seed(if cfg!(any(loom, shuttle)) {
            0
        } else {
            RandomState::new().hash_one(0)
        })
    }

    pub(crate) fn with_seed(seed: u64) -> Self {
        Self {
            state: FixedState::with_seed(seed),
            seed,
        }
    }

    pub(crate) fn seed(&self) -> u64 {
        self.seed
    }

    /// Never zero, which marks an empty slot.
    #[inline]
    pub(crate) fn fingerprint<K: Hash + ?Sized>(&self, key: &K) -> u64 {
        self.state.hash_one(key).max(1)
    }
}
