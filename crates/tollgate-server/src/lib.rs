//! The rate-limit service: Envoy's protocol, HTTP and Redis' on one engine.

#![forbid(unsafe_code)]

mod admin;
mod bounds;
mod cells;
mod connection;
mod denials;
mod descriptors;
mod drain;
mod guesses;
mod health;
mod holds;
mod http;
mod listen;
mod listeners;
mod log;
mod measured;
mod metrics;
mod operate;
pub mod preflight;
mod protocol_errors;
mod reload;
mod renew;
mod resp;
mod rls;
mod secret;
#[cfg(test)]
#[path = "../tests/common/seeds.rs"]
mod seeds;
mod server;
mod service;
mod settings;
mod small_file;
mod start_error;
mod state;
mod store_events;
mod tls;
mod vitals;

pub use admin::{AdminHost, AdminToken, admin_token_files};
pub use bounds::Bounds;
pub use denials::{DenialLog, Share};
pub use drain::{Drain, Drained};
pub use listen::{Address, AddressError};
pub use log::{Level, Log, LogForm};
pub use reload::Watch;
pub use rls::{RlsClosed, UnknownAnswer};
pub use secret::Secret;
pub use server::Server;
pub use settings::{Addresses, HttpDate, Settings, ShadowAnswers};
pub use start_error::StartError;
pub use state::{StateOptions, StateTold, Uptime};
pub use store_events::StoreEvents;
pub use tls::{Tls, TlsOn};

/// What the front page shows is compiled.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct FrontPage;
