//! A bound on the number of waiters.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Counts waiters, up to a maximum. The count guards no other memory, so relaxed ordering is enough.
#[derive(Debug)]
pub(crate) struct WaiterLimit {
    pub(crate) most: usize,
    taken: AtomicUsize,
}

/// The right to wait. Dropping it lets another waiter in.
#[derive(Debug)]
pub(crate) struct WaiterPermit<'a>(&'a AtomicUsize);

impl WaiterLimit {
    pub(crate) const fn new(most: usize) -> Self {
        let taken = AtomicUsize::new(0);
        Self { most, taken }
    }

    /// A permit to wait; none if the maximum number of waiters is reached.
    pub(crate) fn try_acquire(&self) -> Option<WaiterPermit<'_>> {
        let before = self.taken.fetch_add(1, Ordering::Relaxed);
        let permit = WaiterPermit(&self.taken);
        // Over the maximum, the permit is dropped here, which undoes the increment.
        (before < self.most).then_some(permit)
    }

    /// The number of waiters now.
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
