//! Which thread keeps the cached time: at most one, and one for as long as there are readers.
//!
//! # Memory ordering
//! A new handle counts itself and then looks whether a thread runs; a thread that ends stops running and then
//! looks whether there are handles. Whichever comes first, a thread must be running afterwards. So all four
//! accesses are sequentially consistent: at least one side sees the other.

#![cfg_attr(not(loom), expect(unreachable_pub, reason = "public to models only"))]

use crate::sync::{AtomicBool, AtomicUsize, Ordering};

/// The handles on the cached time, and whether a thread keeps it.
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

    /// A handle is gone; the thread will see it.
    pub fn remove_handle(&self) {
        self.handles.fetch_sub(1, Ordering::SeqCst);
    }

    /// Becomes the one who keeps the time, unless somebody does.
    pub fn claim_thread(&self) -> bool {
        self.running
            .compare_exchange(false, true, Ordering::SeqCst, Ordering::SeqCst)
            .is_ok()
    }

    /// Whether anybody reads.
    pub fn is_needed(&self) -> bool {
        self.handles.load(Ordering::SeqCst) > 0
    }

    /// The thread found no handle and ends, unless one came meanwhile: true if it goes on.
    pub fn retire_or_continue(&self) -> bool {
        self.mark_stopped();
        self.is_needed() && self.claim_thread()
    }

    /// The thread is gone: it could not be started, or stayed behind at a fork.
    pub fn mark_stopped(&self) {
        self.running.store(false, Ordering::SeqCst);
    }

    /// Whether a thread keeps the time, or is about to.
    #[cfg(loom)]
    pub fn is_running(&self) -> bool {
        self.running.load(Ordering::SeqCst)
    }
}
