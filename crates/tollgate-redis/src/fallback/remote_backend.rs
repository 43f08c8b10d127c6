//! What a [`Fallback`](super::Fallback) needs from a store that can fail.

use tollgate::Decision;
use tollgate_engine::backend::{Backend, Check, FailureKind};

/// A backend that can fail, as a [`Fallback`](super::Fallback) sees it.
///
/// ```
/// use tollgate::{Clock, Timestamp, clock::Manual};
/// use tollgate_engine::backend::{Answer, Backend, Check, CheckResult, FailureKind};
/// use tollgate_redis::{FailureScope, RemoteBackend, RemoteFailure};
///
/// /// A store that is too slow.
/// struct Slow(Manual);
///
/// impl Backend for Slow {
///     type Error = &'static str;
///     async fn ask<'a>(
///         &'a self,
///         _: &'a [Check<'a>],
///         _: Option<&'a mut Vec<CheckResult>>,
///     ) -> Result<Answer, Self::Error> {
///         Err("no answer within 5 ms")
///     }
///     fn now(&self) -> Timestamp {
///         self.0.now()
///     }
/// }
///
/// impl RemoteBackend for Slow {
///     fn failure(&self, _: &&'static str) -> RemoteFailure {
///         RemoteFailure { kind: FailureKind::TimedOut, extent: FailureScope::Whole }
///     }
/// }
/// ```
pub trait RemoteBackend: Backend {
    /// The kind of failure that an error is, and how much of the store it affects. By default all of the store,
    /// with a kind for other reasons.
    fn failure(&self, error: &Self::Error) -> RemoteFailure {
        let _ = error;
        RemoteFailure {
            kind: FailureKind::Other,
            extent: FailureScope::Whole,
        }
    }

    /// Leased tokens of a check's key that [`LocalLimits`](crate::LocalLimits) doesn't know of: those that were
    /// spent, and those that remain, which count as spent from now on. Called before something is decided
    /// without the store. By default 0.
    fn take_unreported_spending(&self, check: &Check<'_>) -> u64 {
        let _ = check;
        0
    }

    /// An earlier denial of one of these checks that hasn't expired. It decides while the store is unreachable.
    /// By default none is known.
    fn known_denial(&self, checks: &[Check<'_>]) -> Option<(usize, Decision)> {
        let _ = checks;
        None
    }
}

/// A failure of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteFailure {
    /// The kind of failure.
    pub kind: FailureKind,
    /// How much of the store it affects.
    pub extent: FailureScope,
}

/// How much of a store a failure affects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureScope {
    /// All of it.
    Whole,
    /// One node of a cluster, while others answer. It opens no [circuit](super::BreakerThresholds), which would
    /// block the nodes that work.
    Part,
    /// One key, whose value no limiter wrote. The store works, and only this key is decided without it.
    Key,
}
