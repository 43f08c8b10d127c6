//! One limit for a fleet, kept in Redis or Valkey.

mod address;
#[cfg(test)]
mod conformance;
mod error;
mod key;
mod lease;
mod question;
mod script;
mod store;

pub use address::{Address, AddressError};
pub use error::{StoreError, StoreLimitError};
