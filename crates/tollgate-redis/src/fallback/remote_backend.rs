//! What the answer without a store needs to know of that store.

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
    /// What sort of failure an error is, and of how much of the store. By default of all of it, for a reason that has no
    /// kind of its own.
    fn failure(&self, error: &Self::Error) -> RemoteFailure {
        let _ = error;
        RemoteFailure {
            kind: FailureKind::Other,
            extent: FailureScope::Whole,
        }
    }

    /// How many tokens of a check's key the store has given ahead that [`LocalLimits`](crate::LocalLimits) wasn't told of: those that
    /// were spent, and those that are left, which count as spent from now on. Asked before something is decided without the
    /// store. By default none.
    fn take_unreported_spending(&self, check: &Check<'_>) -> u64 {
        let _ = check;
        0
    }

    /// A denial of one of these checks that was told before and still holds as far as is known: it decides while the
    /// store can't be asked. By default none is known.
    fn known_denial(&self, checks: &[Check<'_>]) -> Option<(usize, Decision)> {
        let _ = checks;
        None
    }
}

/// A failure of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteFailure {
    /// Why.
    pub kind: FailureKind,
    /// Of how much of the store.
    pub extent: FailureScope,
}

/// How much of a store fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureScope {
    /// All of it.
    Whole,
    /// One node of many, and the others answer: no [circuit](super::BreakerThresholds) breaks, which would keep others from what
    /// they can have.
    Part,
    /// One key, which holds what no limiter wrote: the store itself works, and nothing but that key is decided without it.
    Key,
}
