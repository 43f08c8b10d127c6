//! Which parts of a policy apply to a request, and why the others don't: rule by rule, as it is read.
//!
//! It compiles nothing and counts nothing; [`Engine`](crate::Engine) decides the same, without a look at
//! most rules.

use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

use crate::engine::rollout::Rollout;
use crate::engine::rules::TENANT;
use crate::facts::Facts;
use crate::limits::{KeyPlan, RequestKey};
use crate::matcher::{self, Explained, Slots};
use crate::policy::{
    Adaptive, Counting, KeyPart, Limits, Match, Mode, OnStoreFailure, Over, Policy, Rule, Shed,
};
use crate::suggest;
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
/// # Ok::<(), tollgate_engine::Rejected>(())
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Entry<'a> {
    /// Which part: an entry of `block` or `exempt`, a rule, or a tier.
    pub cause: Cause<'a>,
    /// Whether it is enforced, in shadow or off, after the mode of the whole policy; of one that is enforced for a
    /// part of its keys, what holds for the key of this request.
    pub mode: Mode,
    /// For how many keys in a hundred it is enforced.
    pub enforced_percent: u8,
    /// For how long after a start its rates grow.
    pub warm_up: Option<Duration>,
    /// How several nodes count it together; none for what counts nothing.
    pub counting: Option<Counting>,
    /// What it allows; none for an entry of `block` or `exempt`.
    pub limits: Option<&'a Limits>,
    /// The limit that it adapts, if it has such.
    pub adaptive: Option<Adaptive>,
    /// Who it sheds first, if it does.
    pub shed: Option<&'a Shed>,
    /// What becomes of a request that is over it.
    pub over: Over,
    /// What is done while the store can't be asked; none for what asks no store.
    pub on_store_failure: Option<OnStoreFailure>,
    /// Whether it applies to the request, and why or why not.
    pub standing: Standing<'a>,
}

/// Whether a part of a policy applies to a request, and why or why not.
///
/// ```
/// # use tollgate_engine::explain::Standing;
/// use tollgate_engine::document::Format;
/// use tollgate_engine::explain::explain;
/// use tollgate_engine::{Facts, Policy};
///
/// let text = "limits: [{name: trial, key: user, rate: 5/s, mode: shadow}]";
/// let policy = Policy::from_text(text, Format::Yaml)?.policy;
/// let facts = Facts::new();
/// let standing = &explain(&policy, &facts)[0].standing;
/// assert!(matches!(standing, Standing::NoKey("user")) && !standing.applies());
/// # Ok::<(), tollgate_engine::Rejected>(())
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Standing<'a> {
    /// It applies.
    Applies {
        /// Why: what its conditions say.
        matched: Explained<'a>,
        /// The key of its counter, as `user=42`; empty if all requests share one.
        key: String,
    },
    /// A condition doesn't hold.
    Fails(Explained<'a>),
    /// A fact of its key isn't known.
    NoKey(&'a str),
    /// A rule that applies takes its place.
    ReplacedBy(&'a str),
    /// The request is blocked or exempt, so that nothing else is asked.
    Settled(Cause<'a>),
    /// It is off.
    Off,
}

impl Standing<'_> {
    /// Whether it applies.
    pub fn applies(&self) -> bool {
        matches!(self, Self::Applies { .. })
    }
}

impl fmt::Display for Standing<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Applies { matched, key } if key.is_empty() => matched.fmt(f),
            Self::Applies { matched, key } => write!(f, "{matched}; its key is {key}"),
            Self::Fails(failed) => failed.fmt(f),
            Self::NoKey(fact) => write!(f, "{fact} is not known, and it counts by that"),
            Self::ReplacedBy(rule) => write!(f, "{rule:?} replaces it"),
            Self::Settled(Cause::Block(entry)) => write!(f, "block[{entry}] refuses the request"),
            Self::Settled(cause) => write!(f, "{cause} lets the request pass"),
            Self::Off => f.write_str("it is off"),
        }
    }
}

/// Whether each part of a policy applies to a request, and why or why not: `block`, `exempt`, the rules in their order, and the
/// tenant's tier, if it is in one.
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
/// let told = |facts: &Facts<'_>| {
///     let entries = explain(&policy, facts);
///     entries.iter().map(|entry| entry.standing.to_string()).collect::<Vec<_>>()
/// };
/// assert_eq!(
///     told(&Facts::new().with("user", "42")),
///     [
///         "it is for every request; its key is user=42",
///         "tenant is not known, and it counts by that",
///         "user is \"42\", and should be \"our-robot\"",
///     ]
/// );
/// assert_eq!(told(&Facts::new().with("user", "our-robot"))[0], "\"robots\" replaces it");
/// # Ok::<(), tollgate_engine::Rejected>(())
/// ```
pub fn explain<'a>(policy: &'a Policy, facts: &'a Facts<'a>) -> Vec<Entry<'a>> {
    let mut settled = None;
    let mut entries = Vec::new();
    for (number, entry) in policy.block.iter().enumerate() {
        let cause = Cause::Block(number);
        entries.push(listed(policy, entry, cause, facts, &mut settled));
    }
    for (number, entry) in policy.exempt.iter().enumerate() {
        let cause = Cause::Exempt(number);
        entries.push(listed(policy, entry, cause, facts, &mut settled));
    }
    let met: Vec<&Rule> = policy
        .rules
        .iter()
        .filter(|rule| by_itself(rule, mode(policy, rule, facts), facts).applies())
        .collect();
    for rule in &policy.rules {
        let mode = mode(policy, rule, facts);
        let own = by_itself(rule, mode, facts);
        // A rule in shadow takes only the place of others in shadow.
        let takes_its_place = |other: &&&Rule| {
            self::mode(policy, other, facts) <= mode && other.replaces.contains(&rule.name)
        };
        let standing = match (own.applies(), settled, met.iter().find(takes_its_place)) {
            (true, Some(by), _) => Standing::Settled(by),
            (true, None, Some(other)) => Standing::ReplacedBy(&other.name),
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
            on_store_failure: without_store(rule.counting, rule.on_store_failure),
            standing,
        });
    }
    entries.extend(tier(policy, facts, settled));
    entries
}

/// An entry of `block` or `exempt`. The first that is for the request settles it, unless the policy
/// is in shadow and would have blocked it.
fn listed<'a>(
    policy: &'a Policy,
    entry: &'a Match,
    cause: Cause<'a>,
    facts: &Facts<'a>,
    settled: &mut Option<Cause<'a>>,
) -> Entry<'a> {
    let matched = matcher::explain(entry, facts);
    let standing = match (policy.mode, *settled) {
        (Mode::Off, _) => Standing::Off,
        _ if !matched.matches() => Standing::Fails(matched),
        (_, Some(by)) => Standing::Settled(by),
        (mode, None) => {
            if mode == Mode::Enforce || matches!(cause, Cause::Exempt(_)) {
                *settled = Some(cause);
            }
            Standing::Applies {
                matched,
                key: String::new(),
            }
        }
    };
    Entry {
        cause,
        mode: policy.mode,
        enforced_percent: percent_of(policy.mode),
        warm_up: None,
        counting: None,
        limits: None,
        adaptive: None,
        shed: None,
        over: Over::Refuse,
        on_store_failure: None,
        standing,
    }
}

/// The mode that holds for a rule: the policy may weaken it, and a rollout leaves a part of the keys in shadow.
fn mode(policy: &Policy, rule: &Rule, facts: &Facts<'_>) -> Mode {
    let mode = rule.mode.max(policy.mode);
    match Rollout::of(rule, mode) {
        None => mode,
        Some(rollout) => {
            let plan = KeyPlan::new(&rule.key, &mut Slots::default());
            rollout.mode(&RequestKey::new(&plan, facts, [0; 2]))
        }
    }
}

/// Whether a rule applies to a request, if there were no other.
fn by_itself<'a>(rule: &'a Rule, mode: Mode, facts: &'a Facts<'a>) -> Standing<'a> {
    let matched = matcher::explain(&rule.matches, facts);
    let mut parts = rule.key.iter().map(KeyPart::fact);
    match parts.find(|fact| facts.get(fact).is_none()) {
        _ if mode == Mode::Off => Standing::Off,
        _ if !matched.matches() => Standing::Fails(matched),
        Some(fact) => Standing::NoKey(fact),
        None => Standing::Applies {
            matched,
            key: key(&rule.key, facts),
        },
    }
}

fn key(parts: &[KeyPart], facts: &Facts<'_>) -> String {
    let plan = KeyPlan::new(parts, &mut Slots::default());
    // It is only shown, so no counter has to be found by it.
    RequestKey::new(&plan, facts, [0; 2]).to_string()
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
        (Mode::Off, _) => Standing::Off,
        (_, Some(by)) => Standing::Settled(by),
        _ => Standing::Applies {
            matched: Explained {
                failed: None,
                conditions: 0,
            },
            key: key(&[KeyPart::Fact(TENANT.to_owned())], facts),
        },
    };
    Some(Entry {
        cause: Cause::Tier(name),
        mode: policy.mode,
        enforced_percent: percent_of(policy.mode),
        warm_up: None,
        counting: Some(tier.counting),
        limits: Some(&tier.limits),
        adaptive: None,
        shed: None,
        over: tier.over,
        on_store_failure: without_store(tier.counting, tier.on_store_failure),
        standing,
    })
}

fn without_store(counting: Counting, failure: OnStoreFailure) -> Option<OnStoreFailure> {
    (counting != Counting::Local).then_some(failure)
}

/// Facts of a request that nothing in the policy asks for, but whose names are close to one that something asks for:
/// each with that one.
///
/// ```
/// use tollgate_engine::document::Format;
/// use tollgate_engine::explain::misspelt;
/// use tollgate_engine::{Facts, Policy};
///
/// let text = "limits: [{name: per-plan, match: {region: eu}, key: [plan, user], rate: 5/s}]";
/// let policy = Policy::from_text(text, Format::Yaml)?.policy;
/// let facts = Facts::new().with("plna", "pro").with("usr", "42").with("colour", "red");
/// assert_eq!(misspelt(&policy, &facts), [("plna", "plan"), ("usr", "user")]);
/// # Ok::<(), tollgate_engine::Rejected>(())
/// ```
pub fn misspelt<'a>(policy: &'a Policy, facts: &Facts<'a>) -> Vec<(&'a str, &'a str)> {
    let conditions = policy.block.iter().chain(&policy.exempt);
    let conditions = conditions.chain(policy.rules.iter().map(|rule| &rule.matches));
    let conditions =
        conditions.flat_map(|one| one.conditions.iter().map(|(fact, _)| fact.as_str()));
    let keys = policy
        .rules
        .iter()
        .flat_map(|rule| rule.key.iter().map(KeyPart::fact));
    let costs = policy.rules.iter().map(|rule| &rule.cost);
    let costs = costs.chain(policy.tiers.values().map(|tier| &tier.cost));
    let costs = costs.filter_map(|cost| cost.fact.as_deref());
    let shed = policy.rules.iter().filter_map(|rule| rule.shed.as_ref());
    let costs = costs.chain(shed.map(|shed| shed.by.as_str()));
    let tenant = (!policy.tiers.is_empty()).then_some(TENANT);
    let asked: BTreeSet<&str> = (conditions.chain(keys).chain(costs))
        .chain(policy.tier_fact.as_deref())
        .chain(tenant)
        .collect();
    let given: Vec<_> = facts.iter().map(|(name, _)| name).collect();
    let unasked = given.iter().filter(|name| !asked.contains(*name));
    let near = unasked.filter_map(|name| {
        // A fact that the request has as well is not what was meant.
        let others = asked.iter().copied().filter(|other| !given.contains(other));
        Some((*name, suggest::closest(name, others)?))
    });
    near.collect()
}
