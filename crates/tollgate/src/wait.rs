//! The futures of `acquire` and other verbs that queue: await them or block on them.

pub use crate::acquire::Acquire;
#[cfg(not(any(loom, shuttle)))]
pub use crate::acquire::AcquireFuture;
pub use crate::queued_limit::LimitHandle;
pub use crate::wait_queue::QueuedAcquire;
#[cfg(not(any(loom, shuttle)))]
pub use crate::wait_queue::QueuedAcquireFuture;
