//! Stores that fail, hang, move or recover: the answers meanwhile, and requests that aren't sent.

#[path = "../common/mod.rs"]
mod common;
mod failover;
mod faults;
mod foreign_keys;
mod quiet;
mod recovery;
mod shutdown;
