//! Finds which of many prefixes a text begins with. A rolling hash continues from each prefix length to the next, so
//! the text is read once.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use foldhash::fast::FixedState;

use super::inline_vec::InlineVec;

/// Prefixes by length and hash.
#[derive(Debug, Default)]
pub(super) struct PrefixTable {
    /// The lengths of all prefixes, ascending and without duplicates.
    lengths: Box<[usize]>,
    buckets: Buckets,
}

/// Numbers of rules by a hash. Rules with colliding hashes are told apart when their conditions are checked.
#[derive(Debug, Default)]
pub(super) struct Buckets {
    /// The first number, and the index of the other numbers plus one; 0 if there are no others. Most hashes have one
    /// rule, and these need no second lookup.
    first: HashMap<u64, (u32, u32), BuildHasherDefault<IdentityHasher>>,
    others: Vec<Box<[u32]>>,
}

/// A hasher for keys that are hashes already: it returns the key.
#[derive(Default)]
struct IdentityHasher(u64);

impl Hasher for IdentityHasher {
    #[inline]
    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }

    fn write(&mut self, bytes: &[u8]) {
        let word = bytes
            .iter()
            .fold(0, |word, byte| word << 8 | u64::from(*byte));
        self.0 = mix_word(self.0, word);
    }

    #[inline]
    fn finish(&self) -> u64 {
        self.0
    }
}

impl Buckets {
    pub(super) fn new(pairs: impl Iterator<Item = (u64, u32)>) -> Self {
        let mut all: HashMap<u64, Vec<u32>, FixedState> = HashMap::default();
        for (hash, number) in pairs {
            all.entry(hash).or_default().push(number);
        }
        let mut buckets = Self::default();
        buckets.first.reserve(all.len());
        for (hash, numbers) in all {
            let (first, others) = (numbers[0], &numbers[1..]);
            let mut place = 0;
            if !others.is_empty() {
                buckets.others.push(others.into());
                place = u32::try_from(buckets.others.len()).unwrap_or(0);
            }
            buckets.first.insert(hash, (first, place));
        }
        buckets
    }

    pub(super) fn is_empty(&self) -> bool {
        self.first.is_empty()
    }

    #[inline]
    pub(super) fn each<const N: usize>(&self, hash: u64, found: &mut InlineVec<u32, N>) {
        if let Some((first, place)) = self.first.get(&hash) {
            found.push(*first);
            if let Some(place) = (*place as usize).checked_sub(1) {
                self.others[place]
                    .iter()
                    .for_each(|other| found.push(*other));
            }
        }
    }
}

impl PrefixTable {
    pub(super) fn new(pairs: &[(Box<str>, u32)]) -> Self {
        let mut lengths: Vec<_> = pairs.iter().map(|(prefix, _)| prefix.len()).collect();
        lengths.sort_unstable();
        lengths.dedup();
        // A prefix is cut at the same lengths as a text, because the pieces decide the hash.
        let hashes = pairs.iter().map(|(prefix, number)| {
            let mut whole = 0;
            prefix_hashes(&lengths, prefix.as_bytes(), |hash| whole = hash);
            (whole, *number)
        });
        let buckets = Buckets::new(hashes);
        Self {
            lengths: lengths.into(),
            buckets,
        }
    }

    /// Adds the rules of every prefix of this text.
    #[inline]
    pub(super) fn each<const N: usize>(&self, text: &str, found: &mut InlineVec<u32, N>) {
        prefix_hashes(&self.lengths, text.as_bytes(), |hash| {
            self.buckets.each(hash, found);
        });
    }
}

/// Calls `each` with the hash of the text's prefix of each length, up to the length of the text.
#[inline]
fn prefix_hashes(lengths: &[usize], text: &[u8], mut each: impl FnMut(u64)) {
    let (mut hash, mut start) = (0x9E37_79B9_7F4A_7C15, 0);
    for length in lengths {
        let Some(part) = text.get(start..*length) else {
            return;
        };
        let (words, rest) = part.as_chunks::<8>();
        for word in words {
            hash = mix_word(hash, u64::from_le_bytes(*word));
        }
        if !rest.is_empty() {
            let last = rest
                .iter()
                .fold(1, |word, byte| word << 8 | u64::from(*byte));
            hash = mix_word(hash, last);
        }
        // A short last word is padded, so the length is mixed in to tell it from a longer word.
        each(hash ^ *length as u64);
        start = *length;
    }
}

#[inline]
fn mix_word(hash: u64, word: u64) -> u64 {
    let product = u128::from(hash ^ word) * 0xD6E8_FEB8_6659_FD93;
    #[expect(clippy::cast_possible_truncation, reason = "both halves are mixed")]
    {
        (product >> 64) as u64 ^ product as u64
    }
}
