//! Random schedules of a table that grows and overflows, by shuttle.
//!
//! Where loom tries every interleaving of a few steps, this tries some of very many. The models live
//! in `tests/keyed.rs` and run the real crate, compiled with `--cfg shuttle`:
//!
//! ```text
//! RUSTFLAGS="--cfg shuttle" cargo test --release -p tollgate-shuttle --target-dir target/shuttle
//! ```
