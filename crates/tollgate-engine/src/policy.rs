//! What a policy says, whatever file it came from: rules with their matches, keys and limits.
//!
//! Decoders make it ([`native`](crate), Envoy's form); the engine compiles it. It holds no state.

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

/// All that one set of files says.
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
    /// Facts of one's own that requests have, beside those that all may have. None: nothing is said of them.
    pub facts: Vec<String>,
    /// What each tier allows a tenant.
    pub tiers: BTreeMap<String, Tier>,
    /// Which tier a tenant is in.
    pub tenants: BTreeMap<String, String>,
    /// The fact that carries a tenant's tier, if it isn't in `tenants`.
    pub tier_fact: Option<String>,
    /// The tier of tenants about whom nothing is known, if any.
    pub default_tier: Option<String>,
    /// Requests that are never limited.
    pub exempt: Vec<MatchConditions>,
    /// Requests that never pass.
    pub block: Vec<MatchConditions>,
    /// The most that is done about any rule: in shadow nothing is refused, and off no rule is even asked, whatever
    /// the rules say of themselves.
    pub mode: Mode,
    /// From this part of a limit on, in percent, it counts as near: 80 unless said otherwise.
    pub near_limit_percent: u8,
    /// Envoy's domains, each a tree of descriptors.
    pub domains: BTreeMap<String, Domain>,
}

impl Default for Policy {
    /// Nothing is limited.
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

/// A limit for requests that match, by key.
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
    /// What people call it; no two rules have the same.
    pub name: String,
    /// Which requests it is for: all conditions must hold.
    pub matches: MatchConditions,
    /// Which facts tell one counter from another. None: one counter for all.
    pub key: Vec<KeyPart>,
    /// Keys for requests that lack a fact of `key`, in this order: the first of which a request has every fact is its key.
    /// Each has counters of its own, so the user `10.0.0.1` isn't the address `10.0.0.1`.
    pub fallback_keys: Vec<Vec<KeyPart>>,
    /// What happens to a request that has none of these keys. None: the policy doesn't say, so the request passes, and
    /// operators are warned if no request ever has a key.
    pub on_missing_key: Option<OnMissingKey>,
    /// What it allows.
    pub limits: Limits,
    /// How many concurrent is found out, beside these limits.
    pub adaptive: Option<Adaptive>,
    /// Who is shed first when its slots run out, by a fact.
    pub shed: Option<Shedding>,
    /// How its rates are counted.
    pub algorithm: Algorithm,
    /// What a request costs.
    pub cost: Cost,
    /// Whether it refuses requests, only counts them, or does nothing.
    pub mode: Mode,
    /// For how many keys in a hundred it is enforced, if its mode is that: 100 unless said otherwise. For the
    /// others it is in shadow. Which they are follows from the names of the rule and the key, so it is the same
    /// everywhere, and those of a small part are among those of a larger one.
    pub enforced_percent: u8,
    /// For how long after a start its rates grow to what they are: a tenth at first.
    pub warm_up: Option<Duration>,
    /// What becomes of a request that is over its limit.
    pub over: OverLimitAction,
    /// What happens while the store can't be asked.
    pub on_store_failure: FailureModes,
    /// How a fleet counts it together.
    pub counting: Counting,
    /// The fact by which a cluster keeps limits on one node: the first of the key if none is said.
    pub hash_tag: Option<String>,
    /// Rules that don't apply to a request that this one applies to, also where another rule replaces this one.
    pub replaces: Vec<String>,
    /// Rules with the same name here count together.
    pub shared: Option<String>,
    /// Where it stands.
    pub span: Span,
}

impl Rule {
    /// A rule for all requests with these limits, and all else as if nothing were said of it.
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

/// What a limit allows: all of it must.
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
    /// A total over a long period. [In memory](crate::backend::Memory) a restart forgets what was used, unless
    /// it is given a file.
    pub quota: Option<Quota>,
    /// How many concurrent.
    pub concurrency: Option<u32>,
    /// No limit at all: it only replaces others, and is counted.
    pub unlimited: bool,
}

/// What a tier allows each of its tenants.
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
    /// What it allows.
    pub limits: Limits,
    /// How its rates are counted.
    pub algorithm: Algorithm,
    /// What a request costs.
    pub cost: Cost,
    /// How a fleet counts it together.
    pub counting: Counting,
    /// What becomes of a request that is over its limit.
    pub over: OverLimitAction,
    /// What happens while the store can't be asked.
    pub on_store_failure: FailureModes,
    /// Where it stands.
    pub span: Span,
}

impl Tier {
    /// These limits, and all else as if nothing were said of it.
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

    /// A rule of this name that says the same.
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

/// Conditions on facts, all of which must hold. None: everything matches.
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
    /// Fact by fact.
    pub conditions: Vec<(String, Pattern)>,
    /// Where it stands.
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
    /// Just this text.
    Exact(String),
    /// One of these.
    OneOf(Vec<Pattern>),
    /// A glob: `*` is anything but `/`, `**` anything, `?` one character but `/`.
    Glob(String),
    /// Begins with this.
    Prefix(String),
    /// A regular expression for the whole text.
    Regex(String),
    /// An address in one of these networks, such as `10.0.0.0/8`.
    Cidr(String),
    /// The fact is known, whatever it is.
    Present,
    /// The fact is not known.
    Absent,
    /// This doesn't hold (an unknown fact does not).
    Not(Box<Pattern>),
}

impl Pattern {
    /// The text that it compares with, if it has one.
    pub(crate) fn text(&self) -> Option<&str> {
        match self {
            Self::Exact(text) | Self::Glob(text) | Self::Prefix(text) => Some(text),
            Self::Regex(text) | Self::Cidr(text) => Some(text),
            Self::OneOf(_) | Self::Not(_) | Self::Present | Self::Absent => None,
        }
    }

    /// The conditions of which one must hold: this one, unless it is a list.
    pub(crate) fn alternatives(&self) -> Vec<&Self> {
        match self {
            Self::OneOf(each) => each.iter().flat_map(Self::alternatives).collect(),
            one => vec![one],
        }
    }
}

/// Whether a rule refuses requests, only counts them, or does nothing.
///
/// ```
/// use tollgate_engine::policy::Mode;
///
/// // The weaker of a rule's and its policy's is in force.
/// assert_eq!(Mode::Enforce.max(Mode::Shadow), Mode::Shadow);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Mode {
    /// It refuses what is too much.
    #[default]
    Enforce,
    /// It counts and tells what it would refuse, and lets it pass.
    Shadow,
    /// It does nothing.
    Off,
}

impl Mode {
    /// As files say it.
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
    /// The store is asked about each request.
    #[default]
    Exact,
    /// A node takes some tokens from the store ahead, and spends them by itself. Only for rates: quotas and
    /// slots of the same rule are exact.
    Leased,
    /// Not together: each node counts by itself, as if there were no store.
    Local,
}

/// Whether an algorithm counts by tokens that flow, as buckets do, and not by windows: such a rate has a burst of its own,
/// and its tokens can be taken ahead.
pub(crate) const fn is_bucket(algorithm: Algorithm) -> bool {
    matches!(
        algorithm,
        Algorithm::Gcra | Algorithm::TokenBucket | Algorithm::LeakyBucket
    )
}

impl Counting {
    /// As files say it.
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
    /// The fact as it is. Of `ip` it is the network of the client: 64 bits of an IPv6 address, unless who fills in the facts says
    /// [otherwise](crate::Facts::with_client_prefixes).
    Fact(String),
    /// The network that an address is in: so many bits of it (`ip/64`). An IPv4 address counts as
    /// itself unless the bits are 32 or fewer.
    Network {
        /// The fact that holds the address.
        fact: String,
        /// How many leading bits count.
        bits: u8,
    },
}

impl KeyPart {
    /// The fact that it takes its value from.
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
    /// Its key and the keys to fall back to, in their order: none if it has one counter for all.
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

    /// The facts that its keys take their values from; one that several keys have is listed for each of them.
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

    /// Whether it applies only to requests that have one of its keys.
    pub(crate) fn needs_its_key(&self) -> bool {
        matches!(self.on_missing_key, None | Some(OnMissingKey::Pass))
    }
}

/// What a request costs a rule.
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
    /// The fact that says so, as a whole number.
    pub fact: Option<String>,
    /// What it costs if that is unknown, or no number.
    pub default: u64,
    /// Whether this is an estimate: what the request did cost is told when it is over.
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

/// How a cost that is an estimate becomes what the request did cost.
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
    /// For so long the estimate is held. After that all of it counts as spent.
    pub within: Duration,
    /// What a request is charged that ends without saying what it cost.
    pub unsettled: UnsettledAction,
}

/// What a request is charged that ends without saying what it cost: its client has gone, or its task was dropped.
///
/// ```
/// use tollgate_engine::policy::UnsettledAction;
///
/// // Nobody gets a request for nothing by hanging up.
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
    /// As files say it.
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

/// What becomes of a request that is over a rule's limit.
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
    /// It is refused.
    #[default]
    Deny,
    /// It waits for its turn, for no longer than this, where it is decided by a call that can wait.
    Wait(Duration),
}

/// How many concurrent is found out by a law, from how long requests take and how they end: one law a rule, in each process by
/// itself, whatever the key and whether there is a store.
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
    /// The law.
    pub algorithm: AdaptiveAlgorithm,
    /// The limit never falls below this: 1 unless said otherwise.
    pub min: u32,
    /// The limit never rises above this.
    pub max: u32,
}

/// As people read it.
/// Who is shed first when too many run at once: requests whose class may use a smaller part of the limit.
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
    /// The fact that says how critical a request is: `critical`, `default` or `sheddable`. A request that lacks it, or has
    /// another value, is a default one.
    pub by: String,
    /// Which part of the limit each class may use.
    pub shares: CriticalityShares,
}

impl Policy {
    /// A hash of what the policy says, wherever that stands in its files: processes of one version that have the same
    /// policy have the same one. Metadata of descriptors doesn't count.
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

/// Where a descriptor and all below it stand makes no difference.
fn clear_spans(rule: &mut DescriptorRule) {
    rule.span = Span::default();
    // Its values know where they stand, and limit nothing.
    rule.metadata = None;
    if let Some(limit) = &mut rule.limit {
        limit.span = Span::default();
    }
    rule.descriptors.iter_mut().for_each(clear_spans);
}

/// FNV-1a, which is the same on every machine.
fn fnv1a_hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}
