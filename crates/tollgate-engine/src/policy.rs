//! The model of a policy, whatever file it came from: rules with their conditions, keys and limits.
//!
//! Decoders build it ([`native`](crate::native), [`envoy`](crate::envoy)), and the engine compiles it. It holds no
//! state.

use std::collections::BTreeMap;
use std::time::Duration;

use tollgate::quota::Quota;
use tollgate::{Algorithm, Rate};
use tollgate_adaptive::AdaptiveAlgorithm;
use tollgate_adaptive::shed::CriticalityShares;

use crate::document::Span;

mod descriptor;
mod failure_modes;
mod replica_share;

pub use descriptor::{Charging, DescriptorLimit, DescriptorRule, Domain};
pub use failure_modes::{FailureModes, OnStoreFailure};
pub use replica_share::ReplicaShare;
pub use tollgate::OnMissingKey;

/// The content of one set of policy files.
///
/// ```
/// use tollgate_engine::Policy;
/// use tollgate_engine::document::Format;
///
/// let policy = Policy::from_text("limits: [{name: all, rate: 5/s}]\nnear_limit: 90%", Format::Yaml)?.policy;
/// assert_eq!((policy.rules.len(), policy.near_limit_percent), (1, 90));
/// # Ok::<(), tollgate_engine::LoadError>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Policy {
    /// Limits by facts, in the order of the file.
    pub rules: Vec<Rule>,
    /// Names of facts that this deployment's requests have, beside the common ones. Empty: the policy doesn't list
    /// them.
    pub facts: Vec<String>,
    /// The limits of each tier.
    pub tiers: BTreeMap<String, Tier>,
    /// The tier of each tenant.
    pub tenants: BTreeMap<String, String>,
    /// The fact that carries a tenant's tier, if `tenants` doesn't list the tenant.
    pub tier_fact: Option<String>,
    /// The tier of tenants that have no other tier.
    pub default_tier: Option<String>,
    /// Requests that no limit applies to.
    pub exempt: Vec<MatchConditions>,
    /// Requests that are always denied.
    pub block: Vec<MatchConditions>,
    /// The strongest mode of any rule. In `shadow` no rule denies, and in `off` no rule is checked, whatever mode a
    /// rule sets.
    pub mode: Mode,
    /// The percentage of a limit from which its use counts as near the limit: 80 by default.
    pub near_limit_percent: u8,
    /// Envoy's domains, each with a tree of descriptors.
    pub domains: BTreeMap<String, Domain>,
}

impl Default for Policy {
    /// A policy that limits nothing.
    fn default() -> Self {
        Self {
            rules: Vec::new(),
            tiers: BTreeMap::new(),
            tenants: BTreeMap::new(),
            tier_fact: None,
            default_tier: None,
            facts: Vec::new(),
            exempt: Vec::new(),
            block: Vec::new(),
            mode: Mode::default(),
            near_limit_percent: 80,
            domains: BTreeMap::new(),
        }
    }
}

/// A limit for the requests that match its conditions, with a counter for each key.
///
/// ```
/// use tollgate_engine::Policy;
/// use tollgate_engine::document::Format;
///
/// let policy = Policy::from_text("limits: [{name: all, rate: 5/s, cost: 2}]", Format::Yaml)?.policy;
/// let rule = &policy.rules[0];
/// assert_eq!((rule.name.as_str(), rule.cost.default), ("all", 2));
/// # Ok::<(), tollgate_engine::LoadError>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Rule {
    /// The rule's name, unique in its policy.
    pub name: String,
    /// The conditions on a request, all of which must hold.
    pub matches: MatchConditions,
    /// The facts that make the key of a counter. Empty: all requests share one counter.
    pub key: Vec<KeyPart>,
    /// Keys for requests that lack a fact of `key`. The first key whose facts the request all has applies. Each key
    /// has its own counters, so the user `10.0.0.1` isn't the address `10.0.0.1`.
    pub fallback_keys: Vec<Vec<KeyPart>>,
    /// What happens to a request that has none of these keys. `None`: the policy doesn't set it, so the request is
    /// allowed, and operators get a warning if no request ever has a key.
    pub on_missing_key: Option<OnMissingKey>,
    /// The limits of each key.
    pub limits: Limits,
    /// An adaptive concurrency limit, beside these limits.
    pub adaptive: Option<Adaptive>,
    /// Load shedding: which requests are denied first when permits run out, by a fact.
    pub shed: Option<Shedding>,
    /// The algorithm of the rates.
    pub algorithm: Algorithm,
    /// The cost of a request.
    pub cost: Cost,
    /// Whether the rule denies requests, only counts them, or does nothing.
    pub mode: Mode,
    /// The percentage of keys for which the rule is enforced, if its mode is `enforce`: 100 by default. For the other
    /// keys it is in shadow mode. A hash of the rule's name and the key chooses the keys, so every process chooses
    /// the same ones, and a larger percentage keeps those of a smaller one.
    pub enforced_percent: u8,
    /// How long after a start the rates grow to their full size, from a tenth of it.
    pub warm_up: Option<Duration>,
    /// What happens to a request over the limit.
    pub over: OverLimitAction,
    /// What happens while the store is unavailable.
    pub on_store_failure: FailureModes,
    /// How the nodes of a fleet count together.
    pub counting: Counting,
    /// The fact that decides the hash slot in a cluster, so that limits are on one node. By default the first fact of
    /// the key.
    pub hash_tag: Option<String>,
    /// Names of rules that don't apply to a request if this rule matches it, even if another rule replaces this one.
    pub replaces: Vec<String>,
    /// The name of a counter that this rule shares: rules with the same name here count together.
    pub shared: Option<String>,
    /// The rule's position in its file.
    pub span: Span,
}

impl Rule {
    /// A rule for all requests with these limits, and defaults for everything else.
    ///
    /// ```
    /// use tollgate::Rate;
    /// use tollgate_engine::policy::{KeyPart, Limits, Rule};
    ///
    /// let limits = Limits { rates: vec![Rate::per_second(2)], ..Limits::default() };
    /// let per_user = Rule { key: vec![KeyPart::Fact("user".to_owned())], ..Rule::new("per-user", limits) };
    /// assert_eq!((per_user.cost.default, per_user.key.len()), (1, 1));
    /// ```
    pub fn new(name: &str, limits: Limits) -> Self {
        Self {
            name: name.to_owned(),
            matches: MatchConditions::default(),
            key: Vec::new(),
            fallback_keys: Vec::new(),
            on_missing_key: None,
            on_store_failure: FailureModes::default(),
            limits,
            adaptive: None,
            shed: None,
            algorithm: Algorithm::default(),
            cost: Cost::default(),
            mode: Mode::default(),
            enforced_percent: 100,
            warm_up: None,
            over: OverLimitAction::default(),
            counting: Counting::default(),
            hash_tag: None,
            replaces: Vec::new(),
            shared: None,
            span: Span::default(),
        }
    }
}

/// The limits of a rule. A request is allowed if every one of them allows it.
///
/// ```
/// use tollgate_engine::Policy;
/// use tollgate_engine::document::Format;
///
/// let policy = Policy::from_text("limits: [{name: all, rate: [5/s, 99/h], concurrency: 7}]", Format::Yaml)?.policy;
/// let limits = &policy.rules[0].limits;
/// assert_eq!((limits.rates.len(), limits.concurrency), (2, Some(7)));
/// # Ok::<(), tollgate_engine::LoadError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Limits {
    /// Rates, all in force.
    pub rates: Vec<Rate>,
    /// A total over a long period. [In memory](crate::backend::Memory) a restart loses the usage, unless the backend
    /// has a snapshot file.
    pub quota: Option<Quota>,
    /// The most requests in flight.
    pub concurrency: Option<u32>,
    /// Sets no limit: the rule only replaces others, and counts requests.
    pub unlimited: bool,
}

/// The limits that a tier sets for each of its tenants.
///
/// ```
/// use tollgate_engine::Policy;
/// use tollgate_engine::document::Format;
///
/// let policy = Policy::from_text("tiers: {free: {concurrency: 2}}\ndefault_tier: free", Format::Yaml)?.policy;
/// assert_eq!(policy.tiers["free"].limits.concurrency, Some(2));
/// # Ok::<(), tollgate_engine::LoadError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tier {
    /// The limits of each tenant.
    pub limits: Limits,
    /// The algorithm of the rates.
    pub algorithm: Algorithm,
    /// The cost of a request.
    pub cost: Cost,
    /// How the nodes of a fleet count together.
    pub counting: Counting,
    /// What happens to a request over the limit.
    pub over: OverLimitAction,
    /// What happens while the store is unavailable.
    pub on_store_failure: FailureModes,
    /// The tier's position in its file.
    pub span: Span,
}

impl Tier {
    /// A tier with these limits, and defaults for everything else.
    ///
    /// ```
    /// use tollgate_engine::policy::{Limits, OnStoreFailure, Tier};
    ///
    /// let tier = Tier::new(Limits { quota: Some("5/day".parse()?), ..Limits::default() });
    /// assert_eq!((tier.cost.default, tier.on_store_failure.quota), (1, OnStoreFailure::Closed));
    /// # Ok::<(), tollgate::quota::QuotaError>(())
    /// ```
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            ..Self::default()
        }
    }

    /// A rule with this name and the tier's settings.
    ///
    /// ```
    /// use tollgate_engine::policy::{Counting, Tier};
    ///
    /// let free = Tier { counting: Counting::Local, ..Tier::default() };
    /// assert_eq!(free.as_rule("free").counting, Counting::Local);
    /// ```
    pub fn as_rule(&self, name: &str) -> Rule {
        Rule {
            algorithm: self.algorithm,
            cost: self.cost.clone(),
            over: self.over,
            counting: self.counting,
            on_store_failure: self.on_store_failure,
            span: self.span,
            ..Rule::new(name, self.limits.clone())
        }
    }
}

/// Conditions on facts, all of which must hold. Without conditions, every request matches.
///
/// ```
/// use tollgate_engine::Policy;
/// use tollgate_engine::document::Format;
/// use tollgate_engine::policy::Pattern;
///
/// let policy = Policy::from_text("block: [{user: eve}]", Format::Yaml)?.policy;
/// let conditions = &policy.block[0].conditions;
/// assert_eq!(conditions[..], [("user".to_owned(), Pattern::Exact("eve".to_owned()))]);
/// # Ok::<(), tollgate_engine::LoadError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MatchConditions {
    /// The name of each fact, and the pattern that its value must match.
    pub conditions: Vec<(String, Pattern)>,
    /// The position of the conditions in their file.
    pub span: Span,
}

/// A condition on one fact.
///
/// ```
/// use tollgate_engine::Policy;
/// use tollgate_engine::document::Format;
/// use tollgate_engine::policy::Pattern;
///
/// let policy = Policy::from_text("block: [{ip: {not: 10.0.0.0/8}}]", Format::Yaml)?.policy;
/// let network = Pattern::Cidr("10.0.0.0/8".to_owned());
/// assert_eq!(policy.block[0].conditions[0].1, Pattern::Not(Box::new(network)));
/// # Ok::<(), tollgate_engine::LoadError>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub enum Pattern {
    /// Exactly this text.
    Exact(String),
    /// Any of these patterns.
    OneOf(Vec<Pattern>),
    /// A glob: `*` is anything but `/`, `**` anything, `?` one character but `/`.
    Glob(String),
    /// Text that begins with this prefix.
    Prefix(String),
    /// A regular expression for the whole text.
    Regex(String),
    /// An address in one of these networks, such as `10.0.0.0/8`.
    Cidr(String),
    /// Any value: the request has the fact.
    Present,
    /// The request lacks the fact.
    Absent,
    /// The pattern doesn't match. A request that lacks the fact satisfies this.
    Not(Box<Pattern>),
}

impl Pattern {
    /// The text that the pattern compares with, if it has one.
    pub(crate) fn text(&self) -> Option<&str> {
        match self {
            Self::Exact(text) | Self::Glob(text) | Self::Prefix(text) => Some(text),
            Self::Regex(text) | Self::Cidr(text) => Some(text),
            Self::OneOf(_) | Self::Not(_) | Self::Present | Self::Absent => None,
        }
    }

    /// The patterns of which one must match: this one, unless it is a list.
    pub(crate) fn alternatives(&self) -> Vec<&Self> {
        match self {
            Self::OneOf(each) => each.iter().flat_map(Self::alternatives).collect(),
            one => vec![one],
        }
    }
}

/// Whether a rule denies requests, only counts them, or does nothing.
///
/// ```
/// use tollgate_engine::policy::Mode;
///
/// // The weaker of a rule's mode and its policy's is in force.
/// assert_eq!(Mode::Enforce.max(Mode::Shadow), Mode::Shadow);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Mode {
    /// The rule denies requests over its limit.
    #[default]
    Enforce,
    /// The rule counts requests, reports what it would deny, and denies nothing.
    Shadow,
    /// The rule does nothing.
    Off,
}

impl Mode {
    /// The name in policy files.
    ///
    /// ```
    /// assert_eq!(tollgate_engine::policy::Mode::Shadow.name(), "shadow");
    /// ```
    pub const fn name(self) -> &'static str {
        match self {
            Self::Enforce => "enforce",
            Self::Shadow => "shadow",
            Self::Off => "off",
        }
    }
}

/// How the nodes of a fleet count a limit together, where there is a store.
///
/// ```
/// use tollgate_engine::Policy;
/// use tollgate_engine::document::Format;
/// use tollgate_engine::policy::Counting;
///
/// let policy = Policy::from_text("limits: [{name: a, rate: 9/s, counting: leased}]", Format::Yaml)?.policy;
/// assert_eq!(policy.rules[0].counting, Counting::Leased);
/// # Ok::<(), tollgate_engine::LoadError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Counting {
    /// The store is queried for each request.
    #[default]
    Exact,
    /// A node leases tokens from the store in advance, and spends them in memory. Only for rates: quotas and permits
    /// of the same rule are exact.
    Leased,
    /// Each node counts by itself, as if there were no store.
    Local,
}

/// Whether an algorithm is a bucket and not a window. The rate of a bucket has its own burst, and its tokens can be
/// leased.
pub(crate) const fn is_bucket(algorithm: Algorithm) -> bool {
    matches!(
        algorithm,
        Algorithm::Gcra | Algorithm::TokenBucket | Algorithm::LeakyBucket
    )
}

impl Counting {
    /// The name in policy files.
    ///
    /// ```
    /// use tollgate_engine::policy::Counting;
    ///
    /// assert_eq!(Counting::Local.name(), "local");
    /// ```
    pub const fn name(self) -> &'static str {
        match self {
            Self::Exact => "exact",
            Self::Leased => "leased",
            Self::Local => "local",
        }
    }
}

/// A fact that is part of a key.
///
/// ```
/// use tollgate_engine::Policy;
/// use tollgate_engine::document::Format;
/// use tollgate_engine::policy::KeyPart;
///
/// let policy = Policy::from_text("limits: [{name: a, key: [user, ip/64], rate: 5/s}]", Format::Yaml)?.policy;
/// let network = KeyPart::Network { fact: "ip".to_owned(), bits: 64 };
/// assert_eq!(policy.rules[0].key, [KeyPart::Fact("user".to_owned()), network]);
/// # Ok::<(), tollgate_engine::LoadError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyPart {
    /// The value of a fact. `ip` stands for the client's network: 64 bits of an IPv6 address, unless the caller sets
    /// [other prefixes](crate::Facts::with_client_prefixes).
    Fact(String),
    /// The network of an address: its leading bits (`ip/64`). An IPv4 address counts as itself unless the bits are 32
    /// or fewer.
    Network {
        /// The fact that holds the address.
        fact: String,
        /// How many leading bits identify the network.
        bits: u8,
    },
}

impl KeyPart {
    /// The fact that the part reads.
    ///
    /// ```
    /// use tollgate_engine::policy::KeyPart;
    ///
    /// let network = KeyPart::Network { fact: "ip".to_owned(), bits: 64 };
    /// assert_eq!(network.fact(), "ip");
    /// ```
    pub fn fact(&self) -> &str {
        match self {
            Self::Fact(fact) | Self::Network { fact, .. } => fact,
        }
    }
}

impl Rule {
    /// The key and its fallback keys, in order. Empty if all requests share one counter.
    ///
    /// ```
    /// use tollgate_engine::Policy;
    /// use tollgate_engine::document::Format;
    ///
    /// let text = "limits: [{name: a, key: {first: [[tenant, user], ip]}, rate: 5/s}]";
    /// let policy = Policy::from_text(text, Format::Yaml)?.policy;
    /// let keys: Vec<usize> = policy.rules[0].keys().map(<[_]>::len).collect();
    /// assert_eq!(keys, [2, 1]);
    /// # Ok::<(), tollgate_engine::LoadError>(())
    /// ```
    pub fn keys(&self) -> impl Iterator<Item = &[KeyPart]> {
        let own = Some(self.key.as_slice()).filter(|key| !key.is_empty());
        let fallbacks = self.fallback_keys.iter().map(Vec::as_slice);
        own.into_iter().chain(fallbacks)
    }

    /// The facts of all keys. A fact that several keys read is listed once for each.
    ///
    /// ```
    /// use tollgate_engine::Policy;
    /// use tollgate_engine::document::Format;
    ///
    /// let text = "limits: [{name: a, key: {first: [user, ip/64]}, rate: 5/s}]";
    /// let policy = Policy::from_text(text, Format::Yaml)?.policy;
    /// assert_eq!(policy.rules[0].key_facts().collect::<Vec<_>>(), ["user", "ip"]);
    /// # Ok::<(), tollgate_engine::LoadError>(())
    /// ```
    pub fn key_facts(&self) -> impl Iterator<Item = &str> {
        self.keys().flatten().map(KeyPart::fact)
    }

    /// Whether the rule applies only to requests that have one of its keys.
    pub(crate) fn needs_its_key(&self) -> bool {
        matches!(self.on_missing_key, None | Some(OnMissingKey::Pass))
    }
}

/// The cost of a request, for one rule.
///
/// ```
/// use tollgate_engine::Policy;
/// use tollgate_engine::document::Format;
/// use tollgate_engine::policy::Cost;
///
/// let policy = Policy::from_text("limits: [{name: a, rate: 9/s, cost: {fact: tokens, default: 2}}]", Format::Yaml)?.policy;
/// assert_eq!(policy.rules[0].cost, Cost { fact: Some("tokens".to_owned()), default: 2, settle: None });
/// # Ok::<(), tollgate_engine::LoadError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cost {
    /// The fact that states the cost, as a whole number.
    pub fact: Option<String>,
    /// The cost if the fact is missing or isn't a number.
    pub default: u64,
    /// How the cost is settled, if it is an estimate. `None`: the cost is final.
    pub settle: Option<Settlement>,
}

impl Default for Cost {
    fn default() -> Self {
        Self {
            fact: None,
            default: 1,
            settle: None,
        }
    }
}

/// How an estimate is replaced by the actual cost.
///
/// ```
/// use std::time::Duration;
/// use tollgate_engine::Policy;
/// use tollgate_engine::document::Format;
/// use tollgate_engine::policy::{Settlement, UnsettledAction};
///
/// let text = "limits: [{name: a, rate: 900/min, cost: {fact: max_tokens, settle_within: 1m}}]";
/// let policy = Policy::from_text(text, Format::Yaml)?.policy;
/// let minute = Settlement { within: Duration::from_secs(60), unsettled: UnsettledAction::Charge };
/// assert_eq!(policy.rules[0].cost.settle, Some(minute));
/// # Ok::<(), tollgate_engine::LoadError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settlement {
    /// How long the estimate is held. After that, all of it counts as spent.
    pub within: Duration,
    /// The charge for a request that ends without reporting its actual cost.
    pub unsettled: UnsettledAction,
}

/// The charge for a request that ends without reporting its actual cost, because its client disconnected or its task
/// was dropped.
///
/// ```
/// use tollgate_engine::policy::UnsettledAction;
///
/// // A client can't get free requests by disconnecting.
/// assert_eq!(UnsettledAction::default(), UnsettledAction::Charge);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum UnsettledAction {
    /// The estimate.
    #[default]
    Charge,
    /// Nothing.
    Refund,
}

impl UnsettledAction {
    /// The name in policy files.
    ///
    /// ```
    /// use tollgate_engine::policy::UnsettledAction;
    ///
    /// assert_eq!(UnsettledAction::Refund.name(), "refund");
    /// ```
    pub const fn name(self) -> &'static str {
        match self {
            Self::Charge => "charge",
            Self::Refund => "refund",
        }
    }
}

/// What happens to a request over a rule's limit.
///
/// ```
/// use std::time::Duration;
/// use tollgate_engine::Policy;
/// use tollgate_engine::document::Format;
/// use tollgate_engine::policy::OverLimitAction;
///
/// let policy = Policy::from_text("limits: [{name: a, rate: 9/s, over: wait 200ms}]", Format::Yaml)?.policy;
/// assert_eq!(policy.rules[0].over, OverLimitAction::Wait(Duration::from_millis(200)));
/// # Ok::<(), tollgate_engine::LoadError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum OverLimitAction {
    /// The request is denied.
    #[default]
    Deny,
    /// The request waits in a queue, for this long at most, if the call that decides it can wait.
    Wait(Duration),
}

/// An adaptive concurrency limit: an algorithm sets it from the latency and outcome of requests. Each process runs
/// one algorithm a rule, for all keys together and whether or not there is a store.
///
/// ```
/// use tollgate_adaptive::AdaptiveAlgorithm;
/// use tollgate_engine::Policy;
/// use tollgate_engine::document::Format;
/// use tollgate_engine::policy::Adaptive;
///
/// let text = "limits: [{name: api, concurrency: {adaptive: gradient2, min: 5, max: 200}}]";
/// let policy = Policy::from_text(text, Format::Yaml)?.policy;
/// let adaptive = Adaptive { algorithm: AdaptiveAlgorithm::Gradient2, min: 5, max: 200 };
/// assert_eq!(policy.rules[0].adaptive, Some(adaptive));
/// assert_eq!(adaptive.to_string(), "5 to 200 concurrent by gradient2");
/// # Ok::<(), tollgate_engine::LoadError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, derive_more::Display)]
#[display("{min} to {max} concurrent by {algorithm}")]
pub struct Adaptive {
    /// The algorithm.
    pub algorithm: AdaptiveAlgorithm,
    /// The lower bound of the limit: 1 by default.
    pub min: u32,
    /// The upper bound of the limit.
    pub max: u32,
}

/// Load shedding: which requests are denied first when a limit is full. A less critical class may use a smaller share
/// of it.
///
/// ```
/// use tollgate_adaptive::shed::{Criticality, CriticalityShares};
/// use tollgate_engine::Policy;
/// use tollgate_engine::document::Format;
///
/// let text = "limits: [{name: api, concurrency: 10, shed: {by: priority, sheddable: 50%}}]";
/// let policy = Policy::from_text(text, Format::Yaml)?.policy;
/// let shed = policy.rules[0].shed.as_ref().expect("by priority");
/// assert_eq!((shed.by.as_str(), shed.shares), ("priority", CriticalityShares::new(50, 90)));
/// assert_eq!(shed.shares.of(Criticality::Sheddable, 10), 5);
/// # Ok::<(), tollgate_engine::LoadError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shedding {
    /// The fact that states how critical a request is: `critical`, `default` or `sheddable`. A request without it, or
    /// with another value, is `default`.
    pub by: String,
    /// The share of the limit that each class may use.
    pub shares: CriticalityShares,
}

impl Policy {
    /// A hash of the policy's content, independent of positions in files. Processes of one version with the same
    /// policy have the same fingerprint. Metadata of descriptors doesn't count.
    ///
    /// ```
    /// use tollgate_engine::Policy;
    /// use tollgate_engine::document::Format;
    ///
    /// let read = |text: &str| Policy::from_text(text, Format::Yaml).map(|read| read.policy.fingerprint());
    /// let five = read("limits: [{name: all, rate: 5/s}]")?;
    /// assert_eq!(five, read("# As agreed.\nlimits:\n- name: all\n  rate: 5/s")?);
    /// assert_ne!(five, read("limits: [{name: all, rate: 6/s}]")?);
    /// # Ok::<(), tollgate_engine::LoadError>(())
    /// ```
    pub fn fingerprint(&self) -> u64 {
        let mut policy = self.clone();
        for rule in &mut policy.rules {
            (rule.span, rule.matches.span) = (Span::default(), Span::default());
        }
        for tier in policy.tiers.values_mut() {
            tier.span = Span::default();
        }
        let lists = [&mut policy.exempt, &mut policy.block];
        for MatchConditions { span, .. } in lists.into_iter().flatten() {
            *span = Span::default();
        }
        for domain in policy.domains.values_mut() {
            domain.descriptors.iter_mut().for_each(clear_spans);
        }
        fnv1a_hash(format!("{policy:?}").as_bytes())
    }
}

/// Clears the positions of a descriptor and of all below it.
fn clear_spans(rule: &mut DescriptorRule) {
    rule.span = Span::default();
    // Its values record their positions, and metadata limits nothing.
    rule.metadata = None;
    if let Some(limit) = &mut rule.limit {
        limit.span = Span::default();
    }
    rule.descriptors.iter_mut().for_each(clear_spans);
}

/// FNV-1a, which gives the same hash on every machine.
fn fnv1a_hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}
