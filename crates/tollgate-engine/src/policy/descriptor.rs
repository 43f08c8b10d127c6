//! The part of a policy in Envoy's form: domains, each with a tree of descriptors.

use tollgate::Algorithm;

use super::{Counting, FailureModes, Limits};
use crate::document::{Span, Value};
use crate::facts::Unit;

/// A domain: its descriptors, and how a request of several descriptors is charged.
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
    /// How a request of several descriptors is charged.
    pub charging: Charging,
    /// The tree of descriptors.
    pub descriptors: Vec<DescriptorRule>,
}

/// How a request with several limits is charged if one of them denies it.
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
    /// The request is charged to all limits or to none.
    #[default]
    AllOrNone,
    /// The request is charged to each limit that has room for it, as in envoyproxy/ratelimit.
    Each,
}

/// A node in a tree of descriptors.
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
    /// The entry's value. A value with a `*` matches all values that fit. `None` matches any value.
    pub value: Option<String>,
    /// The limit for requests whose descriptor ends here.
    pub limit: Option<DescriptorLimit>,
    /// Whether all values of a wildcard share one counter.
    pub share_threshold: bool,
    /// Whether metrics are labelled by the values of the path instead of the patterns.
    pub detailed_metric: bool,
    /// Whether metrics are labelled by the value of this entry.
    pub value_to_metric: bool,
    /// A map that a response reports about the limit.
    pub metadata: Option<Value>,
    /// The descriptors below this one.
    pub descriptors: Vec<DescriptorRule>,
    /// The position in the file.
    pub span: Span,
}

/// The limit of a descriptor.
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
    /// The limit's name, for `replaces` of other limits.
    pub name: Option<String>,
    /// The rates, quota and concurrency limit.
    pub limits: Limits,
    /// The unit in the file, for responses. A rate of 0 has no period to derive it from.
    pub unit: Option<Unit>,
    /// The algorithm. The default is fixed windows that are aligned to the epoch.
    pub algorithm: Algorithm,
    /// How several nodes count together.
    pub counting: Counting,
    /// The failure modes while the store is unreachable.
    pub on_store_failure: FailureModes,
    /// Whether the limit is in shadow mode: it counts, and denies nothing.
    pub shadow: bool,
    /// Whether the limit denies a request only if all other limits in quota mode do.
    pub quota_mode: bool,
    /// Names of limits that don't apply to a request to which this limit applies.
    pub replaces: Vec<String>,
    /// The position in the file.
    pub span: Span,
}
