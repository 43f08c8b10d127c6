//! The atomics and the lock that model checking replaces.

#[cfg(loom)]
pub(crate) use loom::sync::{Mutex, atomic::AtomicU64};
#[cfg(shuttle)]
pub(crate) use shuttle::sync::{Mutex, atomic::AtomicU64};
#[cfg(not(any(loom, shuttle)))]
pub(crate) use std::sync::{Mutex, atomic::AtomicU64};
