//! What can go wrong between here and the store, and why a limit can't be kept there.

use std::time::Duration;

use derive_more::{Display, From};
use tollgate::{LimitError, Rate};
use tollgate_engine::backend::LimitKind;

pub use tollgate_engine::backend::FailureKind;

use crate::address::AddressError;

/// The store couldn't be asked, or gave no answer that could be used. It says nothing about the limit:
/// [`OnStoreFailure`](tollgate_engine::policy::OnStoreFailure) decides what a request gets then.
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
    /// No answer came in time.
    #[display("the store gave no answer within {after:?}")]
    TimedOut {
        /// How long it was waited for.
        after: Duration,
    },
    /// There is no connection.
    #[display("the store can't be reached: {why}")]
    Unreachable {
        /// What sort of failure that is.
        kind: FailureKind,
        /// Why, as far as is known, and what to do about it.
        why: String,
    },
    /// The store answered with an error: a wrong password, out of memory, read-only, busy, no permission.
    #[display("the store answered with an error: {error}")]
    ErrorReply {
        /// What sort of failure that is.
        kind: FailureKind,
        /// What it said, and what to do about it.
        error: String,
    },
    /// The store answered something that isn't an answer.
    #[display("the store's answer makes no sense: {what}")]
    InvalidReply {
        /// What was expected, and what came.
        what: String,
    },
    /// A key holds what no limiter wrote. It is left as it is, and nothing is charged.
    #[display(
        "the key {key:?} holds what no limiter wrote, and is left as it is: delete it, or keep limits \
         under another prefix"
    )]
    ForeignKey {
        /// Which one.
        key: String,
    },
    /// So many questions wait that no more are taken.
    #[display("{waiting} questions wait for the store, and no more are taken")]
    QueueFull {
        /// How many wait.
        waiting: usize,
    },
    /// What was asked for can't be kept in the store.
    #[from]
    Limit(StoreLimitError),
    /// The runtime that the client was built on has stopped.
    #[display("the runtime that asks the store has stopped")]
    Stopped,
    /// It was awaited outside of a Tokio runtime, where nothing can tell that time is up.
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

    /// What sort of failure it is.
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

/// A limit that the store's numbers can't carry exactly: they are doubles, whole below 2^53.
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
    /// The algorithm itself doesn't take the rate.
    #[from]
    Rate(LimitError),
    /// A product that has to stay below 2^53 doesn't.
    #[display(
        "\"{limit}\" can't be kept exactly in a store whose numbers are whole below 2^53: {what} reaches it; \
         {instead}"
    )]
    TooLarge {
        /// The limit that was asked for.
        limit: String,
        /// What is too large.
        what: &'static str,
        /// What to do instead.
        instead: &'static str,
    },
    /// A window that isn't a whole number of microseconds, which is as fine as the store's clock is.
    #[display(
        "rate \"{rate}\": the store's clock shows microseconds, so a window must be a whole number of them; \
         use GCRA or a token bucket"
    )]
    TooFine {
        /// The rate that was asked for.
        rate: Rate,
    },
    /// Something that only a limit that is counted exactly can do.
    #[display("{what} needs a limit that is counted exactly; this one is leased")]
    Leased {
        /// What was asked for.
        what: &'static str,
    },
    /// A reservation of an algorithm that takes none, or a lease of one.
    #[display("{what} needs GCRA, a token bucket or a leaky bucket; \"{limit}\" is none of them")]
    UnsupportedAlgorithm {
        /// What was asked for.
        what: &'static str,
        /// What it was asked of.
        limit: String,
    },
}

impl std::error::Error for StoreLimitError {}

impl StoreLimitError {
    /// A limit of this kind can't be asked that.
    pub(crate) fn not_a_level(what: &'static str, kind: &LimitKind) -> Self {
        let limit = format!("{kind:?}");
        Self::UnsupportedAlgorithm { what, limit }
    }
}

/// Why there is no [`Redis`](crate::Redis).
///
/// ```
/// use tollgate_redis::{ConnectError, Redis};
///
/// // Outside a runtime there is nothing to connect on.
/// let error = Redis::connect("redis://127.0.0.1").unwrap_err();
/// assert_eq!(error, ConnectError::NoRuntime);
/// ```
#[derive(Clone, Debug, Display, From, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConnectError {
    /// The URL doesn't say where the store is.
    #[from]
    Address(AddressError),
    /// It was called outside a Tokio runtime.
    #[display(
        "there is no Tokio runtime here to connect on: call this from async code, or within \
         `Runtime::enter`"
    )]
    NoRuntime,
    /// The store can't be reached in the way that the URL says: a certificate can't be read, for example.
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
