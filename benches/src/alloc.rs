//! The system's allocator with a count of the live bytes and of the calls: what a waiter costs in memory, and a request.
#![expect(unsafe_code, reason = "an allocator can't be written without it")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

static LIVE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);
static CALLS: AtomicUsize = AtomicUsize::new(0);

#[global_allocator]
static COUNTING: Counting = Counting;

struct Counting;

/// Bytes that are allocated now.
pub(crate) fn live() -> usize {
    LIVE.load(Ordering::Relaxed)
}

/// The most bytes that were live at once since the last call of this function.
pub(crate) fn take_peak() -> usize {
    PEAK.swap(live(), Ordering::Relaxed)
}

/// How often memory was asked for so far.
pub(crate) fn calls() -> usize {
    CALLS.load(Ordering::Relaxed)
}

fn grew(bytes: usize) {
    CALLS.fetch_add(1, Ordering::Relaxed);
    let live = LIVE.fetch_add(bytes, Ordering::Relaxed) + bytes;
    PEAK.fetch_max(live, Ordering::Relaxed);
}

fn shrank(bytes: usize) {
    LIVE.fetch_sub(bytes, Ordering::Relaxed);
}

// SAFETY: every call goes to `System` with the caller's own arguments, so the caller's promises
// are the ones that `System` asks for, and what it returns is passed on as it is. Counting touches
// three atomics: it doesn't allocate, unwind or look at the memory.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller promises a layout of non-zero size, as `System` requires.
        let memory = unsafe { System.alloc(layout) };
        if !memory.is_null() {
            grew(layout.size());
        }
        memory
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the caller promises that `memory` came from this allocator, hence from `System`,
        // with this layout.
        unsafe { System.dealloc(memory, layout) };
        shrank(layout.size());
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: as for `dealloc`, and the caller promises a size that is not zero and doesn't
        // overflow when it is rounded up to the alignment.
        let moved = unsafe { System.realloc(memory, layout, size) };
        if !moved.is_null() {
            shrank(layout.size());
            grew(size);
        }
        moved
    }
}
