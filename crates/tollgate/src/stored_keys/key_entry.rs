//! The content of one slot of a shard.

use std::num::NonZeroU32;
use std::sync::Arc;

use tollgate_core::{Arithmetic, Ledger};

/// A key and its state. The limit is the shard's, unless the key is at a tier.
#[derive(Debug)]
pub(super) struct KeyEntry<K, A: Arithmetic> {
    pub(super) key: K,
    pub(super) ledger: Ledger<A>,
    /// The tier under which its state counts; `None` for the limiter's own rate.
    pub(super) tier: Option<Arc<A>>,
    /// The part of its hash by which the index finds it.
    pub(super) tag: u32,
    /// Distinguishes this entry from an earlier entry of the same key. It wraps after four billion new keys of a shard,
    /// far more than come while a reservation exists.
    pub(super) birth: NonZeroU32,
    /// The version of the limiter's own rate that its state follows.
    pub(super) rate_version: u32,
    pub(super) place: HeapPosition,
}

/// The position of an entry in its heap, which heap that is, and whether its limit came with a call; in one word.
#[derive(Clone, Copy, Debug)]
pub(super) struct HeapPosition(u32);

impl HeapPosition {
    /// In the heap of blocked keys.
    const BLOCKED: u32 = 1 << 31;
    /// Its limit came with a call; otherwise it is the limiter's rate, or the tier that its function selects.
    const FROM_CALL: u32 = 1 << 30;
    const FLAGS: u32 = Self::BLOCKED | Self::FROM_CALL;

    /// In no heap yet.
    pub(super) const fn new(is_given: bool) -> Self {
        Self(0).with_from_call(is_given)
    }

    pub(super) const fn number(self) -> u32 {
        self.0 & !Self::FLAGS
    }

    pub(super) const fn is_blocked(self) -> bool {
        self.0 & Self::BLOCKED != 0
    }

    pub(super) const fn is_from_call(self) -> bool {
        self.0 & Self::FROM_CALL != 0
    }

    /// The same position, with the flag whether its limit came with a call.
    pub(super) const fn with_from_call(self, is_given: bool) -> Self {
        self.with(Self::FROM_CALL, is_given)
    }

    /// The same position in the heap of blocked keys, or of the others.
    pub(super) const fn with_blocked(self, is_guarded: bool) -> Self {
        self.with(Self::BLOCKED, is_guarded)
    }

    const fn with(self, flag: u32, is_set: bool) -> Self {
        Self(if is_set {
            self.0 | flag
        } else {
            self.0 & !flag
        })
    }

    /// The same entry at this position of its heap.
    pub(super) const fn at(self, number: u32) -> Self {
        Self(self.0 & Self::FLAGS | number & !Self::FLAGS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tollgate_core::Gcra;

    #[test]
    fn a_slot_of_gcra_is_five_words_and_the_key() {
        // The birth is never zero, so `Option` needs no word of its own to mark a free slot.
        assert_eq!(size_of::<Option<KeyEntry<u64, Gcra>>>(), 6 * 8);
    }

    #[test]
    fn flags_and_number_stay_apart() {
        let place = HeapPosition::new(true).at(77).with_blocked(true);
        assert_eq!((place.number(), place.is_from_call()), (77, true));
        assert!(place.at(3).is_blocked() && !place.with_blocked(false).is_blocked());
        assert_eq!(place.with_blocked(false).with_from_call(false).0, 77);
    }
}
