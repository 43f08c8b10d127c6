//! What a policy says, whatever file it came from: rules with their matches, keys and limits.
//!
//! Decoders make it ([`native`](crate), Envoy's form); the engine compiles it. It holds no state.

use std::collections::BTreeMap;
use std::time::Duration;

use tollgate::quota::Quota;
use tollgate::{Algorithm, Rate};

use crate::document::Span;

mod cost;
mod descriptor;
mod divide;
mod failure;
mod fingerprint;
mod key;
mod overload;

pub use cost::{Cost, Over, Settle, Unsettled};
pub use descriptor::{Charging, DescriptorLimit, DescriptorRule, Domain};
pub use divide::Divided;
pub use failure::{FailureModes, OnStoreFailure};
pub use key::KeyPart;
pub use overload::{Adaptive, Shed};
pub use tollgate::OnMissingKey;

/// All that one set of files says.
///
/// ```
/// use tollgate_engine::Policy;
/// use tollgate_engine::document::Format;
///
/// let policy = Policy::from_text("limits: [{name: all, rate: 5/s}]\nnear_limit: 90%", Format::Yaml)?.policy;
/// assert_eq!((policy.rules.len(), policy.near_limit_percent), (1, 90));
/// # Ok::<(), tollgate_engine::Rejected>(())
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
    pub exempt: Vec<Match>,
    /// Requests that never pass.
    pub block: Vec<Match>,
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
/// # Ok::<(), tollgate_engine::Rejected>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Rule {
    /// What people call it; no two rules have the same.
    pub name: String,
    /// Which requests it is for: all conditions must hold.
    pub matches: Match,
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
    /// How many at once is found out, beside these limits.
    pub adaptive: Option<Adaptive>,
    /// Who is shed first when its slots run out, by a fact.
    pub shed: Option<Shed>,
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
    pub over: Over,
    /// What happens while the store can't be asked.
    pub on_store_failure: FailureModes,
    /// How a fleet counts it together.
    pub counting: Counting,
    /// The fact by which a cluster keeps limits on one node: the first of the key if none is said.
    pub slot: Option<String>,
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
            matches: Match::default(),
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
            over: Over::default(),
            counting: Counting::default(),
            slot: None,
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
/// # Ok::<(), tollgate_engine::Rejected>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Limits {
    /// Rates, all in force.
    pub rates: Vec<Rate>,
    /// A total over a long period. [In memory](crate::backend::Memory) a restart forgets what was used, unless
    /// it is given a file.
    pub quota: Option<Quota>,
    /// How many at once.
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
/// # Ok::<(), tollgate_engine::Rejected>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
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
    pub over: Over,
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
            on_store_failure: FailureModes::default(),
            limits,
            algorithm: Algorithm::default(),
            cost: Cost::default(),
            over: Over::default(),
            counting: Counting::default(),
            span: Span::default(),
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
/// # Ok::<(), tollgate_engine::Rejected>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Match {
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
/// # Ok::<(), tollgate_engine::Rejected>(())
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

/// How the nodes of a fleet count a limit together, where there is a store.
///
/// ```
/// use tollgate_engine::Policy;
/// use tollgate_engine::document::Format;
/// use tollgate_engine::policy::Counting;
///
/// let policy = Policy::from_text("limits: [{name: a, rate: 9/s, counting: leased}]", Format::Yaml)?.policy;
/// assert_eq!(policy.rules[0].counting, Counting::Leased);
/// # Ok::<(), tollgate_engine::Rejected>(())
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
