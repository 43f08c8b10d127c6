//! An observer, which is told of every verdict: for metrics, logs and traces.

use std::time::Duration;

use tollgate::{Decision, DenyReason};

use crate::cause::Cause;
use crate::limits::RequestKey;
use crate::policy::{Mode, OnStoreFailure};
use crate::warning::Warning;

/// Is told of every verdict, on the thread that decides, once it is given to
/// [`Engine::with_observer`](crate::Engine::with_observer). An engine without one neither reads the clock
/// for it nor calls anything.
///
/// ```
/// use std::sync::atomic::{AtomicU64, Ordering};
/// use tollgate_engine::observer::{Event, Observer};
///
/// #[derive(Default)]
/// struct DeniedRequest(AtomicU64);
///
/// impl Observer for DeniedRequest {
///     fn on_decision(&self, event: &Event<'_>) {
///         self.0.fetch_add(u64::from(!event.decision.is_allowed()), Ordering::Relaxed);
///     }
/// }
/// ```
pub trait Observer: Send + Sync {
    /// A request was decided, or a rule in shadow would have refused it. Of a request of descriptors, each
    /// that met a limit is told; of one that met none, that.
    fn on_decision(&self, event: &Event<'_>);

    /// A limit of the policy in force never applies: it found its key in none of its first hundred requests, say. Each
    /// [`Warning`] is told once, by the request that makes it known; an observer of refusals alone is told, too.
    fn on_warning(&self, warning: &Warning) {
        let _ = warning;
    }

    /// What it is told of. Asked when it is given to an engine, and again when something is told.
    fn wants(&self) -> ObserverInterest {
        ObserverInterest::Everything
    }
}

/// What an [`Observer`] is told of.
///
/// ```
/// use tollgate_engine::observer::{Event, Observer, ObserverInterest};
///
/// struct Log;
///
/// impl Observer for Log {
///     fn on_decision(&self, event: &Event<'_>) {
///         if let (Some(key), Some(reason)) = (event.key, event.reason) {
///             println!("{} refused {:x?}: {reason}", event.cause, key.fingerprint());
///         }
///     }
///
///     fn wants(&self) -> ObserverInterest {
///         ObserverInterest::Denials
///     }
/// }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum ObserverInterest {
    /// Every verdict.
    #[default]
    Everything,
    /// Refusals, and what rules in shadow would have refused. What passes costs nothing then: the clock isn't read, so
    /// nobody is told how long a decision [took](Event::duration).
    Denials,
}

/// What an [`Observer`] is told.
///
/// ```
/// use tollgate_engine::observer::Event;
/// use tollgate_engine::policy::Mode;
///
/// /// A line of a log.
/// fn line(event: &Event<'_>) -> String {
///     let shadow = if event.mode == Mode::Shadow { "in shadow, " } else { "" };
///     let near = if event.near_limit { ", near the limit" } else { "" };
///     format!("{shadow}{}: {:?}{near} in {:?}", event.cause, event.decision.outcome, event.duration)
/// }
/// ```
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Event<'a> {
    /// What decided.
    pub cause: Cause<'a>,
    /// The key by which it was decided; none if no rule decided. Its fingerprint tells it from others, and as text it is
    /// what the client has sent: `user=42`.
    pub key: Option<RequestKey<'a>>,
    /// Why it was refused, or would have been; none if it passed.
    pub reason: Option<DenyReason>,
    /// Whether what decided is enforced for this key, or only counts.
    pub mode: Mode,
    /// For how many keys in a hundred the rule does: 100 or 0 unless it is being rolled out.
    pub enforced_percent: u8,
    /// What was decided: for a rule in shadow, what it would have been.
    pub decision: Decision,
    /// What decided if a store couldn't be asked; none if it was, or there is none.
    pub fallback: Option<OnStoreFailure>,
    /// Whether it passed, and the limit is as far used as the policy calls near.
    pub near_limit: bool,
    /// How long the whole decision took; zero for one who [wants](Observer::wants) refusals alone.
    pub duration: Duration,
}
