//! An unavailable store as a value: why, and what decided instead.

use std::fmt;
use std::time::Duration;

use tollgate::{Decision, Outcome};

use crate::policy::OnStoreFailure;

/// The `retry_after` of a request that is denied because the store is unavailable.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// The store was unavailable for a check: why, and which fallback its limit has.
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
    /// Why the store was unavailable.
    pub kind: FailureKind,
    /// What decided instead of the store.
    pub fallback: OnStoreFailure,
}

/// The decision of one check by itself; or that the store was unavailable, and the limit is
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

/// The decisions that clients get for these results.
pub(crate) fn decisions(each: &[CheckResult]) -> Vec<Decision> {
    let decision = |one: &CheckResult| one.unwrap_or_else(|store| store.decision());
    each.iter().map(decision).collect()
}

impl StoreUnavailable {
    /// The decision that a client gets from a closed limit: denied, with no information on what remains, and a retry
    /// after a second.
    pub fn decision(&self) -> Decision {
        Decision::new(Outcome::Denied, 0, 0, RETRY_AFTER, Duration::ZERO)
    }

    /// Whether the limit is closed while the store is unavailable. A denial then carries no information about the
    /// limit.
    pub fn is_closed(&self) -> bool {
        self.fallback == OnStoreFailure::Closed
    }
}

/// Why a store was unavailable, in classes that need different action.
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
    /// No answer or connection came before the timeout.
    TimedOut,
    /// Nothing listens at the address.
    Refused,
    /// The connection was closed or reset.
    Disconnected,
    /// There is no route to the host, or the network has another fault.
    Unreachable,
    /// There is no such host or socket, or the sentinels know no master of this name.
    NotFound,
    /// The password is wrong or missing, or the store doesn't know the user.
    Auth,
    /// The user lacks a permission that limits need.
    NoPermission,
    /// The TLS handshake failed: a certificate isn't trusted, or only one side uses TLS.
    Tls,
    /// The store takes no writes: it is a replica, or waits for its disk or its replicas.
    ReadOnly,
    /// The store's memory is full.
    OutOfMemory,
    /// The store is still loading its data.
    Loading,
    /// The store runs a script that doesn't end.
    Busy,
    /// The cluster moves hash slots, or has no node for the key's hash slot.
    Moved,
    /// The response isn't valid.
    InvalidResponse,
    /// The key holds a value that no limiter wrote.
    WrongType,
    /// The queue of requests to the store is full.
    Full,
    /// The limit can't be kept in a store.
    Limit,
    /// The runtime of the store's client has stopped.
    Stopped,
    /// The client was called outside of a Tokio runtime.
    NoRuntime,
    /// Any other error of the store.
    Other,
}

impl FailureKind {
    /// Every kind, in the order of their numbers.
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

    /// The name for people, metrics and files, such as `out-of-memory`.
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

    /// Whether the failure lasts until a person fixes it: waiting doesn't help.
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
