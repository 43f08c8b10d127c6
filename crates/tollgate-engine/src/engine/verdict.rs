//! The decision about a request: whether it is allowed, which rule decided, and what the request holds while it runs.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use tollgate::{Decision, Outcome, Timestamp};

pub use crate::bounds::BoundExceeded;
pub use crate::cause::Cause;
use crate::engine::overrides::LimitOverride;
use crate::limits::{LimitKind, StoreUnavailable};
use crate::matcher::inline_vec::InlineVec;
use crate::policy::Mode;

mod cause;
mod findings;
mod permits;

pub use findings::{DecisionDetails, LimitState, ShadowDenial};
pub use permits::Permits;
pub use tollgate::DenyReason;

pub(crate) use cause::{DecidedBy, deny_reason};

/// The decision about a request: allowed, with the permits that it holds, or denied.
///
/// Match on it, and keep an allowed request for as long as it runs: dropping it releases the permits of its
/// concurrency limits. Either variant gives the [details](DecisionDetails).
///
/// ```
/// # use tollgate::clock::Manual;
/// # use tollgate_engine::backend::Memory;
/// # use tollgate_engine::document::Format;
/// # use tollgate_engine::verdict::Cause;
/// # use tollgate_engine::{Engine, Facts, Policy};
/// use tollgate_engine::RequestDecision;
///
/// # let memory = Memory::builder().clock(Manual::new()).wall(Manual::new()).build();
/// # let text = "limits: [{name: per-user, key: [user], rate: 1/min, concurrency: 5}]";
/// # let engine = Engine::new(Policy::from_text(text, Format::Yaml)?.policy, memory)?;
/// let facts = Facts::new().with("user", "42");
/// match engine.decide(&facts) {
///     RequestDecision::Allowed(passed) => {
///         // The request runs here, or in a task that `passed.into_permits()` is moved into.
///         drop(passed);
///     }
///     RequestDecision::Denied(denied) => println!("429: {}", denied.cause()),
/// }
/// let RequestDecision::Denied(denied) = engine.decide(&facts) else { panic!("the second in a minute") };
/// assert_eq!(denied.cause(), Cause::Rule("per-user"));
/// assert_eq!(denied.key().expect("by user").to_string(), "user=42");
/// assert_eq!(denied.decision().wait_or_max().as_secs(), 60);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[must_use = "what passed gives back its slots when it is dropped: match on it, and keep it while the request runs"]
pub enum RequestDecision<'f> {
    /// The request is allowed.
    Allowed(AllowedRequest<'f>),
    /// The request is denied, and was charged nothing.
    Denied(DeniedRequest<'f>),
}

/// An allowed request, with what it holds while it runs.
///
/// ```
/// # use tollgate::clock::Manual;
/// # use tollgate_engine::backend::Memory;
/// # use tollgate_engine::document::Format;
/// # use tollgate_engine::{Engine, Facts, Policy, RequestDecision};
/// # let memory = Memory::builder().clock(Manual::new()).wall(Manual::new()).build();
/// # let text = "limits: [{name: searches, rate: 10/h}]";
/// # let engine = Engine::new(Policy::from_text(text, Format::Yaml)?.policy, memory)?;
/// let facts = Facts::new();
/// let RequestDecision::Allowed(passed) = engine.decide(&facts) else { panic!("the first") };
/// assert_eq!(passed.decision().remaining, 9);
/// assert!(!passed.is_near_limit());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(derive_more::Debug)]
#[debug("{_0:?}")]
#[must_use = "what passed gives back its slots when it is dropped"]
pub struct AllowedRequest<'f>(DecisionDetails<'f>);

/// A denied request.
///
/// ```
/// # use tollgate::clock::Manual;
/// # use tollgate_engine::backend::Memory;
/// # use tollgate_engine::document::Format;
/// # use tollgate_engine::{Engine, Facts, Policy, RequestDecision};
/// # let memory = Memory::builder().clock(Manual::new()).wall(Manual::new()).build();
/// # let text = "block: [{ip: 203.0.113.0/24}]";
/// # let engine = Engine::new(Policy::from_text(text, Format::Yaml)?.policy, memory)?;
/// let facts = Facts::new().with("ip", "203.0.113.7");
/// let RequestDecision::Denied(denied) = engine.decide(&facts) else { panic!("it is blocked") };
/// assert_eq!(denied.cause().to_string(), "block[0]");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(derive_more::Debug)]
#[debug("{_0:?}")]
pub struct DeniedRequest<'f>(DecisionDetails<'f>);

/// The state of a decision, complete or in progress.
pub(crate) struct DecisionBasis {
    pub(crate) is_allowed: bool,
    pub(crate) rule_decision: RuleDecision,
    pub(crate) permits: Permits,
    /// What rules in shadow mode would have denied.
    pub(crate) shadows: InlineVec<RuleDecision, 2>,
    pub(crate) unavailable: Option<StoreUnavailable>,
    /// The time of the decision, if a rule that warms up may have made it.
    pub(crate) decided_at: Option<Timestamp>,
    /// The limit override of the rule that decided.
    pub(crate) limit_override: Option<Arc<LimitOverride>>,
    /// The override that blocked the request.
    pub(crate) block_id: Option<u64>,
    /// The request could have waited, but the queues are full.
    pub(crate) is_queue_full: bool,
    /// Each limit in force, if the caller wants them listed and there are several.
    pub(crate) limits: Option<Box<[ListedLimit]>>,
}

/// The decision of one limit in force.
#[derive(Clone, Debug)]
pub(crate) struct ListedLimit {
    pub(crate) by: DecidedBy,
    pub(crate) kind: LimitKind,
    pub(crate) decision: Decision,
    /// The cost of the request under this limit.
    pub(crate) cost: u64,
}

impl ListedLimit {
    /// Sorts limits, the most urgent first: those that deny, by the longest wait, then those with the fewest such
    /// requests remaining. Permits are released by themselves, so concurrency limits that allow come last.
    pub(crate) fn urgency(&self) -> (u8, Duration, u64) {
        let left = self.decision.remaining / self.cost;
        match (self.decision.is_allowed(), &self.kind) {
            (false, _) => (
                0,
                // Inverted, so that the longest wait sorts first.
                Duration::MAX.saturating_sub(self.decision.wait_or_max()),
                left,
            ),
            (true, LimitKind::Concurrency(_) | LimitKind::Adaptive(_)) => (2, Duration::ZERO, left),
            (true, _) => (1, Duration::ZERO, left),
        }
    }
}

impl Default for DecisionBasis {
    #[inline]
    fn default() -> Self {
        Self {
            is_allowed: true,
            rule_decision: RuleDecision::new(DecidedBy::Nothing, Decision::UNLIMITED),
            permits: Permits::default(),
            shadows: InlineVec::new(),
            unavailable: None,
            decided_at: None,
            limit_override: None,
            block_id: None,
            is_queue_full: false,
            limits: None,
        }
    }
}

/// A decision, and its cause by number: a rule, a list entry or an override.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RuleDecision {
    pub(crate) by: DecidedBy,
    /// The fingerprint of the key that was charged.
    pub(crate) fingerprint: [u64; 2],
    /// The set of facts that the decision is for.
    pub(crate) facts_set: u32,
    /// The number of the limit that decided, or zero if none did.
    pub(crate) limit: u64,
    pub(crate) decision: Decision,
}

impl<'f> RequestDecision<'f> {
    /// The allowed request. `None` if it was denied.
    ///
    /// ```
    /// # use tollgate::clock::Manual;
    /// # use tollgate_engine::backend::Memory;
    /// # use tollgate_engine::document::Format;
    /// # use tollgate_engine::{Engine, Facts, Policy};
    /// # let memory = Memory::builder().clock(Manual::new()).wall(Manual::new()).build();
    /// # let text = "limits: [{name: exports, concurrency: 1}]";
    /// # let engine = Engine::new(Policy::from_text(text, Format::Yaml)?.policy, memory)?;
    /// let facts = Facts::new();
    /// if let Some(passed) = engine.decide(&facts).allowed() {
    ///     // It holds the only permit until the end of the block.
    ///     assert!(engine.decide(&facts).denied().is_some());
    ///     # drop(passed);
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn allowed(self) -> Option<AllowedRequest<'f>> {
        match self {
            Self::Allowed(passed) => Some(passed),
            Self::Denied(_) => None,
        }
    }

    /// The denied request. `None` if it was allowed.
    pub fn denied(&self) -> Option<&DeniedRequest<'f>> {
        match self {
            Self::Allowed(_) => None,
            Self::Denied(refused) => Some(refused),
        }
    }

    /// A decision that allows the request until more is known.
    #[inline]
    pub(crate) fn new(findings: DecisionDetails<'f>) -> Self {
        Self::Allowed(AllowedRequest(findings))
    }

    /// The details, to be filled in. [`into_settled`](Self::into_settled) then picks the variant.
    #[inline]
    pub(crate) fn findings_mut(&mut self) -> &mut DecisionDetails<'f> {
        match self {
            Self::Allowed(AllowedRequest(findings)) | Self::Denied(DeniedRequest(findings)) => {
                findings
            }
        }
    }

    /// Picks the variant by the details that were filled in.
    #[inline]
    pub(crate) fn into_settled(self) -> Self {
        match self {
            Self::Allowed(AllowedRequest(findings)) if !findings.decision_data.is_allowed => {
                Self::Denied(DeniedRequest(findings))
            }
            settled => settled,
        }
    }
}

impl AllowedRequest<'_> {
    /// The permits and estimates that the request holds while it runs. They borrow nothing, so they can move into a
    /// task.
    pub fn into_permits(self) -> Permits {
        self.0.decision_data.permits
    }

    /// Takes the permits out, and leaves the details readable. `None` if the request holds nothing.
    ///
    /// ```
    /// # use tollgate::clock::Manual;
    /// # use tollgate_engine::backend::Memory;
    /// # use tollgate_engine::document::Format;
    /// # use tollgate_engine::{Engine, Facts, Policy, RequestDecision};
    /// # let memory = Memory::builder().clock(Manual::new()).wall(Manual::new()).build();
    /// # let text = "limits: [{name: exports, concurrency: 1}]";
    /// # let engine = Engine::new(Policy::from_text(text, Format::Yaml)?.policy, memory)?;
    /// let facts = Facts::new();
    /// let RequestDecision::Allowed(mut passed) = engine.decide(&facts) else { panic!("the first") };
    /// let permits = passed.take_permits().expect("a permit");
    /// assert_eq!(passed.decision().remaining, 0);
    /// assert!(passed.take_permits().is_none());
    /// # drop(permits);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn take_permits(&mut self) -> Option<Permits> {
        let own = &mut self.0.decision_data.permits;
        (!own.is_empty()).then(|| std::mem::take(own))
    }

    /// Adds permits of rules in shadow mode to those of the request.
    pub(crate) fn hold_permits(&mut self, permits: Permits) {
        self.0.decision_data.permits.hold(permits.0);
    }
}

impl<'f> Deref for RequestDecision<'f> {
    type Target = DecisionDetails<'f>;

    fn deref(&self) -> &DecisionDetails<'f> {
        match self {
            Self::Allowed(AllowedRequest(findings)) | Self::Denied(DeniedRequest(findings)) => {
                findings
            }
        }
    }
}

impl<'f> Deref for AllowedRequest<'f> {
    type Target = DecisionDetails<'f>;

    fn deref(&self) -> &DecisionDetails<'f> {
        &self.0
    }
}

impl<'f> Deref for DeniedRequest<'f> {
    type Target = DecisionDetails<'f>;

    fn deref(&self) -> &DecisionDetails<'f> {
        &self.0
    }
}

/// The percentage of keys for which a rule in this mode is enforced.
pub(crate) const fn percent_of(mode: Mode) -> u8 {
    match mode {
        Mode::Enforce => 100,
        Mode::Shadow | Mode::Off => 0,
    }
}

/// Whether the request is allowed, and at least this percentage of its limit is used.
pub(crate) fn is_near_limit(decision: &Decision, percent: u8) -> bool {
    let Decision {
        limit, remaining, ..
    } = *decision;
    let used = u128::from(limit.saturating_sub(remaining));
    let near = used * 100 >= u128::from(limit) * u128::from(percent);
    decision.is_allowed() && limit < u64::MAX && near
}

/// The decision about a blocked request.
pub(crate) const BLOCKED: Decision =
    Decision::new(Outcome::Never, 0, 0, Duration::MAX, Duration::ZERO);
