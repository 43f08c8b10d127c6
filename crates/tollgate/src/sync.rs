//! The atomics that a model checker replaces, and padding to a cache line.

use std::cell::Cell;
use std::sync::atomic::AtomicUsize as PlainAtomicUsize;
use std::time::Duration;

#[cfg(loom)]
use loom as threads;
#[cfg(shuttle)]
use shuttle as threads;
#[cfg(not(any(loom, shuttle)))]
use std as threads;

pub(crate) use std::sync::{LockResult, PoisonError, atomic::Ordering};
pub(crate) use threads::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, fence};
pub(crate) use threads::sync::{Mutex, MutexGuard};
pub(crate) use threads::thread::{Thread, current as current_thread, park};
use threads::{hint::spin_loop, thread::yield_now};

/// Blocks until the thread is unparked or the real time has passed; models have no real time.
pub(crate) fn park_timeout(timeout: Duration) {
    if cfg!(any(loom, shuttle)) {
        park();
    } else {
        std::thread::park_timeout(timeout);
    }
}

/// The data of a lock, even after a panic: nothing in this crate panics between two writes that belong together.
pub fn ignore_poison<T>(locked: LockResult<T>) -> T {
    locked.unwrap_or_else(PoisonError::into_inner)
}

/// A value on cache lines of its own: two lines, because x86 fetches lines in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Padded<T>(pub(crate) T);

/// Waits a little longer after each lost race, so that threads don't keep taking one word's cache line from each other.
#[derive(Debug, Default)]
pub(crate) struct Backoff {
    losses: u32,
}

impl Backoff {
    /// The longest pause: 2^6 spins, about a microsecond.
    const MOST: u32 = 6;

    pub(crate) fn back_off(&mut self) {
        // Doubles with each loss, so that competing threads soon come at different times.
        for _ in 0..1u32 << self.losses {
            spin_loop();
        }
        if self.losses < Self::MOST && !cfg!(any(loom, shuttle)) {
            self.losses += 1;
        } else {
            // The other thread may have lost its core: let it run.
            yield_now();
        }
    }
}

thread_local! {
    static NUMBER: Cell<usize> = const { Cell::new(usize::MAX) };
}

/// A small number for the calling thread, assigned in order of first use.
#[inline]
pub(crate) fn thread_number() -> usize {
    // Not loom's: the number of a thread is no part of any model.
    static NEXT: PlainAtomicUsize = PlainAtomicUsize::new(0);
    NUMBER.with(|number| {
        if number.get() == usize::MAX {
            number.set(NEXT.fetch_add(1, Ordering::Relaxed));
        }
        number.get()
    })
}

/// The calling thread's number if it has one, or else the largest there is.
#[inline(always)]
pub(crate) fn cached_thread_number() -> usize {
    NUMBER.with(Cell::get)
}
