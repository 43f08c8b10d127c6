//! Errors between this process and the store, and reasons why the store can't keep a limit.

use std::time::Duration;

use derive_more::{Display, From};
use tollgate::{LimitError, Rate};
use tollgate_engine::backend::LimitKind;

pub use tollgate_engine::backend::FailureKind;

use crate::address::AddressError;

/// The store couldn't be queried, or sent no usable answer. The error says nothing about the limit:
/// [`OnStoreFailure`](tollgate_engine::policy::OnStoreFailure) decides what the request gets.
///
/// ```
/// use std::time::Duration;
/// use tollgate_redis::StoreError;
///
/// let error = StoreError::TimedOut { after: Duration::from_millis(5) };
/// assert_eq!(error.to_string(), "the store gave no answer within 5ms");
/// ```
#[derive(Clone, Debug, Display, From, PartialEq, Eq)]
#[non_exhaustive]
pub enum StoreError {
    /// No answer came before the deadline.
    #[display("the store gave no answer within {after:?}")]
    TimedOut {
        /// How long the request waited.
        after: Duration,
    },
    /// There is no connection.
    #[display("the store can't be reached: {why}")]
    Unreachable {
        /// The kind of failure.
        kind: FailureKind,
        /// The cause, as far as it is known, and what to do about it.
        why: String,
    },
    /// The store answered with an error: a wrong password, out of memory, read-only, busy, no permission.
    #[display("the store answered with an error: {error}")]
    ErrorReply {
        /// The kind of failure.
        kind: FailureKind,
        /// The store's error, and what to do about it.
        error: String,
    },
    /// The store's reply isn't a valid answer.
    #[display("the store's answer makes no sense: {what}")]
    InvalidReply {
        /// What was expected, and what came.
        what: String,
    },
    /// A key has a value that no limiter wrote. The value is left as it is, and nothing is charged.
    #[display(
        "the key {key:?} holds what no limiter wrote, and is left as it is: delete it, or keep limits \
         under another prefix"
    )]
    ForeignKey {
        /// The key.
        key: String,
    },
    /// The queue of queries is full, so no more are taken.
    #[display("{waiting} queries wait for the store, and no more are taken")]
    QueueFull {
        /// How many queries wait.
        waiting: usize,
    },
    /// The store can't keep the limit.
    #[from]
    Limit(StoreLimitError),
    /// The runtime on which the client was built has stopped.
    #[display("the runtime that asks the store has stopped")]
    Stopped,
    /// The call was awaited outside of a Tokio runtime, where timeouts can't work.
    #[display(
        "a store is asked from within a Tokio runtime with time enabled, and this is none: await it in one \
         that was built with Builder::enable_all"
    )]
    NoRuntime,
}

impl StoreError {
    pub(crate) fn unreachable(kind: FailureKind, why: impl Into<String>) -> Self {
        let why = why.into();
        Self::Unreachable { kind, why }
    }

    pub(crate) fn garbled(what: impl Into<String>) -> Self {
        Self::InvalidReply { what: what.into() }
    }

    /// The kind of failure.
    pub const fn kind(&self) -> FailureKind {
        match self {
            Self::TimedOut { .. } => FailureKind::TimedOut,
            Self::Unreachable { kind, .. } | Self::ErrorReply { kind, .. } => *kind,
            Self::InvalidReply { .. } => FailureKind::InvalidResponse,
            Self::ForeignKey { .. } => FailureKind::WrongType,
            Self::QueueFull { .. } => FailureKind::Full,
            Self::Limit(_) => FailureKind::Limit,
            Self::Stopped => FailureKind::Stopped,
            Self::NoRuntime => FailureKind::NoRuntime,
        }
    }
}

impl std::error::Error for StoreError {}

/// A limit that the store can't keep exactly: its numbers are doubles, whole below 2^53.
///
/// ```
/// use tollgate::{Algorithm, Rate};
/// use tollgate_redis::{Redis, StoreLimitError};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tollgate_redis::ConnectError> {
///
/// let redis = Redis::connect("redis://127.0.0.1:6379")?;
/// let many = redis.limiter("visits", Rate::per_day(1_000_000)).algorithm(Algorithm::SlidingCounter);
/// let error = many.build().unwrap_err();
/// assert!(matches!(error, StoreLimitError::TooLarge { .. }));
/// assert!(error.to_string().ends_with("use a shorter window, or GCRA"));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Display, From, PartialEq, Eq)]
#[non_exhaustive]
pub enum StoreLimitError {
    /// The algorithm doesn't accept the rate.
    #[from]
    Rate(LimitError),
    /// A product that has to stay below 2^53 doesn't.
    #[display(
        "\"{limit}\" can't be kept exactly in a store whose numbers are whole below 2^53: {what} reaches it; \
         {instead}"
    )]
    TooLarge {
        /// The limit.
        limit: String,
        /// What is too large.
        what: &'static str,
        /// What to do instead.
        instead: &'static str,
    },
    /// A window that isn't a whole number of microseconds, the resolution of the store's clock.
    #[display(
        "rate \"{rate}\": the store's clock shows microseconds, so a window must be a whole number of them; \
         use GCRA or a token bucket"
    )]
    TooFine {
        /// The rate.
        rate: Rate,
    },
    /// An operation that a leased limit doesn't have.
    #[display("{what} needs a limit that is counted exactly; this one is leased")]
    Leased {
        /// The operation.
        what: &'static str,
    },
    /// An algorithm that can't be reserved from, or can't be leased.
    #[display("{what} needs GCRA, a token bucket or a leaky bucket; \"{limit}\" is none of them")]
    UnsupportedAlgorithm {
        /// The operation.
        what: &'static str,
        /// The limit.
        limit: String,
    },
}

impl std::error::Error for StoreLimitError {}

impl StoreLimitError {
    /// The error for an operation that limits of this kind don't have.
    pub(crate) fn not_a_level(what: &'static str, kind: &LimitKind) -> Self {
        let limit = format!("{kind:?}");
        Self::UnsupportedAlgorithm { what, limit }
    }
}

/// Why a [`Redis`](crate::Redis) couldn't be built.
///
/// ```
/// use tollgate_redis::{ConnectError, Redis};
///
/// // Connecting needs a runtime.
/// let error = Redis::connect("redis://127.0.0.1").unwrap_err();
/// assert_eq!(error, ConnectError::NoRuntime);
/// ```
#[derive(Clone, Debug, Display, From, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConnectError {
    /// The URL isn't a valid address.
    #[from]
    Address(AddressError),
    /// The call was outside of a Tokio runtime.
    #[display(
        "there is no Tokio runtime here to connect on: call this from async code, or within \
         `Runtime::enter`"
    )]
    NoRuntime,
    /// The store can't be reached as the URL says, for example because a certificate can't be read.
    Store(StoreError),
}

impl std::error::Error for ConnectError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_is_where_all_says() {
        for (place, kind) in FailureKind::ALL.into_iter().enumerate() {
            assert_eq!(kind as usize, place, "{kind:?}");
        }
    }

    #[test]
    fn the_document_says_of_every_kind_what_to_do_and_of_no_other() {
        let document = include_str!("../docs/store.md");
        let table = document.split_once("| kind | what to do |\n|---|---|\n");
        let (_, table) = table.expect("a table of kinds");
        let lines = table.lines().take_while(|line| line.starts_with('|'));
        let kinds = lines.filter_map(|line| line.split('|').nth(1));
        let told: Vec<_> = kinds
            .flat_map(|kinds| kinds.split(',').map(str::trim))
            .collect();
        for kind in FailureKind::ALL {
            let count = told
                .iter()
                .filter(|told| **told == format!("`{kind}`"))
                .count();
            assert_eq!(count, 1, "{kind}");
            assert_eq!(kind.to_string(), kind.name());
        }
        assert_eq!(told.len(), FailureKind::ALL.len(), "{told:?}");
    }
}
