//! The exact-key table: its verbs, tiers and snapshots, and the laws of its arithmetic. What it allocates is
//! counted in a program of its own.

#[macro_use]
#[path = "../common/mod.rs"]
mod common;

mod alone;
mod capacity;
mod laws;
mod snapshot;
mod tier_laws;
mod tiers;
mod verbs;
