//! Stores that fail, hang, move or come back, what is answered meanwhile, and what isn't even sent.

#[path = "../common/mod.rs"]
mod common;
mod failover;
mod faults;
mod foreign_keys;
mod quiet;
mod recovery;
mod shutdown;
