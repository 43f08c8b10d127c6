//! How often things happened, as allowed and denied: counted on the calling thread's own cache line.

use std::sync::atomic::AtomicU64;

use crate::stripes::Stripes;

/// Counts that only ever grow, spread so that threads don't share a line.
#[derive(Debug)]
pub(crate) struct Counters<const KINDS: usize = 2>(Stripes<[AtomicU64; KINDS]>);

impl<const KINDS: usize> Counters<KINDS> {
    pub(crate) fn new() -> Self {
        Self(Stripes::new(|| [const { AtomicU64::new(0) }; KINDS]))
    }

    #[inline(always)]
    pub(crate) fn add(&self, kind: usize) {
        self.add_several(kind, 1);
    }

    #[inline(always)]
    fn add_several(&self, kind: usize, several: u64) {
        self.0.add(|kinds| &kinds[kind], several);
    }

    /// How often this kind was counted so far.
    pub(crate) fn sum(&self, kind: usize) -> u64 {
        self.0.sum(|kinds| &kinds[kind])
    }
}

/// Denied and allowed.
impl Counters {
    #[inline(always)]
    pub(crate) fn count(&self, allowed: bool) {
        self.add(usize::from(allowed));
    }

    /// Counts as many that were allowed.
    #[inline(always)]
    pub(crate) fn count_allowed(&self, several: u64) {
        self.add_several(1, several);
    }

    /// Allowed and denied so far.
    pub(crate) fn sums(&self) -> (u64, u64) {
        (self.sum(1), self.sum(0))
    }
}
