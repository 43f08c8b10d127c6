//! The system's allocator with counters of live bytes and of calls: the memory of a waiter, and of a request.
//!
//! Each thread counts by itself, because shared atomics would cost more than the allocator calls that are
//! measured.
#![expect(unsafe_code, reason = "an allocator can't be written without it")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    static LIVE: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
    static CALLS: Cell<usize> = const { Cell::new(0) };
}

#[global_allocator]
static COUNTING: Counting = Counting;

struct Counting;

/// Bytes that this thread has allocated and not freed, including those that other threads freed.
pub(crate) fn live() -> usize {
    usize::try_from(LIVE.get()).unwrap_or(0)
}

/// The peak of this thread's live bytes since the last call of this function.
pub(crate) fn take_peak() -> usize {
    usize::try_from(PEAK.replace(LIVE.get())).unwrap_or(0)
}

/// How often this thread has allocated so far.
pub(crate) fn calls() -> usize {
    CALLS.get()
}

fn grew(bytes: usize) {
    CALLS.set(CALLS.get() + 1);
    let live = LIVE.get().wrapping_add_unsigned(bytes);
    LIVE.set(live);
    PEAK.set(PEAK.get().max(live));
}

fn shrank(bytes: usize) {
    LIVE.set(LIVE.get().wrapping_sub_unsigned(bytes));
}

// SAFETY: every call goes to `System` with the caller's own arguments, so the caller's promises are those that
// `System` requires, and its result is returned unchanged. Counting touches three cells of the thread without a
// destructor: it doesn't allocate, unwind or access the memory.
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
