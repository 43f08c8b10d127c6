//! Whether a thread updates the cached time: at most one thread, for as long as there are readers.
//!
//! # Memory ordering
//! A new handle counts itself and then checks whether a thread runs. A thread that ends clears its flag and then checks
//! whether there are handles. In either order, a thread must be running afterwards. So all four accesses are
//! sequentially consistent: at least one side sees the other.

#![cfg_attr(not(loom), expect(unreachable_pub, reason = "public to models only"))]

use crate::sync::{AtomicBool, AtomicUsize, Ordering};

/// The number of handles on the cached time, and whether a thread updates it.
#[derive(Debug)]
pub struct UpkeepState {
    handles: AtomicUsize,
    running: AtomicBool,
}

impl UpkeepState {
    /// There is neither a reader nor a thread.
    #[cfg(not(any(loom, shuttle)))]
    pub(crate) const fn new() -> Self {
        Self {
            handles: AtomicUsize::new(0),
            running: AtomicBool::new(false),
        }
    }

    /// As above, for a model, whose atomics are made at run time.
    #[cfg(loom)]
    #[expect(clippy::new_without_default, reason = "only models make one")]
    pub fn new() -> Self {
        Self {
            handles: AtomicUsize::new(0),
            running: AtomicBool::new(false),
        }
    }

    /// Counts a handle. True if the caller has to start the thread.
    pub fn add_handle(&self) -> bool {
        self.handles.fetch_add(1, Ordering::SeqCst);
        self.claim_thread()
    }

    /// Records that a handle was dropped; the thread checks the count.
    pub fn remove_handle(&self) {
        self.handles.fetch_sub(1, Ordering::SeqCst);
    }

    /// Claims the role of the upkeep thread, unless another thread has it.
    pub fn claim_thread(&self) -> bool {
        self.running
            .compare_exchange(false, true, Ordering::SeqCst, Ordering::SeqCst)
            .is_ok()
    }

    /// Whether there are readers.
    pub fn is_needed(&self) -> bool {
        self.handles.load(Ordering::SeqCst) > 0
    }

    /// Ends the thread, which found no handle, unless a handle was added meanwhile: true if it must go on.
    pub fn retire_or_continue(&self) -> bool {
        self.mark_stopped();
        self.is_needed() && self.claim_thread()
    }

    /// Records that the thread is gone: it couldn't be started, or a fork left it behind.
    pub fn mark_stopped(&self) {
        self.running.store(false, Ordering::SeqCst);
    }

    /// Whether a thread updates the time, or is about to.
    #[cfg(loom)]
    pub fn is_running(&self) -> bool {
        self.running.load(Ordering::SeqCst)
    }
}
