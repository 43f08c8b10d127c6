//! What came of a request: whether it passes, which rule said so, and what it holds meanwhile.

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

/// What came of a request: it passes and holds what it takes, or it is refused.
///
/// Match on it, and keep what passed for as long as the request runs: slots of concurrency limits are given
/// back when it is dropped. Either way it tells [why](DecisionDetails).
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
///     RequestDecision::Denied(refused) => println!("429: {}", refused.cause()),
/// }
/// let RequestDecision::Denied(refused) = engine.decide(&facts) else { panic!("the second in a minute") };
/// assert_eq!(refused.cause(), Cause::Rule("per-user"));
/// assert_eq!(refused.key().expect("by user").to_string(), "user=42");
/// assert_eq!(refused.decision().wait_or_max().as_secs(), 60);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[must_use = "what passed gives back its slots when it is dropped: match on it, and keep it while the request runs"]
pub enum RequestDecision<'f> {
    /// The request may pass.
    Allowed(AllowedRequest<'f>),
    /// It may not, and was charged nothing.
    Denied(DeniedRequest<'f>),
}

/// A request that may pass, with what it holds while it runs.
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

/// A request that may not pass.
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
/// let RequestDecision::Denied(refused) = engine.decide(&facts) else { panic!("it is blocked") };
/// assert_eq!(refused.cause().to_string(), "block[0]");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(derive_more::Debug)]
#[debug("{_0:?}")]
pub struct DeniedRequest<'f>(DecisionDetails<'f>);

/// What was said about a request, or what is said so far.
pub(crate) struct DecisionBasis {
    pub(crate) is_allowed: bool,
    pub(crate) rule_decision: RuleDecision,
    pub(crate) permits: Permits,
    /// What rules in shadow would have refused.
    pub(crate) shadows: InlineVec<RuleDecision, 2>,
    pub(crate) unavailable: Option<StoreUnavailable>,
    /// When, if a rule that warms up may have decided.
    pub(crate) decided_at: Option<Timestamp>,
    /// What was ordered of the rule that decided.
    pub(crate) limit_override: Option<Arc<LimitOverride>>,
    /// The order that refused it.
    pub(crate) block_id: Option<u64>,
    /// It might have waited, but as many wait as may.
    pub(crate) is_queue_full: bool,
    /// Each limit in force, if that was asked for and there are several.
    pub(crate) limits: Option<Box<[ListedLimit]>>,
}

/// What a limit in force said of a request.
#[derive(Clone, Debug)]
pub(crate) struct ListedLimit {
    pub(crate) by: DecidedBy,
    pub(crate) kind: LimitKind,
    pub(crate) decision: Decision,
    /// What the request costs there.
    pub(crate) cost: u64,
}

impl ListedLimit {
    /// The smallest is the most urgent: a limit that denies, the longest wait first; then the one with the fewest such requests
    /// left. Permits come back by themselves, so those of a limit that doesn't deny are last.
    pub(crate) fn urgency(&self) -> (u8, Duration, u64) {
        let left = self.decision.remaining / self.cost;
        match (self.decision.is_allowed(), &self.kind) {
            (false, _) => (
                0,
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

/// A decision, and what made it by number: a rule, a list or an operator's order.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RuleDecision {
    pub(crate) by: DecidedBy,
    /// Of the key by which it was decided.
    pub(crate) fingerprint: [u64; 2],
    /// The set of facts by which it was decided.
    pub(crate) facts_set: u32,
    /// Of the limit that decided; none has zero.
    pub(crate) limit: u64,
    pub(crate) decision: Decision,
}

impl<'f> RequestDecision<'f> {
    /// What passed; none if it was refused.
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
    ///     // It holds the only slot until the end of the block.
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

    /// What was refused; none if it passed.
    pub fn denied(&self) -> Option<&DeniedRequest<'f>> {
        match self {
            Self::Allowed(_) => None,
            Self::Denied(refused) => Some(refused),
        }
    }

    /// Of a request that nothing was said of so far: it passes.
    #[inline]
    pub(crate) fn new(findings: DecisionDetails<'f>) -> Self {
        Self::Allowed(AllowedRequest(findings))
    }

    /// What is told of it, to be filled in; then [settled](Self::settled).
    #[inline]
    pub(crate) fn findings_mut(&mut self) -> &mut DecisionDetails<'f> {
        match self {
            Self::Allowed(AllowedRequest(findings)) | Self::Denied(DeniedRequest(findings)) => {
                findings
            }
        }
    }

    /// As what was filled in says.
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
    /// What holds the slots and estimates of the request while it runs. It borrows nothing, so it may be moved into a task.
    pub fn into_permits(self) -> Permits {
        self.0.decision_data.permits
    }

    /// The same, while what was said is still to be told; none if it holds nothing.
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
    /// let permits = passed.take_permits().expect("a slot");
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

    /// Holds these permits as well, as shadows are held: beside its own.
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

/// For how many keys in a hundred what is in this mode is enforced.
pub(crate) const fn percent_of(mode: Mode) -> u8 {
    match mode {
        Mode::Enforce => 100,
        Mode::Shadow | Mode::Off => 0,
    }
}

/// Whether something passed, and of its limit as much is used as these percents.
pub(crate) fn is_near_limit(decision: &Decision, percent: u8) -> bool {
    let Decision {
        limit, remaining, ..
    } = *decision;
    let used = u128::from(limit.saturating_sub(remaining));
    let near = used * 100 >= u128::from(limit) * u128::from(percent);
    decision.is_allowed() && limit < u64::MAX && near
}

/// What a blocked request is told.
pub(crate) const BLOCKED: Decision =
    Decision::new(Outcome::Never, 0, 0, Duration::MAX, Duration::ZERO);
