//! The hashes that identify keys in memory.

use std::hash::{BuildHasher, Hasher, RandomState};

use foldhash::SharedSeed;
use foldhash::fast;
use foldhash::quality::FoldHasher;

/// Two hashes with secret seeds, so that an attacker can't construct keys that collide.
///
/// Their factors come from the seeds too. If a factor were known, a part of a key could be chosen to make it zero,
/// and would remove the rest of the key from the hash.
#[derive(Clone, Debug)]
pub(crate) struct KeyHashers {
    both: [(u64, SharedSeed); 2],
    /// The seeds of both hashes, so that a snapshot can store them.
    seeds: [u64; 4],
}

impl KeyHashers {
    pub(crate) fn random() -> Self {
        let random = RandomState::new();
        Self::with_seeds([0, 1, 2, 3].map(|number: u64| random.hash_one(number)))
    }

    /// The same hashes for the same seed, for tests.
    pub(crate) fn seeded(seed: u64) -> Self {
        let fixed = fast::FixedState::with_seed(seed);
        Self::with_seeds([0, 1, 2, 3].map(|number: u64| fixed.hash_one(number)))
    }

    pub(crate) fn with_seeds(seeds: [u64; 4]) -> Self {
        let [low_factors, high_factors, low, high] = seeds;
        Self {
            both: [(low, low_factors), (high, high_factors)]
                .map(|(start, factors)| (start, SharedSeed::from_u64(factors))),
            seeds,
        }
    }

    pub(crate) fn seeds(&self) -> [u64; 4] {
        self.seeds
    }

    /// The hashes of two sample keys by this build. A build with another hash function gives other numbers.
    pub(crate) fn probes(&self) -> [u64; 4] {
        let long = "a tenant and a route that are longer than a line";
        let [low, high] = self.of_text("tollgate");
        let [fed_low, fed_high] = self.feed(|put| put(long.as_bytes()));
        [low, high, fed_low, fed_high]
    }

    /// The fingerprint of the bytes that `feed` passes on, piece by piece.
    pub(crate) fn feed(&self, feed: impl FnOnce(&mut dyn FnMut(&[u8]))) -> [u64; 2] {
        let [mut low, mut high] = self.start();
        feed(&mut |piece| {
            low.write(piece);
            high.write(piece);
        });
        [low.finish(), high.finish()]
    }

    /// The fingerprint of a one-text key, for a limit outside a policy.
    /// [`KeyPlan::fingerprint`](super::KeyPlan::fingerprint) gives another fingerprint for the same text. The two
    /// never meet, since each counter uses only one of them.
    #[inline]
    pub(crate) fn of_text(&self, text: &str) -> [u64; 2] {
        self.start().map(|mut hasher| {
            hasher.write_u64(text.len() as u64);
            hasher.write(text.as_bytes());
            hasher.finish()
        })
    }

    #[inline]
    pub(super) fn start(&self) -> [impl Hasher; 2] {
        let [(low, low_factors), (high, high_factors)] = &self.both;
        [
            FoldHasher::with_seed(*low, low_factors),
            FoldHasher::with_seed(*high, high_factors),
        ]
    }
}
