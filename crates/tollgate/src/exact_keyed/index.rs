//! From a key's hash to the number of its slot: open addressing in one array that never grows.

/// The part of a word that is the slot's number, plus one; zero marks an empty place.
const NUMBER_BITS: u32 = 32;

/// Where the keys of one shard are.
///
/// The array has at least two places a key from the start (untouched memory costs nothing), so no
/// insert ever pays for a rehash, and searches stay short.
#[derive(Debug)]
pub(crate) struct Index {
    /// The low half of a hash, and a slot's number.
    words: Box<[u64]>,
    mask: usize,
}

impl Index {
    /// Room for this many keys.
    pub(crate) fn new(keys: usize) -> Self {
        let places = keys.saturating_mul(2).next_power_of_two().max(4);
        Self {
            words: vec![0; places].into_boxed_slice(),
            mask: places - 1,
        }
    }

    /// The slot whose hash is this one and that `is` the key's.
    #[inline]
    pub(crate) fn find(&self, hash: u64, is: impl Fn(u32) -> bool) -> Option<u32> {
        let tag = tag(hash);
        let mut place = self.home(tag);
        loop {
            let word = self.words[place];
            if word == 0 {
                return None;
            }
            if word >> NUMBER_BITS == tag && is(number(word)) {
                return Some(number(word));
            }
            place = (place + 1) & self.mask;
        }
    }

    /// Adds a slot that isn't there. The caller keeps to the number of keys it asked room for.
    pub(crate) fn insert(&mut self, hash: u64, slot: u32) {
        let tag = tag(hash);
        let mut place = self.home(tag);
        while self.words[place] != 0 {
            place = (place + 1) & self.mask;
        }
        self.words[place] = tag << NUMBER_BITS | (u64::from(slot) + 1);
    }

    /// Takes a slot out again.
    pub(crate) fn remove(&mut self, hash: u64, slot: u32) {
        let wanted = tag(hash) << NUMBER_BITS | (u64::from(slot) + 1);
        let mut hole = self.home(tag(hash));
        while self.words[hole] != wanted {
            if self.words[hole] == 0 {
                return;
            }
            hole = (hole + 1) & self.mask;
        }
        // What follows moves up unless that would put it before its home, so that no search ever
        // stops short and no marks of removed keys pile up.
        let mut next = (hole + 1) & self.mask;
        while self.words[next] != 0 {
            let from_home = next.wrapping_sub(self.home(self.words[next] >> NUMBER_BITS));
            let from_hole = next.wrapping_sub(hole);
            if from_home & self.mask >= from_hole & self.mask {
                self.words[hole] = self.words[next];
                hole = next;
            }
            next = (next + 1) & self.mask;
        }
        self.words[hole] = 0;
    }

    #[inline]
    fn home(&self, tag: u64) -> usize {
        usize::try_from(tag).unwrap_or(0) & self.mask
    }
}

#[inline]
fn tag(hash: u64) -> u64 {
    hash & ((1 << NUMBER_BITS) - 1)
}

#[inline]
fn number(word: u64) -> u32 {
    u32::try_from((word & ((1 << NUMBER_BITS) - 1)) - 1).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_inserted_is_found_until_it_is_removed() {
        // Hashes that crowd around the end of the array, so that searches wrap.
        let mut index = Index::new(8);
        let hash = |slot: u32| 13 + u64::from(slot % 4);
        for round in 0..100 {
            for slot in 0..8 {
                index.insert(hash(slot), slot);
            }
            for removed in 0..8 {
                let removed = (removed * 3 + round) % 8;
                assert_eq!(index.find(hash(removed), |s| s == removed), Some(removed));
                index.remove(hash(removed), removed);
                assert_eq!(index.find(hash(removed), |s| s == removed), None);
            }
            assert!(index.words.iter().all(|word| *word == 0));
        }
    }
}
