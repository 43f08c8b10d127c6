//! What a policy says in Envoy's form: domains, each a tree of descriptors.

use tollgate::Algorithm;

use super::{Counting, FailureModes, Limits};
use crate::document::{Span, Value};
use crate::facts::Unit;

/// One of Envoy's domains: what its descriptors allow, and how a request of several is charged.
///
/// ```
/// use tollgate_engine::Policy;
/// use tollgate_engine::document::Format;
/// use tollgate_engine::policy::Charging;
///
/// let policy = Policy::from_text("domain: edge\ncharging: each\ndescriptors: [{key: user}]", Format::Yaml)?.policy;
/// let edge = &policy.domains["edge"];
/// assert_eq!((edge.charging, edge.descriptors.len()), (Charging::Each, 1));
/// # Ok::<(), tollgate_engine::LoadError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Domain {
    /// What a request of several descriptors is charged.
    pub charging: Charging,
    /// The tree.
    pub descriptors: Vec<DescriptorRule>,
}

/// What a request that meets several limits is charged if one of them refuses it.
///
/// ```
/// # use tollgate::clock::Manual;
/// # use tollgate_engine::backend::Memory;
/// # use tollgate_engine::document::Format;
/// # use tollgate_engine::{Engine, Policy};
/// use tollgate_engine::facts::Descriptor;
///
/// let left_after_a_refusal = |charging: &str| {
///     let file = format!("
/// domain: edge
/// charging: {charging}
/// descriptors:
/// - {{key: full, rate_limit: {{unit: day, requests_per_unit: 0}}}}
/// - {{key: user, rate_limit: {{unit: day, requests_per_unit: 5}}}}
/// ");
/// #   let policy = Policy::from_text(&file, Format::Yaml).expect("their form").policy;
/// #   let memory = Memory::builder().clock(Manual::new()).wall(Manual::new()).build();
/// #   let engine = Engine::new(policy, memory).expect("a policy");
///     let both = [Descriptor::new(&[("full", "")]), Descriptor::new(&[("user", "42")])];
///     let refused = engine.decide_descriptors("edge", &both, 1);
///     refused.statuses[1].decision.expect("a limit").remaining
/// };
/// assert_eq!((left_after_a_refusal("all-or-none"), left_after_a_refusal("each")), (5, 4));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Charging {
    /// Nothing: it is charged to all of them, or to none.
    #[default]
    AllOrNone,
    /// All limits that have room for it, as envoyproxy/ratelimit does.
    Each,
}

/// A node of Envoy's tree of descriptors.
///
/// ```
/// use tollgate_engine::Policy;
/// use tollgate_engine::document::Format;
///
/// let policy = Policy::from_text("domain: edge\ndescriptors: [{key: user, value: v*}]", Format::Yaml)?.policy;
/// let user = &policy.domains["edge"].descriptors[0];
/// assert_eq!((user.key.as_str(), user.value.as_deref()), ("user", Some("v*")));
/// # Ok::<(), tollgate_engine::LoadError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DescriptorRule {
    /// The entry's key.
    pub key: String,
    /// The entry's value; with a `*`, all values that fit; without, any value.
    pub value: Option<String>,
    /// The limit for requests that end here.
    pub limit: Option<DescriptorLimit>,
    /// All values that a wildcard stands for count together.
    pub share_threshold: bool,
    /// Metrics by the values, not by the pattern.
    pub detailed_metric: bool,
    /// Metrics by the value of this entry.
    pub value_to_metric: bool,
    /// What an answer tells about the limit, as a map of anything.
    pub metadata: Option<Value>,
    /// What is below it.
    pub descriptors: Vec<DescriptorRule>,
    /// Where it stands.
    pub span: Span,
}

/// What a descriptor allows.
///
/// ```
/// use tollgate_engine::Policy;
/// use tollgate_engine::document::Format;
///
/// let policy = Policy::from_text("domain: edge\ndescriptors: [{key: a, quota_mode: true, rate_limit: {unit: day, requests_per_unit: 5}}]", Format::Yaml)?.policy;
/// let limit = policy.domains["edge"].descriptors[0].limit.as_ref().expect("a limit");
/// assert!(limit.quota_mode && limit.limits.rates[0].count() == 5);
/// # Ok::<(), tollgate_engine::LoadError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DescriptorLimit {
    /// What people call it, for `replaces`.
    pub name: Option<String>,
    /// What it allows.
    pub limits: Limits,
    /// The unit as the file says it, for answers: a rate of 0 has no period to tell it by.
    pub unit: Option<Unit>,
    /// How it is counted: windows aligned to the epoch unless said otherwise.
    pub algorithm: Algorithm,
    /// How a fleet counts it together.
    pub counting: Counting,
    /// What happens while the store can't be asked.
    pub on_store_failure: FailureModes,
    /// It counts, and lets pass.
    pub shadow: bool,
    /// It refuses only together with all others of this kind.
    pub quota_mode: bool,
    /// Limits, by name, that don't apply to a request that this one applies to.
    pub replaces: Vec<String>,
    /// Where it stands.
    pub span: Span,
}
