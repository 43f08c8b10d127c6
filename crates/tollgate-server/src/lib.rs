//! The rate-limit service: Envoy's protocol, HTTP and Redis' on one engine.

mod bounds;
mod cells;
mod connection;
mod holds;
mod http;
mod listen;
mod resp;
mod rls;
mod secret;
#[cfg(test)]
#[path = "../tests/common/seeds.rs"]
mod seeds;
mod server;
mod service;

pub use bounds::Bounds;
pub use listen::{Address, AddressError};
pub use rls::{RlsClosed, UnknownAnswer};
pub use secret::Secret;
pub use server::{Addresses, Server, Settings, StartError};

/// What the front page shows is compiled.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct FrontPage;
