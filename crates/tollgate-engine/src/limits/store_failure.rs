//! A store that couldn't be asked, as a value: why, and what decided instead.

use std::fmt;
use std::time::Duration;

use tollgate::{Decision, Outcome};

use crate::policy::OnStoreFailure;

/// A request that is denied because the store couldn't be asked may try again after so long.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// The store couldn't be asked about a check: why, and what its limit has chosen for that.
///
/// ```
/// use tollgate_engine::backend::{FailureKind, StoreUnavailable};
/// use tollgate_engine::policy::OnStoreFailure;
///
/// let store = StoreUnavailable { kind: FailureKind::TimedOut, fallback: OnStoreFailure::Closed };
/// assert!(!store.decision().is_allowed());
/// assert_eq!(store.decision().retry_after_secs(), Some(1));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreUnavailable {
    /// Why.
    pub kind: FailureKind,
    /// What decided instead of the store.
    pub fallback: OnStoreFailure,
}

/// What one check says by itself; or that nobody could be asked, and its limit is
/// [closed](OnStoreFailure::Closed) then.
///
/// ```
/// use tollgate::Decision;
/// use tollgate_engine::backend::{CheckResult, FailureKind, StoreUnavailable};
/// use tollgate_engine::policy::OnStoreFailure;
///
/// let known: CheckResult = Ok(Decision::UNLIMITED);
/// let unknown: CheckResult = Err(StoreUnavailable {
///     kind: FailureKind::TimedOut,
///     fallback: OnStoreFailure::Closed,
/// });
/// assert!(known.is_ok() && unknown.is_err());
/// ```
pub type CheckResult = Result<Decision, StoreUnavailable>;

/// What clients are told of each check.
pub(crate) fn decisions(each: &[CheckResult]) -> Vec<Decision> {
    let told = |one: &CheckResult| one.unwrap_or_else(|store| store.decision());
    each.iter().map(told).collect()
}

impl StoreUnavailable {
    /// What a client is told of a limit that is closed: it is denied, says nothing of how much is left, and may try
    /// again after a second.
    pub fn decision(&self) -> Decision {
        Decision::new(Outcome::Denied, 0, 0, RETRY_AFTER, Duration::ZERO)
    }

    /// Whether the limit is closed while the store can't be asked: then a denial says nothing about the limit.
    pub fn is_closed(&self) -> bool {
        self.fallback == OnStoreFailure::Closed
    }
}

/// Why a store couldn't be asked, told apart so that people know what to do.
///
/// ```
/// use tollgate_engine::backend::FailureKind;
///
/// assert_eq!(FailureKind::TimedOut.to_string(), "timed-out");
/// assert!(FailureKind::Auth.is_lasting() && !FailureKind::TimedOut.is_lasting());
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
    InvalidResponse,
    /// A key holds what no limiter wrote.
    WrongType,
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
    /// Every kind, each at the place of its number.
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
        Self::InvalidResponse,
        Self::WrongType,
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
            Self::InvalidResponse => "garbled",
            Self::WrongType => "foreign",
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
                | Self::WrongType
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
