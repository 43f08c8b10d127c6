//! Waits: what `acquire` and other verbs that queue return, to be awaited or blocked on.

pub use crate::acquire::Acquire;
#[cfg(not(any(loom, shuttle)))]
pub use crate::acquire::Acquiring;
pub use crate::home::Home;
pub use crate::wait_queue::Turn;
#[cfg(not(any(loom, shuttle)))]
pub use crate::wait_queue::Turning;
