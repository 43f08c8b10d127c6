//! Rate limits, quotas and concurrency limits that a fleet shares in Redis or Valkey.
//!
//! [`Redis`] is a [`Backend`](tollgate_engine::backend::Backend) for the engine, and builds
//! [limiters](RedisLimiter) for programs without a policy. Every limit is counted **exactly** or **leased**.
//! Counted exactly, each decision is one script call by the store's clock. Leased, a node takes tokens in
//! advance and spends them in memory. The fleet never exceeds the limit either way. Each limit chooses what
//! happens while the store is unreachable.
//!
//! ```no_run
//! use tollgate_engine::document::Format;
//! use tollgate_engine::{Engine, Facts, Policy};
//! use tollgate_redis::Redis;
//!
//! # async fn run() -> Result<(), Box<dyn std::error::Error>> {
//! let text = "limits: [{name: per-user, key: user, rate: 10/s burst 20, counting: leased}]";
//! let policy = Policy::from_text(text, Format::Yaml)?.policy;
//! let redis = Redis::builder("redis+sentinel://10.0.0.1,10.0.0.2,10.0.0.3/mymaster")?.node_count(8).build()?;
//! let engine = Engine::new(policy, redis)?;
//! let facts = Facts::new().with("user", "42");
//! let verdict = engine.decide_async(&facts).await?;
//! assert!(verdict.denied().is_none() || verdict.fallback().is_some());
//! # Ok(())
//! # }
//! ```
//!
//! In reading order: `query` has a limit in the store's numbers, `scripts/*.lua` is the arithmetic there,
//! `store` sends queries to the store, `lease` spends tokens in advance, `store_client` combines these into one
//! answer, `client_backend` is that client or the fake store of a test, and `client` puts a failure policy in
//! front.

#![forbid(unsafe_code)]

mod address;
mod client;
mod client_backend;
mod client_builder;
mod decision;
mod denials;
mod error;
mod failure_counters;
mod fake_store;
mod fallback;
mod held_permits;
mod host;
mod lease;
mod limiter;
mod local_limits;
mod lock;
mod node_registry;
mod query;
mod script;
#[cfg(feature = "simulation")]
pub mod simulation;
mod store;
mod store_client;
mod store_key;
mod stored_limit;
#[cfg(test)]
mod tests;

pub use address::{Address, AddressError};
pub use client::{Redis, RedisStats};
pub use client_builder::RedisBuilder;
pub use decision::{AllowedRequest, DecisionDetails, LimitDecision};
pub use error::{ConnectError, FailureKind, StoreError, StoreLimitError};
pub use failure_counters::FailureStats;
pub use fake_store::{FakeStore, Fault};
pub use fallback::{
    BreakerState, BreakerThresholds, FailureScope, Fallback, FallbackStats, RemoteBackend,
    RemoteFailure, StoreEvent,
};
pub use limiter::{RedisLimiter, RedisLimiterBuilder};
pub use local_limits::{LocalLimits, UnreportedUsage};
pub use store_client::StoreClient;

/// Compiles the examples of the store's documentation.
#[cfg(doctest)]
#[doc = include_str!("../docs/store.md")]
struct Documented;

/// Compiles the example of the crate's README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

/// Compiles the programs of the repository's README: only this crate has all their dependencies.
#[cfg(doctest)]
#[doc = include_str!("../docs/front-page.md")]
struct FrontPage;
