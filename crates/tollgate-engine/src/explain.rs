//! Explains which parts of a policy apply to a request, and why the others don't, rule by rule in the order of the
//! file.
//!
//! It compiles nothing and counts nothing. [`Engine`](crate::Engine) makes the same decisions, but skips most rules.

use std::fmt;
use std::time::Duration;

use crate::engine::rollout::Rollout;
use crate::facts::{Facts, TENANT};
use crate::limits::{KeyPlan, RequestKey};
use crate::matcher::{self, Explained, FactIndex};
use crate::policy::{
    Adaptive, Counting, FailureModes, KeyPart, Limits, MatchConditions, Mode, OnMissingKey,
    OverLimitAction, Policy, Rule, Shedding,
};
pub use crate::suggestions::misspelled_facts;
use crate::suggestions::or_list;
use crate::verdict::{Cause, percent_of};

/// One part of a policy, and whether it applies to a request.
///
/// ```
/// # use tollgate_engine::{policy::Mode, verdict::Cause};
/// use tollgate_engine::document::Format;
/// use tollgate_engine::explain::explain;
/// use tollgate_engine::{Facts, Policy};
///
/// let text = "limits: [{name: trial, key: user, rate: 5/s, mode: shadow}]";
/// let policy = Policy::from_text(text, Format::Yaml)?.policy;
/// let facts = Facts::new().with("user", "42");
/// let entry = &explain(&policy, &facts)[0];
/// assert_eq!((entry.cause, entry.mode), (Cause::Rule("trial"), Mode::Shadow));
/// # Ok::<(), tollgate_engine::LoadError>(())
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Entry<'a> {
    /// The part: an entry of `block` or `exempt`, a rule, or a tier.
    pub cause: Cause<'a>,
    /// The mode, including that of the whole policy. For a rule that is being rolled out, the mode for the key of
    /// this request.
    pub mode: Mode,
    /// The percentage of keys for which it is enforced.
    pub enforced_percent: u8,
    /// How long its rates grow after a start.
    pub warm_up: Option<Duration>,
    /// How several nodes count it together. `None` if it counts nothing.
    pub counting: Option<Counting>,
    /// The limits. `None` for an entry of `block` or `exempt`.
    pub limits: Option<&'a Limits>,
    /// The adaptive limit, if it has one.
    pub adaptive: Option<Adaptive>,
    /// The load shedding, if it has any.
    pub shed: Option<&'a Shedding>,
    /// What happens to a request over the limit.
    pub over: OverLimitAction,
    /// What happens while the store is unavailable. `None` if it uses no store.
    pub on_store_failure: Option<FailureModes>,
    /// Whether it applies to the request, and why or why not.
    pub standing: RuleStatus<'a>,
}

/// Whether a part of a policy applies to a request, and why or why not.
///
/// ```
/// # use tollgate_engine::explain::RuleStatus;
/// use tollgate_engine::document::Format;
/// use tollgate_engine::explain::explain;
/// use tollgate_engine::{Facts, Policy};
///
/// let text = "limits: [{name: trial, key: user, rate: 5/s, mode: shadow}]";
/// let policy = Policy::from_text(text, Format::Yaml)?.policy;
/// let facts = Facts::new();
/// let standing = &explain(&policy, &facts)[0].standing;
/// assert!(matches!(standing, RuleStatus::NoKey(_)) && !standing.applies());
/// assert_eq!(standing.to_string(), "user is not known, and it counts by that");
/// # Ok::<(), tollgate_engine::LoadError>(())
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum RuleStatus<'a> {
    /// The part applies.
    Applies {
        /// Which conditions hold.
        matched: Explained<'a>,
        /// The key of its counter, such as `user=42`. Empty if all requests share one.
        key: String,
    },
    /// A condition doesn't hold.
    Fails(Explained<'a>),
    /// The request lacks a fact of its key, so it doesn't apply. The text names the fact.
    NoKey(String),
    /// The request lacks a fact of its key, and the rule denies such requests (`on_missing_key: deny`).
    DeniedForKey(String),
    /// A rule that applies replaces it.
    ReplacedBy(&'a str),
    /// The request is blocked or exempt, so nothing else is checked.
    Decided(Cause<'a>),
    /// It is off.
    Off,
}

impl RuleStatus<'_> {
    /// Whether the part applies.
    pub fn applies(&self) -> bool {
        matches!(self, Self::Applies { .. } | Self::DeniedForKey(_))
    }
}

impl fmt::Display for RuleStatus<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Applies { matched, key } if key.is_empty() => matched.fmt(f),
            Self::Applies { matched, key } => write!(f, "{matched}; its key is {key}"),
            Self::Fails(failed) => failed.fmt(f),
            Self::NoKey(why) => f.write_str(why),
            Self::DeniedForKey(why) => write!(f, "{why}: it denies requests without its key"),
            Self::ReplacedBy(rule) => write!(f, "{rule:?} replaces it"),
            Self::Decided(Cause::Block(entry)) => write!(f, "block[{entry}] refuses the request"),
            Self::Decided(cause) => write!(f, "{cause} lets the request pass"),
            Self::Off => f.write_str("it is off"),
        }
    }
}

/// Explains whether each part of a policy applies to a request, and why or why not: `block`, `exempt`, the rules in
/// their order, and the tenant's tier, if it has one.
///
/// ```
/// use tollgate_engine::document::Format;
/// use tollgate_engine::explain::explain;
/// use tollgate_engine::{Facts, Policy};
///
/// let text = "
/// limits:
/// - {name: per-user, key: user, rate: 10/s}
/// - {name: per-tenant, key: tenant, rate: 100/s}
/// - {name: robots, match: {user: our-robot}, unlimited: true, replaces: per-user}
/// ";
/// let policy = Policy::from_text(text, Format::Yaml)?.policy;
/// let explained = |facts: &Facts<'_>| {
///     let entries = explain(&policy, facts);
///     entries.iter().map(|entry| entry.standing.to_string()).collect::<Vec<_>>()
/// };
/// assert_eq!(
///     explained(&Facts::new().with("user", "42")),
///     [
///         "it is for every request; its key is user=42",
///         "tenant is not known, and it counts by that",
///         "user is \"42\", and should be \"our-robot\"",
///     ]
/// );
/// assert_eq!(explained(&Facts::new().with("user", "our-robot"))[0], "\"robots\" replaces it");
/// # Ok::<(), tollgate_engine::LoadError>(())
/// ```
pub fn explain<'a>(policy: &'a Policy, facts: &'a Facts<'a>) -> Vec<Entry<'a>> {
    let mut settled = None;
    let mut entries = Vec::new();
    let block = (0..).map(Cause::Block).zip(&policy.block);
    for (cause, entry) in block.chain((0..).map(Cause::Exempt).zip(&policy.exempt)) {
        entries.push(explain_list_entry(
            policy,
            entry,
            cause,
            facts,
            &mut settled,
        ));
    }
    let met: Vec<&Rule> = policy
        .rules
        .iter()
        .filter(|rule| explain_rule(rule, mode(policy, rule, facts), facts).applies())
        .collect();
    for rule in &policy.rules {
        let mode = mode(policy, rule, facts);
        let own = explain_rule(rule, mode, facts);
        // A rule in shadow mode replaces only others in shadow mode.
        let takes_its_place = |other: &&&Rule| {
            self::mode(policy, other, facts) <= mode && other.replaces.contains(&rule.name)
        };
        let standing = match (own.applies(), settled, met.iter().find(takes_its_place)) {
            (true, Some(by), _) => RuleStatus::Decided(by),
            (true, None, Some(other)) => RuleStatus::ReplacedBy(&other.name),
            _ => own,
        };
        entries.push(Entry {
            cause: Cause::Rule(&rule.name),
            mode,
            enforced_percent: match rule.mode.max(policy.mode) {
                Mode::Enforce => rule.enforced_percent,
                other => percent_of(other),
            },
            warm_up: rule.warm_up,
            counting: Some(rule.counting),
            limits: Some(&rule.limits),
            adaptive: rule.adaptive,
            shed: rule.shed.as_ref(),
            over: rule.over,
            on_store_failure: store_failure_modes(rule.counting, rule.on_store_failure),
            standing,
        });
    }
    entries.extend(tier(policy, facts, settled));
    entries
}

/// Explains an entry of `block` or `exempt`. The first entry that matches decides the request, unless it is a block
/// and the policy is in shadow mode.
fn explain_list_entry<'a>(
    policy: &'a Policy,
    entry: &'a MatchConditions,
    cause: Cause<'a>,
    facts: &Facts<'a>,
    settled: &mut Option<Cause<'a>>,
) -> Entry<'a> {
    let matched = matcher::explain(entry, facts);
    let standing = match (policy.mode, *settled) {
        (Mode::Off, _) => RuleStatus::Off,
        _ if !matched.matches() => RuleStatus::Fails(matched),
        (_, Some(by)) => RuleStatus::Decided(by),
        (mode, None) => {
            if mode == Mode::Enforce || matches!(cause, Cause::Exempt(_)) {
                *settled = Some(cause);
            }
            RuleStatus::Applies {
                matched,
                key: String::new(),
            }
        }
    };
    Entry::new(policy, cause, standing)
}

impl<'a> Entry<'a> {
    /// An entry with the mode of the policy, and no limits of its own.
    fn new(policy: &Policy, cause: Cause<'a>, standing: RuleStatus<'a>) -> Self {
        Self {
            cause,
            mode: policy.mode,
            enforced_percent: percent_of(policy.mode),
            warm_up: None,
            counting: None,
            limits: None,
            adaptive: None,
            shed: None,
            over: OverLimitAction::Deny,
            on_store_failure: None,
            standing,
        }
    }
}

/// The mode of a rule: the policy may weaken it, and a rollout leaves a part of the keys in shadow mode.
fn mode(policy: &Policy, rule: &Rule, facts: &Facts<'_>) -> Mode {
    let mode = rule.mode.max(policy.mode);
    match Rollout::from_rule(rule, mode) {
        None => mode,
        Some(rollout) => {
            let plan = KeyPlan::of(rule, &mut FactIndex::default());
            rollout.mode_for_key(&RequestKey::new(&plan, facts, [0; 2]))
        }
    }
}

/// Whether a rule would apply to a request if there were no other.
fn explain_rule<'a>(rule: &'a Rule, mode: Mode, facts: &'a Facts<'a>) -> RuleStatus<'a> {
    let matched = matcher::explain(&rule.matches, facts);
    let plan = KeyPlan::of(rule, &mut FactIndex::default());
    let is_known = plan.facts_for(facts).is_some();
    match rule.on_missing_key {
        _ if mode == Mode::Off => RuleStatus::Off,
        _ if !matched.matches() => RuleStatus::Fails(matched),
        None | Some(OnMissingKey::Pass) if !is_known => {
            RuleStatus::NoKey(missing_key_text(rule, facts))
        }
        Some(OnMissingKey::Deny) if !is_known => {
            RuleStatus::DeniedForKey(missing_key_text(rule, facts))
        }
        _ => RuleStatus::Applies {
            matched,
            key: key(&plan, facts),
        },
    }
}

/// Names the facts of a rule's key that a request lacks: one fact, or, if the rule has several keys, all keys.
fn missing_key_text(rule: &Rule, facts: &Facts<'_>) -> String {
    let keys: Vec<_> = rule.keys().collect();
    if let [only] = keys.as_slice() {
        let mut facts_of = only.iter().map(KeyPart::fact);
        let missing = facts_of.find(|fact| facts.get(fact).is_none());
        return format!(
            "{} is not known, and it counts by that",
            missing.unwrap_or_default()
        );
    }
    let resolve_key = |key: &&[KeyPart]| {
        let facts: Vec<_> = key.iter().map(KeyPart::fact).collect();
        facts.join(" and ")
    };
    let names: Vec<_> = keys.iter().map(resolve_key).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    format!(
        "it counts by {}, and none of them is known",
        or_list(&names)
    )
}

fn key(plan: &KeyPlan, facts: &Facts<'_>) -> String {
    // The key is only displayed, so it needs no fingerprint.
    RequestKey::new(plan, facts, [0; 2]).to_string()
}

/// The tier of the request's tenant.
fn tier<'a>(
    policy: &'a Policy,
    facts: &'a Facts<'a>,
    settled: Option<Cause<'a>>,
) -> Option<Entry<'a>> {
    let tenant = facts.get(TENANT)?;
    let by_fact = || facts.get(policy.tier_fact.as_deref()?);
    let known = |name: &str| policy.tiers.get_key_value(name);
    let (name, tier) = policy
        .tenants
        .get(tenant)
        .and_then(|name| known(name))
        .or_else(|| by_fact().and_then(known))
        .or_else(|| policy.default_tier.as_deref().and_then(known))?;
    let standing = match (policy.mode, settled) {
        (Mode::Off, _) => RuleStatus::Off,
        (_, Some(by)) => RuleStatus::Decided(by),
        _ => RuleStatus::Applies {
            matched: Explained {
                failed: None,
                conditions: 0,
            },
            key: key(
                &KeyPlan::new(
                    &[KeyPart::Fact(TENANT.to_owned())],
                    &mut FactIndex::default(),
                ),
                facts,
            ),
        },
    };
    Some(Entry {
        counting: Some(tier.counting),
        limits: Some(&tier.limits),
        over: tier.over,
        on_store_failure: store_failure_modes(tier.counting, tier.on_store_failure),
        ..Entry::new(policy, Cause::Tier(name), standing)
    })
}

fn store_failure_modes(counting: Counting, failure: FailureModes) -> Option<FailureModes> {
    (counting != Counting::Local).then_some(failure)
}
