//! One limit for a fleet, kept in Redis or Valkey.

mod address;
#[cfg(test)]
mod conformance;
mod direct;
mod error;
mod holders;
mod key;
mod lease;
mod limiter;
mod question;
mod redis;
mod rehearsal;
mod script;
mod store;

pub use address::{Address, AddressError};
pub use direct::{Asking, Direct};
pub use error::{StoreError, StoreLimitError};
pub use limiter::{RedisLimiter, RedisLimiterBuilder};
pub use redis::{ConnectError, Redis, RedisBuilder, RedisStats};
