//! An observer, which gets every decision: for metrics, logs and traces.

use std::time::Duration;

use tollgate::{Decision, DenyReason};

use crate::cause::Cause;
use crate::limits::RequestKey;
use crate::policy::{Mode, OnStoreFailure};
use crate::warning::Warning;

/// Gets every decision, on the thread that decides, once it is set by
/// [`Engine::with_observer`](crate::Engine::with_observer). An engine without an observer neither reads the clock for
/// it nor calls anything.
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
    /// Called when a request is decided, and when a rule in shadow mode would have denied it. For a request of
    /// descriptors, it is called for each descriptor with a limit, or once if none has one.
    fn on_decision(&self, event: &Event<'_>);

    /// Called when a limit of the policy in force never applies, for example if its first hundred requests all lacked
    /// its key. Each [`Warning`] is reported once, by the request that reveals it, even to an observer that wants
    /// denials only.
    fn on_warning(&self, warning: &Warning) {
        let _ = warning;
    }

    /// The events that the observer wants. Read when the observer is set, and again before each event.
    fn wants(&self) -> ObserverInterest {
        ObserverInterest::Everything
    }
}

/// The events that an [`Observer`] gets.
///
/// ```
/// use tollgate_engine::observer::{Event, Observer, ObserverInterest};
///
/// struct Log;
///
/// impl Observer for Log {
///     fn on_decision(&self, event: &Event<'_>) {
///         if let (Some(key), Some(reason)) = (event.key, event.reason) {
///             println!("{} denied {:x?}: {reason}", event.cause, key.fingerprint());
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
    /// Every decision.
    #[default]
    Everything,
    /// Denials, and what rules in shadow mode would have denied. Allowed requests then cost nothing: the clock isn't
    /// read, so [`Event::duration`] is zero.
    Denials,
}

/// An event for an [`Observer`].
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
    /// What made the decision: a rule, a tier, a list or an override.
    pub cause: Cause<'a>,
    /// The key of the decision. `None` if no rule decided. Its fingerprint identifies it. Its text is what the client
    /// sent, such as `user=42`.
    pub key: Option<RequestKey<'a>>,
    /// Why the request was denied, or would have been. `None` if it was allowed.
    pub reason: Option<DenyReason>,
    /// Whether the cause is enforced for this key, or only counts.
    pub mode: Mode,
    /// The percentage of keys for which the rule is enforced: 100 or 0 unless the rule is being rolled out.
    pub enforced_percent: u8,
    /// The decision. For a rule in shadow mode, the decision that it would have made.
    pub decision: Decision,
    /// What decided if a store was unavailable. `None` if the store answered, or there is none.
    pub fallback: Option<OnStoreFailure>,
    /// Whether the request was allowed, and the limit's use is what the policy calls near the limit.
    pub near_limit: bool,
    /// How long the whole decision took. Zero for an observer that [wants](Observer::wants) denials only.
    pub duration: Duration,
}
