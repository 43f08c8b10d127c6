//! The rate-limit service: Envoy's rate-limit protocol, HTTP with JSON, and Redis' protocol (RESP), on one engine.

#![forbid(unsafe_code)]

mod address;
mod cl_throttle;
mod connection;
mod connection_limit;
mod credentials;
mod decision_answer;
mod decision_service;
mod denial_log;
mod drain;
mod file_reload;
mod health;
mod health_watch;
mod http;
mod listener;
mod listeners;
mod log;
mod metrics;
mod operators;
mod policy_reload;
pub mod preflight;
mod protocol_errors;
mod request_bounds;
mod reservations;
mod resp;
mod rls;
mod rls_failure_mode;
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
mod telemetry;
mod throttle_keys;
mod tls;
mod wrong_secrets;

pub use address::{Address, AddressError, Protocol};
pub use denial_log::{DenialLog, SampleRate};
pub use drain::{DrainOutcome, DrainSettings};
pub use log::{Level, Log, LogFormat};
pub use operators::{AdminHost, AdminToken, admin_token_files};
pub use policy_reload::PolicyWatch;
pub use request_bounds::RequestBounds;
pub use rls_failure_mode::{RlsFailureMode, UnknownRlsFailureMode};
pub use secret::Secret;
pub use server::Server;
pub use settings::{Addresses, DateHeader, Settings, ShadowVisibility};
pub use start_error::StartError;
pub use state::{StateOptions, StateStatus, Uptime};
pub use store_events::StoreEvents;
pub use tls::Tls;

/// Compiles the examples of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct FrontPage;
