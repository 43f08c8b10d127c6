//! Orders of operators: a key that is blocked, let through, or has another limit, for a while.
//!
//! They lie over the policy and change nothing in it: a reload keeps them, and each ends by itself. See
//! [`Engine::order`](crate::Engine::order).

use std::fmt;
use std::time::Duration;

use tollgate::{Rate, Timestamp};

pub use crate::key_text::KeyTextError;

mod override_error;
mod target;

pub use override_error::OverrideError;
pub use target::{FactPattern, Target, TargetKey};

pub(crate) use target::as_str_pairs;

/// How many orders an engine has at the most.
pub const MAX_OVERRIDES: usize = 10_000;
/// The longest that an order lasts: 30 days. What is meant to last longer belongs into the policy.
pub const MAX_OVERRIDE_DURATION: Duration = Duration::from_secs(30 * 86_400);

/// What an operator wants: for [`Engine::order`](crate::Engine::order).
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

/// Which facts an order may name that is for no rule.
///
/// ```
/// use tollgate_engine::overrides::OverrideFacts;
///
/// assert_eq!(OverrideFacts::default(), OverrideFacts::Known);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum OverrideFacts {
    /// Those that the policy names, and those that requests [commonly have](crate::facts::is_known_fact): a name with a
    /// typing mistake would be for nobody.
    #[default]
    Known,
    /// Any: requests have facts that the policy doesn't name.
    Any,
}

impl NewOverride {
    /// That this be done to that target, for so long.
    pub fn new(act: OverrideAction, target: Target, lasts: Duration) -> Self {
        Self {
            act,
            target,
            lasts,
            by: String::new(),
            facts: OverrideFacts::Known,
        }
    }

    /// Which facts it may name.
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

    /// Who wants it, for those who see it later.
    pub fn author(mut self, who: impl Into<String>) -> Self {
        self.by = who.into();
        self
    }
}

/// What is done to a target.
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
    /// Its requests are refused until the order ends, for the reason [`Blocked`](crate::verdict::DenyReason::Blocked). A
    /// rule in shadow only tells of it.
    #[display("block")]
    Block,
    /// The rule neither counts nor refuses them. Blocks and the policy's lists stay in force.
    #[display("bypass")]
    Bypass,
    /// The rule has another limit for them. What they have spent counts on, as after a reload that changes the rule.
    #[display("override with {_0}")]
    Limit(ReplacementLimits),
}

impl OverrideAction {
    /// In one word.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Block => "block",
            Self::Bypass => "bypass",
            Self::Limit(_) => "limit",
        }
    }
}

/// The limits that stand in for a rule's, each for the one of its sort: by the rule's algorithm and period of quotas.
///
/// Of several rates it is for the one with the same period. What isn't given stays as the rule has it.
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
    /// The rates, each with its burst: of a rule with several, each by the period of one of them.
    pub rates: Vec<Rate>,
    /// How much the quota is, in the rule's period.
    pub quota: Option<u64>,
    /// How many concurrent.
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

/// An order that an engine has.
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
    /// Tells it from all others of its engine, also of those that are gone.
    pub id: u64,
    /// What is done.
    pub act: OverrideAction,
    /// To whom.
    pub target: Target,
    /// Who wanted it.
    pub by: String,
    /// When, by the wall clock.
    pub made_at: Timestamp,
    /// When it ends, by the wall clock.
    pub until: Timestamp,
    /// What it does by the policy in force.
    pub effect: OverrideStatus,
    /// How many requests it has decided: blocked, let through, or held to its limits.
    pub used_count: u64,
    /// When it did so last, by the wall clock.
    pub last_used_at: Option<Timestamp>,
}

/// What an order does by the policy in force.
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
    /// What it says.
    #[display("in force")]
    InForce,
    /// It blocks by a rule, or under a policy, that is in shadow: what it would refuse is told, and passes.
    #[display("in shadow")]
    InShadow,
    /// Nothing, because of this: another policy may change that, while it lasts.
    #[display("idle: {_0}")]
    Idle(OverrideError),
}
