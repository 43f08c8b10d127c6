//! `tollgate serve` as people start it: the real command, real clients and real stores.

mod config;
mod envoy;
mod kit;
mod pages;
mod starting;
mod stores;
mod wrong;
