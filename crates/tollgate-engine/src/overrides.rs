//! Overrides of operators: a block, a bypass or another limit for a key, for a while.
//!
//! They take precedence over the policy and change nothing in it: a reload keeps them, and each expires by itself.
//! See [`Engine::add_override`](crate::Engine::add_override).

use std::fmt;
use std::time::Duration;

use tollgate::{Rate, Timestamp};

pub use crate::key_text::KeyTextError;

mod override_error;
mod target;

pub use override_error::OverrideError;
pub use target::{FactPattern, Target, TargetKey};

pub(crate) use target::as_str_pairs;

/// The most overrides that an engine keeps.
pub const MAX_OVERRIDES: usize = 10_000;
/// The longest duration of an override: 30 days. A longer change belongs in the policy.
pub const MAX_OVERRIDE_DURATION: Duration = Duration::from_secs(30 * 86_400);

/// An override that an operator adds with [`Engine::add_override`](crate::Engine::add_override).
///
/// ```
/// use std::time::Duration;
/// use tollgate_engine::overrides::{OverrideAction, NewOverride, Target};
///
/// let hour = Duration::from_secs(3_600);
/// let order = NewOverride::new(OverrideAction::Block, Target::key("per-user", [("user", "mallory")]), hour).author("ada");
/// assert_eq!(order.to_string(), "block user=mallory of \"per-user\" for 3600s");
/// ```
#[derive(Clone, Debug, PartialEq, Eq, derive_more::Display)]
#[display("{act} {target} for {lasts:?}")]
#[must_use = "it does nothing until an engine has it"]
pub struct NewOverride {
    pub(crate) act: OverrideAction,
    pub(crate) target: Target,
    pub(crate) lasts: Duration,
    pub(crate) by: String,
    pub(crate) facts: OverrideFacts,
}

/// Which facts an override without a rule may name.
///
/// ```
/// use tollgate_engine::overrides::OverrideFacts;
///
/// assert_eq!(OverrideFacts::default(), OverrideFacts::Known);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum OverrideFacts {
    /// The facts that the policy names, and those that requests [commonly have](crate::facts::is_known_fact). A
    /// misspelt name would match no request.
    #[default]
    Known,
    /// Any fact, for requests with facts that the policy doesn't name.
    Any,
}

impl NewOverride {
    /// An override with this action on this target, for this long.
    pub fn new(act: OverrideAction, target: Target, lasts: Duration) -> Self {
        Self {
            act,
            target,
            lasts,
            by: String::new(),
            facts: OverrideFacts::Known,
        }
    }

    /// Sets which facts the override may name.
    ///
    /// ```
    /// # use std::time::Duration;
    /// use tollgate_engine::overrides::{OverrideAction, NewOverride, OverrideFacts, Target};
    ///
    /// let device = Target::facts([("device", "d-17")]);
    /// let order = NewOverride::new(OverrideAction::Block, device, Duration::from_secs(60)).naming(OverrideFacts::Any);
    /// assert_eq!(order.to_string(), "block device=d-17 for 60s");
    /// ```
    pub fn naming(mut self, facts: OverrideFacts) -> Self {
        self.facts = facts;
        self
    }

    /// Records the author, for people who list the overrides later.
    pub fn author(mut self, who: impl Into<String>) -> Self {
        self.by = who.into();
        self
    }
}

/// What an override does to its target.
///
/// ```
/// use tollgate::Rate;
/// use tollgate_engine::overrides::{OverrideAction, ReplacementLimits};
///
/// let faster = ReplacementLimits { rates: vec![Rate::per_second(50)], ..ReplacementLimits::default() };
/// assert_eq!(OverrideAction::Limit(faster).to_string(), "override with 50/s");
/// assert_eq!(OverrideAction::Bypass.name(), "bypass");
/// ```
#[derive(Clone, Debug, PartialEq, Eq, derive_more::Display)]
#[non_exhaustive]
pub enum OverrideAction {
    /// Denies the target's requests until the override expires, for the reason
    /// [`Blocked`](crate::verdict::DenyReason::Blocked). For a rule in shadow mode, it only reports what it would
    /// deny.
    #[display("block")]
    Block,
    /// The rule neither counts nor denies the target's requests. Blocks and the policy's lists stay in force.
    #[display("bypass")]
    Bypass,
    /// The rule has another limit for the target. What the target has spent still counts, as after a reload that
    /// changes the rule.
    #[display("override with {_0}")]
    Limit(ReplacementLimits),
}

impl OverrideAction {
    /// The action's name, in one word.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Block => "block",
            Self::Bypass => "bypass",
            Self::Limit(_) => "limit",
        }
    }
}

/// The limits that replace a rule's. Each replaces the limit of its kind, with the rule's algorithm and quota period.
///
/// If there are several rates, each replaces the one with the same period. A limit that isn't given stays as in the
/// rule.
///
/// ```
/// use tollgate::Rate;
/// use tollgate_engine::overrides::ReplacementLimits;
///
/// let two = ReplacementLimits { rates: vec![Rate::per_second(5).burst(20)], concurrency: Some(3), ..ReplacementLimits::default() };
/// assert_eq!(two.to_string(), "5/s burst 20, 3 concurrent");
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReplacementLimits {
    /// The rates, each with its burst. If the rule has several, each must have the period of one of them.
    pub rates: Vec<Rate>,
    /// The count of the quota, in the rule's period.
    pub quota: Option<u64>,
    /// The most requests in flight.
    pub concurrency: Option<u32>,
}

impl fmt::Display for ReplacementLimits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rates = self.rates.iter().map(ToString::to_string);
        let quota = self.quota.map(|quota| format!("a quota of {quota}"));
        let slots = self.concurrency.map(|slots| format!("{slots} concurrent"));
        let all: Vec<_> = rates.chain(quota).chain(slots).collect();
        f.write_str(&all.join(", "))
    }
}

/// An override that is in an engine.
///
/// ```
/// # use tollgate::clock::Manual;
/// # use tollgate_engine::backend::Memory;
/// # use tollgate_engine::document::Format;
/// # use tollgate_engine::{Engine, Policy};
/// # use std::time::Duration;
/// # let memory = Memory::builder().clock(Manual::new()).wall(Manual::new()).build();
/// # let policy = Policy::from_text("limits: [{name: all, rate: 2/h}]", Format::Yaml)?.policy;
/// # let engine = Engine::new(policy, memory)?;
/// use tollgate_engine::overrides::{OverrideAction, NewOverride, Target};
///
/// let order = NewOverride::new(OverrideAction::Bypass, Target::rule("all"), Duration::from_secs(60)).author("ada");
/// let made = engine.add_override(order)?;
/// assert_eq!((made.by.as_str(), made.until - made.made_at), ("ada", Duration::from_secs(60)));
/// assert_eq!(engine.overrides().len(), 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Override {
    /// The override's number. An engine never reuses one.
    pub id: u64,
    /// The action.
    pub act: OverrideAction,
    /// The target.
    pub target: Target,
    /// The author.
    pub by: String,
    /// When the override was added, by the wall clock.
    pub made_at: Timestamp,
    /// When it expires, by the wall clock.
    pub until: Timestamp,
    /// Its effect under the policy in force.
    pub effect: OverrideStatus,
    /// How many requests it has decided: blocked, bypassed, or checked against its limits.
    pub used_count: u64,
    /// When it last decided a request, by the wall clock.
    pub last_used_at: Option<Timestamp>,
}

/// The effect of an override under the policy in force.
///
/// ```
/// use tollgate_engine::overrides::{OverrideStatus, OverrideError};
///
/// let gone = OverrideStatus::Idle(OverrideError::UnknownRule { rule: "old".to_owned(), near: None });
/// assert_eq!(gone.to_string(), "idle: no rule, tier or limit of a tree is called \"old\"");
/// ```
#[derive(Clone, Debug, PartialEq, Eq, derive_more::Display)]
#[non_exhaustive]
pub enum OverrideStatus {
    /// The override acts as written.
    #[display("in force")]
    InForce,
    /// It blocks for a rule or policy that is in shadow mode: it reports what it would deny, and allows it.
    #[display("in shadow")]
    InShadow,
    /// The override has no effect, for this reason. Another policy may change that before it expires.
    #[display("idle: {_0}")]
    Idle(OverrideError),
}
