//! One limit for a fleet, kept in Redis or Valkey.
//!
//! [`Redis`] is a [`Backend`](tollgate_engine::backend::Backend) for the engine, and makes
//! [limiters](RedisLimiter) for those who have no policy. Every limit is counted **exactly**, one script
//! call a decision by the store's clock, or **leased**: a node takes tokens ahead and spends them at the speed
//! of memory, and the fleet never exceeds the limit either way. Each has chosen what happens while the store
//! can't be asked.
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
//! In reading order: `question` says what a limit is in the store's numbers, `scripts/*.lua` is the arithmetic
//! there, `store` brings questions to it, `lease` spends ahead, `direct` makes one answer of it all, `backend` is that
//! or the store of a test, `redis` puts a failure policy in front.

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

/// What the documents show is compiled.
#[cfg(doctest)]
#[doc = include_str!("../docs/store.md")]
struct Documented;

/// The example of the crate's front page.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

/// The programs of the repository's README: this crate is the one that has all that they use.
#[cfg(doctest)]
#[doc = include_str!("../docs/front-page.md")]
struct FrontPage;
