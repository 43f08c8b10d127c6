//! The memory of a table: cache lines of four slots, reserved once and zeroed only when touched.

use std::hint::select_unpredictable;

use crate::sync::{AtomicU64, Ordering};

/// One key's state: which key, and its word. Zero in both is an empty slot.
#[derive(Debug)]
pub(crate) struct Slot {
    pub(crate) fingerprint: AtomicU64,
    pub(crate) word: AtomicU64,
}

/// How many slots share a cache line.
pub(crate) const SLOTS: usize = 4;

/// Four slots on one cache line.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Line(pub(crate) [Slot; SLOTS]);

impl Line {
    /// The slot of this key if it is here, or else `other`. Where a key is can't be predicted, so
    /// nothing branches on it, and the caller's next steps don't wait for a wrong guess.
    #[inline(always)]
    pub(crate) fn select<'a>(&'a self, fingerprint: u64, other: &'a Slot) -> &'a Slot {
        self.0.iter().fold(other, |found, slot| {
            // Acquire: whoever sees a key here also sees that its slot was busy before.
            let here = slot.fingerprint.load(Ordering::Acquire) == fingerprint;
            select_unpredictable(here, slot, found)
        })
    }

    /// The slot of this key, if it is here.
    #[inline]
    pub(crate) fn find(&self, fingerprint: u64) -> Option<&Slot> {
        let of_key = |slot: &&Slot| slot.fingerprint.load(Ordering::Acquire) == fingerprint;
        self.0.iter().find(of_key)
    }
}

#[cfg(not(any(loom, shuttle)))]
pub(crate) use reserved::{Lines, prefetch};
#[cfg(any(loom, shuttle))]
pub(crate) use touched::{Lines, prefetch};

/// Memory straight from the allocator, zeroed by whoever gives it out: for a large reservation that
/// is the operating system, page by page, as pages are touched.
#[cfg(not(any(loom, shuttle)))]
mod reserved {
    #![expect(
        unsafe_code,
        reason = "no safe constructor leaves a large zeroed reservation untouched, and no safe \
                  function prefetches"
    )]

    use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
    use std::ops::Deref;
    use std::ptr::NonNull;
    use std::slice;

    use super::Line;

    /// Starts to bring a line into the cache, without waiting for it.
    #[inline(always)]
    pub(crate) fn prefetch(line: &Line) {
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            // SAFETY: every x86-64 has the instruction, and it is a hint: it reads nothing that
            // the program could see, at an address that is a live line's.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(line).cast()) };
        }
        #[cfg(not(all(target_arch = "x86_64", not(miri))))]
        std::hint::black_box(line.0[0].word.load(std::sync::atomic::Ordering::Relaxed));
    }

    /// Below this a reservation is left to the allocator.
    const SMALL: usize = 16 << 10;
    /// From here on glibc's allocator maps fresh pages, unless the program has freed larger ones
    /// before, and doesn't write the zeros itself.
    const SURELY_MAPPED: usize = 256 << 10;

    /// A fixed number of lines, all empty at first.
    #[derive(Debug)]
    pub(crate) struct Lines {
        first: NonNull<Line>,
        count: usize,
        memory: NonNull<u8>,
        layout: Layout,
    }

    // SAFETY: `Lines` owns its memory, as a `Box<[Line]>` would, and `Line` is made of atomics,
    // which may be used from any thread.
    unsafe impl Send for Lines {}
    // SAFETY: as above: a shared `Lines` only hands out shared lines.
    unsafe impl Sync for Lines {}

    impl Lines {
        pub(crate) fn new(count: usize) -> Self {
            let line = size_of::<Line>();
            // Asking for the alignment of a line would make std's allocator write the zeros itself
            // and touch every page; one line more leaves room to align by hand.
            let bytes = count
                .checked_add(1)
                .and_then(|lines| lines.checked_mul(line))
                .map(|bytes| match bytes {
                    SMALL..SURELY_MAPPED => SURELY_MAPPED,
                    bytes => bytes,
                });
            let layout = bytes
                .and_then(|bytes| Layout::from_size_align(bytes, align_of::<u64>()).ok())
                .expect("a table smaller than the address space");
            // SAFETY: the layout is not of zero size: it holds at least one line.
            let memory = unsafe { alloc_zeroed(layout) };
            let Some(memory) = NonNull::new(memory) else {
                handle_alloc_error(layout);
            };
            let skip = memory.as_ptr().align_offset(line);
            // SAFETY: `skip` is less than a line, and the allocation is one line longer than
            // `count` lines, so `count` whole lines follow within it.
            let first = unsafe { memory.add(skip) }.cast();
            Self {
                first,
                count,
                memory,
                layout,
            }
        }
    }

    impl Deref for Lines {
        type Target = [Line];

        fn deref(&self) -> &[Line] {
            // SAFETY: `first` is aligned to a line and starts `count` lines of one allocation that
            // lives as long as `self`. Zero bytes are a valid `Line`: atomics of zero. Only shared
            // references are ever made, and `Line` changes through its atomics alone.
            unsafe { slice::from_raw_parts(self.first.as_ptr(), self.count) }
        }
    }

    impl Drop for Lines {
        fn drop(&mut self) {
            // SAFETY: `memory` came from `alloc_zeroed` with this layout and is freed once. Lines
            // need no destructor: they are plain atomics.
            unsafe { dealloc(self.memory.as_ptr(), self.layout) };
        }
    }
}

/// The same under the model checker, whose atomics are not plain memory.
#[cfg(any(loom, shuttle))]
mod touched {
    use std::ops::Deref;

    use super::{Line, Slot};
    use crate::sync::AtomicU64;

    /// Nothing to fetch: the model has no caches.
    pub(crate) fn prefetch(_line: &Line) {}

    #[derive(Debug)]
    pub(crate) struct Lines(Vec<Line>);

    impl Lines {
        pub(crate) fn new(count: usize) -> Self {
            let slot = |_| Slot {
                fingerprint: AtomicU64::new(0),
                word: AtomicU64::new(0),
            };
            Self((0..count).map(|_| Line([0, 1, 2, 3].map(slot))).collect())
        }
    }

    impl Deref for Lines {
        type Target = [Line];

        fn deref(&self) -> &[Line] {
            &self.0
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn lines_are_aligned_zeroed_and_as_many_as_asked_for() {
        for count in [0, 1, 7, 100_000] {
            let lines = Lines::new(count);
            assert_eq!(lines.len(), count);
            assert!(lines.as_ptr().is_aligned());
            assert!(lines.iter().all(|line| line.find(1).is_none()));
        }
        assert_eq!(size_of::<Line>(), 64);
    }
}
