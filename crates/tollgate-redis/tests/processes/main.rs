//! Many processes on one limit: never more than it allows in any window, and little less in all.
//!
//! The tests run this binary again as the nodes of a fleet. All of them, and the servers, read one clock.
#![cfg(unix)]

mod bound;
mod fleet;
mod node;
mod share;
mod windows;
