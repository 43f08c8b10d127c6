//! `tollgate pipe`: which lines pass, and that no byte is changed or lost; on virtual time, and as a process.

#![expect(
    clippy::unwrap_used,
    reason = "these are tests: what can't be had fails them"
)]

mod lines;
mod process;
