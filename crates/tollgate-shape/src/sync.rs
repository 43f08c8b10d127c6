//! The locks that model checking replaces.

#[cfg(loom)]
pub(crate) use loom::{sync::Mutex, sync::MutexGuard, thread_local};
#[cfg(shuttle)]
pub(crate) use shuttle::{sync::Mutex, sync::MutexGuard, thread_local};
#[cfg(not(any(loom, shuttle)))]
pub(crate) use std::sync::{Mutex, MutexGuard};
