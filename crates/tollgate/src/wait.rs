//! Waits: what `acquire` and other verbs that queue return, to be awaited or blocked on.

pub use crate::acquire::Acquire;
#[cfg(not(any(loom, shuttle)))]
pub use crate::acquire::AcquireFuture;
pub use crate::queued_limit::LimitHandle;
pub use crate::wait_queue::QueuedAcquire;
#[cfg(not(any(loom, shuttle)))]
pub use crate::wait_queue::QueuedAcquireFuture;
