//! Models of every compare-and-swap in `tollgate`, checked over all interleavings by loom.
//!
//! The models are in `tests`, one file for each subject, and run the real crate, compiled with `--cfg loom`:
//!
//! ```text
//! RUSTFLAGS="--cfg loom" cargo test --release -p tollgate-loom --target-dir target/loom
//! ```
