//! The rate-limit service: Envoy's protocol, HTTP and Redis' on one engine.

#![forbid(unsafe_code)]

mod address;
mod answers;
mod bounds;
mod cells;
mod connection;
mod credentials;
mod decider;
mod denials;
mod drain;
mod guesses;
mod health;
mod holds;
mod http;
mod listen;
mod listeners;
mod log;
mod metrics;
mod monitor;
mod operators;
mod places;
pub mod preflight;
mod protocol_errors;
mod reload;
mod renew;
mod resp;
mod rls;
mod rls_closed;
mod secret;
#[cfg(test)]
#[path = "../tests/common/seeds.rs"]
mod seeds;
mod server;
mod service;
mod settings;
mod start_error;
mod state;
mod store_events;
mod throttle;
mod tls;
mod vitals;

pub use address::{Address, AddressError, Protocol};
pub use bounds::Bounds;
pub use denials::{DenialLog, Share};
pub use drain::{Drain, Drained};
pub use log::{Level, Log, LogForm};
pub use operators::{AdminHost, AdminToken, admin_token_files};
pub use reload::Watch;
pub use rls_closed::{RlsClosed, UnknownAnswer};
pub use secret::Secret;
pub use server::Server;
pub use settings::{Addresses, HttpDate, Settings, ShadowAnswers};
pub use start_error::StartError;
pub use state::{StateOptions, StateTold, Uptime};
pub use store_events::StoreEvents;
pub use tls::Tls;

/// What the front page shows is compiled.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct FrontPage;
