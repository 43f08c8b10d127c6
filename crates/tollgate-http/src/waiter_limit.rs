//! A bounded number of places for those who wait.

use std::sync::atomic::{AtomicUsize, Ordering};

/// The places of all who wait. The count guards no other memory, so nothing is ordered by it.
#[derive(Debug)]
pub(crate) struct WaiterLimit {
    pub(crate) most: usize,
    taken: AtomicUsize,
}

/// One place. Dropping it frees the place.
#[derive(Debug)]
pub(crate) struct WaiterPermit<'a>(&'a AtomicUsize);

impl WaiterLimit {
    pub(crate) const fn new(most: usize) -> Self {
        let taken = AtomicUsize::new(0);
        Self { most, taken }
    }

    /// A place; none if as many wait as may.
    pub(crate) fn try_acquire(&self) -> Option<WaiterPermit<'_>> {
        let before = self.taken.fetch_add(1, Ordering::Relaxed);
        let seat = WaiterPermit(&self.taken);
        (before < self.most).then_some(seat)
    }

    /// How many wait.
    #[cfg(feature = "outgoing")]
    pub(crate) fn waiting(&self) -> usize {
        self.taken.load(Ordering::Relaxed)
    }
}

impl Drop for WaiterPermit<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
