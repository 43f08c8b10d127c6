//! A world in a seed: what a whole fleet is simulated with, on one thread and on a clock of its own.
//!
//! - [`Store`] is a small Redis that runs the very scripts of the real one.
//! - [`replay`] runs recorded calls on it and on a real server, and says where they differ.

mod replay;
mod store;

pub use replay::{Call, Difference, replay};
pub use store::{Condition, Counts, ServerError, Store};
