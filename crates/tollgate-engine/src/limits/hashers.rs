//! The hashes by which keys are told apart in memory.

use std::hash::{BuildHasher, Hasher, RandomState};

use foldhash::SharedSeed;
use foldhash::fast;
use foldhash::quality::FoldHasher;

/// Two hashes with secret seeds, so that nobody can make keys that collide.
///
/// All that they multiply by comes from the seeds: were a factor known, a part of a key that makes it
/// zero would take the rest out of the hash.
#[derive(Clone, Debug)]
pub(crate) struct KeyHashers {
    both: [(u64, SharedSeed); 2],
    /// What they follow from, so that a snapshot can carry it.
    seeds: [u64; 4],
}

impl KeyHashers {
    pub(crate) fn random() -> Self {
        let random = RandomState::new();
        Self::with_seeds([0, 1, 2, 3].map(|number: u64| random.hash_one(number)))
    }

    /// For tests: always the same.
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

    /// What this build makes of two kinds of keys: another hash makes something else of them.
    pub(crate) fn probes(&self) -> [u64; 4] {
        let long = "a tenant and a route that are longer than a line";
        let [low, high] = self.of_text("tollgate");
        let [fed_low, fed_high] = self.feed(|put| put(long.as_bytes()));
        [low, high, fed_low, fed_high]
    }

    /// The fingerprint of what is fed, piece by piece.
    pub(crate) fn feed(&self, feed: impl FnOnce(&mut dyn FnMut(&[u8]))) -> [u64; 2] {
        let [mut low, mut high] = self.start();
        feed(&mut |piece| {
            low.write(piece);
            high.write(piece);
        });
        [low.finish(), high.finish()]
    }

    /// The fingerprint of a key of one text, of a limit of no policy. [`KeyPlan::fingerprint`](super::KeyPlan::fingerprint) makes another one of
    /// the same text; the two never meet, since a counter is asked about by one of them only.
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
