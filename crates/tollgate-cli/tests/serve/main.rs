//! `tollgate serve` as people start it: the real command, real clients and real stores.

mod admin;
mod config;
mod contrib;
mod crash;
mod ending;
mod envoy;
mod kit;
mod observed;
mod pages;
mod reloading;
mod rolling;
mod secure;
mod soak;
mod starting;
mod state;
mod state_live;
mod stores;
mod wrong;
