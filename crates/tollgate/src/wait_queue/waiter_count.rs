//! The number of waiters, and its bound.

use crate::patience::DEFAULT_MAX_WAITERS;
use crate::sync::{AtomicUsize, Ordering};

/// The number of waiters of one limiter, and its bound.
#[derive(Debug)]
pub struct WaiterCount {
    current: AtomicUsize,
    max_waiters: usize,
}

impl WaiterCount {
    pub(crate) const DEFAULT_MAX: usize = DEFAULT_MAX_WAITERS;

    pub(crate) fn new(most: usize) -> Self {
        Self {
            current: AtomicUsize::new(0),
            max_waiters: most,
        }
    }

    pub(crate) fn current(&self) -> usize {
        self.current.load(Ordering::Relaxed)
    }

    /// Counts one more waiter, unless there are too many.
    pub(crate) fn enter(&self) -> bool {
        // Relaxed: the count guards no other memory, so its order with other words doesn't matter.
        let fits = self.current.fetch_add(1, Ordering::Relaxed) < self.max_waiters;
        if !fits {
            self.leave();
        }
        fits
    }

    /// Counts one more waiter that holds a reservation already, and so isn't denied.
    fn enter_unbounded(&self) {
        self.current.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn leave(&self) {
        self.current.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A counted waiter; dropping it uncounts.
#[derive(Debug)]
pub(crate) struct WaiterGuard<'a>(&'a WaiterCount);

impl<'a> WaiterGuard<'a> {
    /// Counts a waiter, unless the queue is full.
    pub(crate) fn enter(waiting: &'a WaiterCount) -> Option<Self> {
        // Lazily, because dropping a guard uncounts.
        waiting.enter().then(|| Self(waiting))
    }

    /// Consumes the guard without uncounting: the place in the queue does that later.
    pub(crate) fn keep(self) {
        std::mem::forget(self);
    }

    /// Counts a waiter that holds a reservation already.
    pub(crate) fn enter_unbounded(waiting: &'a WaiterCount) -> Self {
        waiting.enter_unbounded();
        Self(waiting)
    }
}

impl Drop for WaiterGuard<'_> {
    fn drop(&mut self) {
        self.0.leave();
    }
}
