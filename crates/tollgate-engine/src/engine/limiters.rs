//! The state of each limiter in the policy in force, for operators.

use tollgate::{DenyReason, OnMissingKey, Timestamp};

use super::overload_control::{AdaptiveLimiter, AdaptiveState};
use super::overrides::Limiter;
use super::pipeline::Pipeline;
use crate::backend::Backend;
use crate::limits::{Limit, LimitKind};
use crate::policy::Mode;
use crate::verdict::percent_of;

/// The state of a rule, a tier or a limit of a tree.
///
/// ```
/// # use tollgate::clock::Manual;
/// # use tollgate_engine::backend::{LimitKind, Memory};
/// # use tollgate_engine::document::Format;
/// # use tollgate_engine::{Engine, Policy};
/// # let memory = Memory::builder().clock(Manual::new()).wall(Manual::new()).build();
/// use tollgate_engine::engine::LimiterKind;
///
/// let policy = Policy::from_text("limits: [{name: a, key: user, rate: 5/s burst 9}]", Format::Yaml)?.policy;
/// let limiters = Engine::new(policy, memory)?.limiter_states();
/// assert_eq!((limiters[0].name.as_str(), limiters[0].sort), ("a", LimiterKind::Rule));
/// assert_eq!((limiters[0].key.as_slice(), limiters[0].waiting), (["user".to_owned()].as_slice(), 0));
/// let LimitKind::Rate { rate, .. } = &limiters[0].limits[0] else { panic!("a rate") };
/// assert_eq!((rate.count(), rate.burst_size()), (5, 9));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct LimiterState {
    /// The name.
    pub name: String,
    /// What the limiter is.
    pub sort: LimiterKind,
    /// The facts that make its keys, or the keys of the descriptor's entries.
    pub key: Vec<String>,
    /// The facts of each fallback key, in order, for requests that lack those.
    pub fallback_keys: Vec<Vec<String>>,
    /// What happens to a request without a key. `None` if all requests share one counter, or it isn't a rule.
    pub on_missing_key: Option<OnMissingKey>,
    /// Whether it matched a hundred requests under this policy that all lacked its key, although the policy doesn't
    /// set `on_missing_key: pass`: it limits no request, and that isn't intended.
    pub is_key_always_missing: bool,
    /// Whether it is enforced, or only counts.
    pub mode: Mode,
    /// The percentage of keys for which it is enforced.
    pub enforced_percent: u8,
    /// The limits that the policy sets.
    pub limits: Vec<LimitKind>,
    /// The state of its adaptive limit, if it has one.
    pub adaptive: Option<AdaptiveState>,
    /// Whether its rates are still growing after a start.
    pub is_warming_up: bool,
    /// How many requests wait for it, over all keys.
    pub waiting: usize,
    /// How many overrides it and its keys have.
    pub overrides: usize,
    /// When the policy came into force, by the wall clock.
    pub since: Timestamp,
}

/// The kind of a limiter.
///
/// ```
/// use tollgate_engine::engine::LimiterKind;
///
/// assert_eq!(LimiterKind::Descriptor.name(), "descriptor");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LimiterKind {
    /// A rule.
    Rule,
    /// The limits of a tier.
    Tier,
    /// A limit of a descriptor tree.
    Descriptor,
}

impl LimiterKind {
    /// The name, in one word.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Rule => "rule",
            Self::Tier => "tier",
            Self::Descriptor => "descriptor",
        }
    }
}

/// A decision by a limit that came with its request.
///
/// ```
/// use tollgate_engine::engine::ThrottleDecision;
/// use tollgate_engine::verdict::DenyReason;
///
/// let denied = ThrottleDecision { key: b"ada", denied: Some(DenyReason::Rate) };
/// assert!(denied.denied.is_some());
/// ```
#[derive(Clone, Copy, Debug)]
pub struct ThrottleDecision<'a> {
    /// The key.
    pub key: &'a [u8],
    /// Why the request was denied. `None` if it was allowed.
    pub denied: Option<DenyReason>,
}

/// Each limiter of the policy in force, in the order of the file.
pub(super) fn states<B: Backend>(pipeline: &Pipeline<B>) -> Vec<LimiterState> {
    let now = pipeline.active_policy();
    let rules = &now.rules;
    let time = pipeline.backend.now();
    let waiting = pipeline.wait_queues.waiters_by_limit();
    let waiting_for = |limit: &Limit| waiting.get(&limit.id);
    let kind = |limit: &Limit| limit.kind().clone();
    let orders = |limiter| (now.orders.as_ref()).map_or(0, |held| held.count(limiter));
    let owned = |facts: Vec<&str>| facts.into_iter().map(str::to_owned).collect();
    let applied = (0..)
        .zip(rules.rules.iter())
        .map(|(number, rule)| LimiterState {
            name: rule.name.to_string(),
            sort: if rule.is_tier {
                LimiterKind::Tier
            } else {
                LimiterKind::Rule
            },
            key: rule.key.facts().map(str::to_owned).collect(),
            fallback_keys: rule.key.fact_lists().skip(1).map(owned).collect(),
            on_missing_key: (!rule.is_tier && !rule.key.is_empty()).then_some(rule.on_missing_key),
            is_key_always_missing: if rule.is_tier {
                rules.tiers.tenant_presence.is_never_found()
            } else {
                rule.key_presence.is_never_found() && !rule.is_missing_expected
            },
            mode: rule.mode,
            enforced_percent: rule.enforced_percent(),
            limits: rule.all_limits().map(kind).collect(),
            adaptive: rule.adaptive_limiter().and_then(AdaptiveLimiter::state),
            is_warming_up: !rule.warm_up_limits(Some(time)).is_empty(),
            waiting: rule.all_limits().filter_map(waiting_for).sum(),
            overrides: orders(Limiter::Applied(number)),
            since: rules.active_since,
        });
    let leaves = rules.trees.leaves().map(|(leaf, limits)| {
        let mode = rules.mode.max(leaf.mode());
        LimiterState {
            name: leaf.to_string(),
            sort: LimiterKind::Descriptor,
            key: leaf.steps.iter().map(|step| step.key.to_string()).collect(),
            fallback_keys: Vec::new(),
            on_missing_key: None,
            is_key_always_missing: false,
            mode,
            enforced_percent: percent_of(mode),
            limits: limits.iter().map(kind).collect(),
            adaptive: None,
            is_warming_up: false,
            waiting: limits.iter().filter_map(waiting_for).sum(),
            overrides: orders(Limiter::Leaf(leaf.id)),
            since: rules.active_since,
        }
    });
    applied.chain(leaves).collect()
}
