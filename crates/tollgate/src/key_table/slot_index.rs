//! The index from a key's hash to the number of its slot: open addressing in one small array.

/// The part of a word that is the slot's number plus one. Zero marks an empty place.
const NUMBER_BITS: u32 = 32;
const FEWEST_PLACES: usize = 16;

/// The index of the keys of one shard.
///
/// A key's home place is its tag's proportional position in the array, so the array may have any length: it grows by
/// half, up to four places for three keys. A word has all the data that is needed to grow the array, so growth reads no
/// keys.
#[derive(Debug)]
#[cfg_attr(test, derive(Clone))]
pub(crate) struct SlotIndex {
    /// The low half of a hash, and the number of a slot.
    words: Vec<u64>,
    used: usize,
    most_places: usize,
}

impl SlotIndex {
    /// An index with room for up to this many keys; it grows as they come.
    pub(crate) fn new(keys: usize) -> Self {
        Self {
            words: Vec::new(),
            used: 0,
            most_places: Self::places(keys),
        }
    }

    /// The bytes of a full index of this many keys.
    pub(crate) const fn bytes(keys: usize) -> usize {
        Self::places(keys) * size_of::<u64>()
    }

    /// Four places for three keys, and one that stays empty, so that every search ends.
    const fn places(keys: usize) -> usize {
        keys + keys.div_ceil(3) + 1
    }

    /// The slot with this tag for which `is` returns true.
    #[inline]
    pub(crate) fn find(&self, tag: u32, is: impl Fn(u32) -> bool) -> Option<u32> {
        let mut place = self.home_place(tag);
        loop {
            // An index that never held a key has no places.
            let word = *self.words.get(place)?;
            if word == 0 {
                return None;
            }
            if word >> NUMBER_BITS == u64::from(tag) && is(number(word)) {
                return Some(number(word));
            }
            place = self.next_place(place);
        }
    }

    /// Adds a slot that isn't in the index. The caller must not exceed the number of keys given to `new`.
    pub(crate) fn insert(&mut self, tag: u32, slot: u32) {
        if self.used + self.used.div_ceil(3) + 1 >= self.words.len() {
            self.grow();
        }
        self.used += 1;
        self.put(word(tag, slot));
    }

    /// Removes a slot.
    pub(crate) fn remove(&mut self, tag: u32, slot: u32) {
        let wanted = word(tag, slot);
        let mut hole = self.home_place(tag);
        while self.words[hole] != wanted {
            if self.words[hole] == 0 {
                return;
            }
            hole = self.next_place(hole);
        }
        self.used -= 1;
        // Later words move up, unless that would put one before its home place. So no search stops early, and no
        // tombstones of removed keys accumulate.
        let mut next = self.next_place(hole);
        while self.words[next] != 0 {
            let home = self.home_place(tag_of(self.words[next]));
            if self.distance(home, next) >= self.distance(hole, next) {
                self.words[hole] = self.words[next];
                hole = next;
            }
            next = self.next_place(next);
        }
        self.words[hole] = 0;
    }

    fn grow(&mut self) {
        let length = self.words.len();
        let longer = (length + length / 2).max(FEWEST_PLACES);
        // Never more than the full index needs, but at least one place more, so that growth always makes room.
        let longer = longer.min(self.most_places).max(length + 1);
        for word in std::mem::replace(&mut self.words, vec![0; longer]) {
            if word != 0 {
                self.put(word);
            }
        }
    }

    fn put(&mut self, word: u64) {
        let mut place = self.home_place(tag_of(word));
        while self.words[place] != 0 {
            place = self.next_place(place);
        }
        self.words[place] = word;
    }

    /// The tag's home place in the array.
    #[inline]
    fn home_place(&self, tag: u32) -> usize {
        // A multiplication and a shift instead of a modulo: faster, and right for any length.
        let scaled = u64::from(tag).wrapping_mul(self.words.len() as u64);
        usize::try_from(scaled >> NUMBER_BITS).unwrap_or(0)
    }

    #[inline]
    fn next_place(&self, place: usize) -> usize {
        if place + 1 == self.words.len() {
            0
        } else {
            place + 1
        }
    }

    /// The number of places from `from` to `to`, with wrap-around.
    fn distance(&self, from: usize, to: usize) -> usize {
        if to >= from {
            to - from
        } else {
            to + self.words.len() - from
        }
    }
}

/// The part of a hash that finds a key in its shard. The other half selects the shard.
#[inline]
pub(crate) fn tag(hash: u64) -> u32 {
    tag_of(hash << NUMBER_BITS)
}

#[inline]
fn tag_of(word: u64) -> u32 {
    u32::try_from(word >> NUMBER_BITS).unwrap_or(0)
}

#[inline]
fn word(tag: u32, slot: u32) -> u64 {
    u64::from(tag) << NUMBER_BITS | (u64::from(slot) + 1)
}

#[inline]
fn number(word: u64) -> u32 {
    u32::try_from((word & ((1 << NUMBER_BITS) - 1)) - 1).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tollgate_testkit::traffic::Random;

    #[test]
    fn what_is_inserted_is_found_until_it_is_removed() {
        // Tags that collide around the end of the array, so that searches wrap.
        let mut index = SlotIndex::new(8);
        let tag = |slot: u32| u32::MAX - slot % 4;
        for round in 0..100 {
            for slot in 0..8 {
                index.insert(tag(slot), slot);
            }
            for removed in 0..8 {
                let removed = (removed * 3 + round) % 8;
                assert_eq!(index.find(tag(removed), |s| s == removed), Some(removed));
                index.remove(tag(removed), removed);
                assert_eq!(index.find(tag(removed), |s| s == removed), None);
            }
            assert!(index.words.iter().all(|word| *word == 0));
        }
    }

    #[test]
    fn it_grows_to_its_bound_and_keeps_every_key() {
        let keys = 3_000;
        let mut random = Random::new(3);
        let tags: Vec<u32> = (0..keys)
            .map(|_| u32::try_from(random.below(1 << 32)).unwrap())
            .collect();
        let mut index = SlotIndex::new(keys);
        assert_eq!(index.find(7, |_| true), None);
        for (slot, tag) in (0..).zip(&tags) {
            index.insert(*tag, slot);
            assert!(index.words.len() <= index.most_places);
        }
        assert!(index.words.capacity() * 8 <= SlotIndex::bytes(keys));
        for (slot, tag) in (0..).zip(&tags) {
            assert_eq!(index.find(*tag, |s| s == slot), Some(slot));
        }
    }
}
