//! Why there is no client.

use std::fmt;

use crate::address::AddressError;
use crate::error::StoreError;

/// Why there is no [`Redis`](crate::Redis).
///
/// ```
/// use tollgate_redis::{ConnectError, Redis};
///
/// // Outside a runtime there is nothing to connect on.
/// let error = Redis::connect("redis://127.0.0.1").unwrap_err();
/// assert_eq!(error, ConnectError::NoRuntime);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConnectError {
    /// The URL doesn't say where the store is.
    Address(AddressError),
    /// It was called outside a Tokio runtime.
    NoRuntime,
    /// The store can't be reached in the way that the URL says: a certificate can't be read, for example.
    Store(StoreError),
}

impl fmt::Display for ConnectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(error) => error.fmt(f),
            Self::NoRuntime => f.write_str(
                "there is no Tokio runtime here to connect on: call this from async code, or within \
                 `Runtime::enter`",
            ),
            Self::Store(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for ConnectError {}

impl From<AddressError> for ConnectError {
    fn from(error: AddressError) -> Self {
        Self::Address(error)
    }
}
