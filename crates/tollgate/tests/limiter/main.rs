//! One limiter: its verbs, the laws of its arithmetic, threads and waits.

#[macro_use]
#[path = "../common/mod.rs"]
mod common;

mod laws;
mod stepped_back;
mod threads;
mod verbs;
#[cfg(feature = "tokio")]
mod waiting;
