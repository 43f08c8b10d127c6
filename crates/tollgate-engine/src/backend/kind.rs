//! What sort of limit a check is of, and what headers say about it.

use std::fmt;
use std::time::Duration;

use tollgate::quota::Quota;
use tollgate::{Algorithm, Rate};

/// What sort of limit, and how much.
///
/// ```
/// # use std::{convert::Infallible, future::{Ready, ready}, pin::pin, sync::Mutex, task::{Context, Waker}};
/// # use tollgate::{Decision, Timestamp};
/// # use tollgate_engine::backend::{Answer, Backend, Check, Counter, Limit, LimitKind};
/// # use tollgate_engine::document::Format;
/// # use tollgate_engine::policy::OnStoreFailure;
/// # use tollgate_engine::{Engine, Facts, Policy};
/// # struct Noting(Mutex<Vec<String>>);
/// # impl Backend for Noting {
/// #     type Error = Infallible;
/// #     type Asking<'a> = Ready<Result<Answer, Infallible>>;
/// #     fn now(&self) -> Timestamp { Timestamp::ZERO }
/// #     fn check<'a>(&'a self, checks: &'a [Check<'a>]) -> Self::Asking<'a> {
/// // In a backend, of a policy with `{name: per-user, key: user, rate: 5/s, quota: 9/day}`:
/// for check in checks {
///     let note = match check.limit.kind() {
///         LimitKind::Rate { rate, .. } => rate.to_string(),
///         LimitKind::Quota(quota) => quota.to_string(),
///         _ => "slots".to_owned(),
///     };
/// #     self.0.lock().expect("not poisoned").push(note);
/// }
/// #         ready(Ok(Answer::new(None, Decision::UNLIMITED)))
/// #     }
/// # }
/// # let policy = Policy::from_text("limits: [{name: per-user, key: user, rate: 5/s, quota: 9/day}]", Format::Yaml)?.policy;
/// # let engine = Engine::new(policy, Noting(Mutex::default()))?;
/// # let facts = Facts::new().with("user", "42");
/// # let _ = pin!(engine.decide_async(&facts)).poll(&mut Context::from_waker(Waker::noop()));
/// # let noted = engine.backend().0.lock().expect("not poisoned").join(", ");
/// assert_eq!(noted, "5/s, 9/day");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum LimitKind {
    /// So many in a time.
    Rate {
        /// How many.
        rate: Rate,
        /// How they are counted.
        algorithm: Algorithm,
    },
    /// A total over a long period.
    Quota(Quota),
    /// So many at once.
    Concurrency(u32),
}

impl LimitKind {
    /// How many it allows in its [window](Self::window), or at once; none if it limits nothing.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollgate::quota::Quota;
    /// use tollgate_engine::backend::LimitKind;
    ///
    /// let day = LimitKind::Quota(Quota::rolling(500, Duration::from_secs(86_400)));
    /// assert_eq!((day.quota(), day.window()), (Some(500), Some(Duration::from_secs(86_400))));
    /// let slots = LimitKind::Concurrency(8);
    /// assert_eq!((slots.quota(), slots.window()), (Some(8), None));
    /// ```
    pub fn quota(&self) -> Option<u64> {
        match self {
            Self::Rate { rate, .. } => (!rate.is_unlimited()).then(|| rate.count()),
            Self::Quota(quota) => (!quota.is_unlimited()).then(|| quota.count()),
            Self::Concurrency(slots) => Some(u64::from(*slots)),
        }
    }

    /// The time that its [quota](Self::quota) is for; none if it is for none, or for days and months of a
    /// calendar, which aren't equally long.
    pub fn window(&self) -> Option<Duration> {
        match self {
            Self::Rate { rate, .. } => rate.period(),
            Self::Quota(quota) => quota.rolling_period(),
            Self::Concurrency(_) => None,
        }
    }
}

/// As a policy says it.
impl fmt::Display for LimitKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rate { rate, .. } => rate.fmt(f),
            Self::Quota(quota) => quota.fmt(f),
            Self::Concurrency(slots) => write!(f, "{slots} at once"),
        }
    }
}
