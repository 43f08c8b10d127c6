//! Random schedules of what is too large for loom, by shuttle: a table that grows and overflows, a
//! queue of waiters.
//!
//! Loom tries every interleaving of a few steps; shuttle tries some interleavings of very many. The models are
//! in `tests`, one file for each subject, and run the real crate, compiled with `--cfg shuttle`:
//!
//! ```text
//! RUSTFLAGS="--cfg shuttle" cargo test --release -p tollgate-shuttle --target-dir target/shuttle
//! ```
