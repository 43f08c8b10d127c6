//! `tollgate serve` as a process: the real command, real clients and real stores.

mod admin;
mod asking;
mod config;
mod contrib;
mod crash;
mod descriptors;
mod ending;
mod envoy;
mod kit;
mod notified;
mod observed;
mod pages;
mod preflight;
mod reloading;
mod rolling;
mod secure;
mod soak;
mod starting;
mod state;
mod state_live;
mod stores;
mod wrong;
