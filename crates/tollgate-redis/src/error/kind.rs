//! What sort of failure an error is: told apart so that people know what to do.

use std::fmt;

/// What sort of failure a [`StoreError`](super::StoreError) is: what people act on.
///
/// ```
/// use std::time::Duration;
/// use tollgate_redis::{FailureKind, StoreError};
///
/// let error = StoreError::TimedOut { after: Duration::from_millis(20) };
/// assert_eq!(error.kind(), FailureKind::TimedOut);
/// assert_eq!(error.kind().to_string(), "timed-out");
/// assert!(FailureKind::Auth.is_lasting() && !error.kind().is_lasting());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum FailureKind {
    /// No answer, or no connection, came in time.
    TimedOut,
    /// Nothing listens there.
    Refused,
    /// A connection was closed or reset.
    Disconnected,
    /// There is no way there: no route, or another fault of the network.
    Unreachable,
    /// There is no such host, socket, or master that the sentinels know by this name.
    NotFound,
    /// A wrong or a missing password, or a user that the store doesn't know.
    Auth,
    /// The user may not do what limits need.
    NoPermission,
    /// No agreement about TLS: a certificate that isn't trusted, or one side speaks TLS and the other
    /// doesn't.
    Tls,
    /// It takes no writes: a replica, or a server that waits for its disk or its replicas.
    ReadOnly,
    /// Its memory is used up.
    OutOfMemory,
    /// It still reads what it had kept.
    Loading,
    /// It runs a script that doesn't end.
    Busy,
    /// A cluster that moves its slots, or has none for a key.
    Moved,
    /// What came is no answer.
    Garbled,
    /// A key holds what no limiter wrote.
    Foreign,
    /// So many questions wait that no more are taken.
    Full,
    /// The limit can't be kept in a store.
    Limit,
    /// The runtime that asks has stopped.
    Stopped,
    /// It was asked outside of a Tokio runtime.
    NoRuntime,
    /// Anything else that the store said.
    Other,
}

impl FailureKind {
    /// Every kind, in the order in which [`RedisStats::failures`](crate::RedisStats::failures) has them.
    pub const ALL: [Self; 20] = [
        Self::TimedOut,
        Self::Refused,
        Self::Disconnected,
        Self::Unreachable,
        Self::NotFound,
        Self::Auth,
        Self::NoPermission,
        Self::Tls,
        Self::ReadOnly,
        Self::OutOfMemory,
        Self::Loading,
        Self::Busy,
        Self::Moved,
        Self::Garbled,
        Self::Foreign,
        Self::Full,
        Self::Limit,
        Self::Stopped,
        Self::NoRuntime,
        Self::Other,
    ];

    /// Its one name, for people, metrics and files, such as `out-of-memory`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::TimedOut => "timed-out",
            Self::Refused => "refused",
            Self::Disconnected => "disconnected",
            Self::Unreachable => "unreachable",
            Self::NotFound => "not-found",
            Self::Auth => "auth",
            Self::NoPermission => "no-permission",
            Self::Tls => "tls",
            Self::ReadOnly => "read-only",
            Self::OutOfMemory => "out-of-memory",
            Self::Loading => "loading",
            Self::Busy => "busy",
            Self::Moved => "moved",
            Self::Garbled => "garbled",
            Self::Foreign => "foreign",
            Self::Full => "full",
            Self::Limit => "limit",
            Self::Stopped => "stopped",
            Self::NoRuntime => "no-runtime",
            Self::Other => "other",
        }
    }

    /// Whether it stays until somebody does something about it here: waiting doesn't mend it.
    pub const fn is_lasting(self) -> bool {
        matches!(
            self,
            Self::Auth
                | Self::NoPermission
                | Self::Tls
                | Self::Foreign
                | Self::Limit
                | Self::Stopped
                | Self::NoRuntime
        )
    }
}

impl fmt::Display for FailureKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

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
        let document = include_str!("../../docs/distributed.md");
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
