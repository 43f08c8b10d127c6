//! The memory of a table's cache lines: reserved once, and zeroed only when touched.

#[cfg(not(any(loom, shuttle)))]
pub(crate) use reserved::{CacheLines, fetch};
#[cfg(any(loom, shuttle))]
pub(crate) use touched::{CacheLines, fetch};

/// Memory that is zeroed page by page, by the operating system, as it is touched.
#[cfg(not(any(loom, shuttle)))]
mod reserved {
    #![expect(
        unsafe_code,
        reason = "no safe constructor leaves a large zeroed reservation untouched, and no safe \
                  function prefetches"
    )]

    use std::alloc::{Layout, handle_alloc_error};
    use std::ops::Deref;
    use std::ptr::NonNull;
    use std::slice;

    use super::super::slot::CacheLine;

    /// Prefetches a cache line without waiting for it. Where there is no such hint, it reads the line.
    #[inline(always)]
    pub(crate) fn fetch(line: &CacheLine) {
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            // SAFETY: every x86-64 has the instruction, and it is a hint: it reads nothing that the
            // program could see, at an address within a live value.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(line).cast::<i8>()) };
        }
        #[cfg(not(all(target_arch = "x86_64", not(miri))))]
        std::hint::black_box(line.0[0].word.load(std::sync::atomic::Ordering::Relaxed));
    }

    /// A fixed number of cache lines, all empty at first.
    #[derive(Debug)]
    pub(crate) struct CacheLines {
        first: NonNull<CacheLine>,
        count: usize,
    }

    // SAFETY: `CacheLines` owns its memory, as a `Box<[CacheLine]>` would, and `CacheLine` is made of atomics,
    // which may be used from any thread.
    unsafe impl Send for CacheLines {}
    // SAFETY: as above: a shared `CacheLines` only hands out shared lines.
    unsafe impl Sync for CacheLines {}

    impl CacheLines {
        pub(crate) fn new(count: usize) -> Self {
            let layout =
                Layout::array::<CacheLine>(count).expect("a table smaller than the address space");
            if layout.size() == 0 {
                let first = NonNull::dangling();
                return Self { first, count };
            }
            let Some(first) = memory::zeroed(layout) else {
                handle_alloc_error(layout);
            };
            Self {
                first: first.cast(),
                count,
            }
        }
    }

    impl Deref for CacheLines {
        type Target = [CacheLine];

        fn deref(&self) -> &[CacheLine] {
            // SAFETY: `first` is aligned to a line and starts `count` lines of one reservation that
            // lives as long as `self`. Zero bytes are a valid `CacheLine`: atomics of zero. Only shared
            // references are ever made, and `CacheLine` changes through its atomics alone.
            unsafe { slice::from_raw_parts(self.first.as_ptr(), self.count) }
        }
    }

    impl Drop for CacheLines {
        fn drop(&mut self) {
            let layout = Layout::for_value::<[CacheLine]>(self);
            if layout.size() > 0 {
                // SAFETY: the memory came from `zeroed` with this layout, the one of `count` lines,
                // and is freed once. Lines need no destructor: they are plain atomics.
                unsafe { memory::give_back(self.first.cast(), layout) };
            }
        }
    }

    /// Pages directly from the system. An allocator might write the zeros itself, and so touch all pages of a table
    /// that is to be used gradually.
    #[cfg(all(unix, not(miri)))]
    mod memory {
        use std::alloc::Layout;
        use std::ptr::{self, NonNull};

        /// Zeroed memory of this layout, which fits into a page's alignment and is not empty.
        pub(super) fn zeroed(layout: Layout) -> Option<NonNull<u8>> {
            // SAFETY: a new private mapping of nothing but zeros, wherever the system likes: it
            // touches no memory that is in use.
            let pages = unsafe {
                libc::mmap(
                    ptr::null_mut(),
                    layout.size(),
                    libc::PROT_READ | libc::PROT_WRITE,
                    libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                    -1,
                    0,
                )
            };
            if pages == libc::MAP_FAILED {
                return None;
            }
            NonNull::new(pages.cast())
        }

        /// # Safety
        /// The memory came from [`zeroed`] with this layout, and is no longer in use.
        pub(super) unsafe fn give_back(memory: NonNull<u8>, layout: Layout) {
            // SAFETY: the caller promises that this is one whole mapping, and no longer in use.
            unsafe { libc::munmap(memory.as_ptr().cast(), layout.size()) };
        }
    }

    #[cfg(not(all(unix, not(miri))))]
    mod memory {
        use std::alloc::{Layout, alloc_zeroed, dealloc};
        use std::ptr::NonNull;

        /// Zeroed memory of this layout, which is not empty.
        pub(super) fn zeroed(layout: Layout) -> Option<NonNull<u8>> {
            // SAFETY: the caller promises a layout that is not of zero size.
            NonNull::new(unsafe { alloc_zeroed(layout) })
        }

        /// # Safety
        /// The memory came from [`zeroed`] with this layout, and is no longer in use.
        pub(super) unsafe fn give_back(memory: NonNull<u8>, layout: Layout) {
            // SAFETY: as the caller promises.
            unsafe { dealloc(memory.as_ptr(), layout) };
        }
    }
}

/// The same for the model checker, whose atomics are not plain memory.
#[cfg(any(loom, shuttle))]
mod touched {
    use std::ops::Deref;

    use super::super::slot::{CacheLine, Slot};
    use crate::sync::AtomicU64;

    /// Does nothing: the model has no caches.
    pub(crate) fn fetch(_line: &CacheLine) {}

    #[derive(Debug)]
    pub(crate) struct CacheLines(Vec<CacheLine>);

    impl CacheLines {
        pub(crate) fn new(count: usize) -> Self {
            let slot = |_| Slot {
                fingerprint: AtomicU64::new(0),
                word: AtomicU64::new(0),
            };
            Self(
                (0..count)
                    .map(|_| CacheLine([0, 1, 2, 3].map(slot)))
                    .collect(),
            )
        }
    }

    impl Deref for CacheLines {
        type Target = [CacheLine];

        fn deref(&self) -> &[CacheLine] {
            &self.0
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::super::slot::CacheLine;
    use super::*;

    #[test]
    fn lines_are_aligned_zeroed_and_as_many_as_asked_for() {
        for count in [0, 1, 7, 100_000] {
            let lines = CacheLines::new(count);
            assert_eq!(lines.len(), count);
            assert!(lines.as_ptr().is_aligned());
            assert!(lines.iter().all(|line| line.find(1).is_none()));
        }
        assert_eq!(size_of::<CacheLine>(), 64);
    }
}
