//! Random schedules of what is too large for loom, by shuttle: a table that grows and overflows, a
//! queue of waiters.
//!
//! Where loom tries every interleaving of a few steps, this tries some of very many. The models live
//! in `tests`, a file a subject, and run the real crate, compiled with `--cfg shuttle`:
//!
//! ```text
//! RUSTFLAGS="--cfg shuttle" cargo test --release -p tollgate-shuttle --target-dir target/shuttle
//! ```
