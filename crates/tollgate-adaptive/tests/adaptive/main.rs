//! Adaptive algorithms, their controller and their results in the simulator.

#![expect(
    clippy::unwrap_used,
    reason = "these are tests: what can't be had fails them"
)]

mod at_once;
mod signals;
#[cfg(feature = "simulation")]
mod table;
