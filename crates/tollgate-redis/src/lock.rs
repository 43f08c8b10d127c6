//! Locks that a panic doesn't close.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks it, also after a thread that had it has panicked: every change behind these locks is whole by itself, and one
/// request that fails must not fail all others.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
