//! The atomics and the lock that model checking replaces.

#[cfg(loom)]
pub(crate) use loom::sync::{Mutex, atomic::AtomicU64};
#[cfg(shuttle)]
pub(crate) use shuttle::sync::{Mutex, atomic::AtomicU64};
use std::sync::{LockResult, PoisonError};
#[cfg(not(any(loom, shuttle)))]
pub(crate) use std::sync::{Mutex, atomic::AtomicU64};

/// What a lock guards, also after a panic: nothing panics between two writes that belong together.
pub(crate) fn unpoisoned<T>(locked: LockResult<T>) -> T {
    locked.unwrap_or_else(PoisonError::into_inner)
}
