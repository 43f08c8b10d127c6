//! The facts of a request: pairs of names and values, borrowed from it.

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

use crate::address::ClientBits;

mod bytes;

pub use bytes::text_of_bytes;

/// How many facts are stored without an allocation.
const INLINE: usize = 16;

/// The facts of a request: its method, path, user, tenant, address, headers, or anything else.
///
/// Rules commonly use these names: `method`, `path`, `route`, `host`, `ip`, `user`, `tenant`, `api_key`, `tier`, and
/// `header.<name>` for a header, in lower case as by [`fact_name`]. If a name is set twice, the last value applies.
///
/// ```
/// use tollgate_engine::Facts;
///
/// let facts = Facts::new().with("user", "42").with("path", "/api/x");
/// assert_eq!(facts.get("path"), Some("/api/x"));
/// assert_eq!(facts.get("tenant"), None);
/// ```
#[derive(Clone)]
pub struct Facts<'a> {
    /// The [`name_prefix`] of each name in `inline`. Most names differ in it, so most lookups compare numbers only.
    heads: [u64; INLINE],
    inline: [(&'a str, &'a str); INLINE],
    used: usize,
    /// The facts beyond `INLINE`.
    more: Vec<(&'a str, &'a str)>,
    /// The cost that the request itself states.
    cost: Option<u64>,
    /// Further sets of facts that belong to the request.
    other_sets: &'a [Facts<'a>],
    pub(crate) scope: Scope,
    /// How many leading bits of `ip` identify a client.
    pub(crate) client_bits: ClientBits,
}

/// What a set of facts describes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Scope {
    /// The whole request.
    #[default]
    Request,
    /// The whole request, with several values of a fact joined in one text.
    Joined,
    /// One descriptor of the request.
    Descriptor,
}

impl<'a> Facts<'a> {
    /// An empty set of facts.
    #[inline]
    pub const fn new() -> Self {
        Self {
            heads: [0; INLINE],
            inline: [("", ""); INLINE],
            used: 0,
            more: Vec::new(),
            cost: None,
            other_sets: &[],
            scope: Scope::Request,
            client_bits: ClientBits::DEFAULT,
        }
    }

    /// Adds further sets of facts to the request. Each set is matched by itself, and the request is allowed if every
    /// set is. A rule and key that several sets share is charged once.
    ///
    /// For example, a proxy may send two users for one request. Neither may hide the other.
    ///
    /// ```
    /// # use tollgate::clock::Manual;
    /// # use tollgate_engine::backend::Memory;
    /// # use tollgate_engine::document::Format;
    /// # use tollgate_engine::{Engine, Policy};
    /// # let memory = Memory::builder().clock(Manual::new()).wall(Manual::new()).build();
    /// use tollgate_engine::Facts;
    ///
    /// let policy = Policy::from_text("limits: [{name: per-user, key: user, rate: 1/h}]", Format::Yaml)?.policy;
    /// let engine = Engine::new(policy, memory)?;
    /// let bob = [Facts::new().with("user", "bob")];
    /// let both = Facts::new().with("user", "ada").with_other_sets(&bob);
    /// assert!(engine.decide(&both).allowed().is_some());
    /// assert!(engine.decide(&bob[0]).denied().is_some());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub const fn with_other_sets(mut self, others: &'a [Self]) -> Self {
        self.other_sets = others;
        self
    }

    /// Marks these as the facts of one descriptor: only rules with a condition on [`DESCRIPTOR`] match them.
    ///
    /// ```
    /// # use tollgate::clock::Manual;
    /// # use tollgate_engine::backend::Memory;
    /// # use tollgate_engine::document::Format;
    /// # use tollgate_engine::{Engine, Policy};
    /// # let memory = Memory::builder().clock(Manual::new()).wall(Manual::new()).build();
    /// use tollgate_engine::Facts;
    ///
    /// let policy = Policy::from_text("limits: [{name: all, rate: 1/h}]", Format::Yaml)?.policy;
    /// let engine = Engine::new(policy, memory)?;
    /// let facts = Facts::new().with("user", "ada").as_descriptor();
    /// assert!(engine.decide(&facts).decision().is_unlimited());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub const fn as_descriptor(mut self) -> Self {
        self.scope = Scope::Descriptor;
        self
    }

    /// Marks these as facts that join several values of a fact in one text, as a service may join repeated header
    /// lines. Blocks and limits apply to them as to any [other set](Self::with_other_sets). Exemptions and bypasses
    /// don't: they have to match each value by itself.
    ///
    /// ```
    /// # use tollgate::clock::Manual;
    /// # use tollgate_engine::backend::Memory;
    /// # use tollgate_engine::document::Format;
    /// # use tollgate_engine::{Engine, Policy};
    /// # let memory = Memory::builder().clock(Manual::new()).wall(Manual::new()).build();
    /// use tollgate_engine::Facts;
    ///
    /// let text = "{block: [{header.x-app: 'e, vil'}], exempt: [{header.x-app: good}], limits: [{name: all, rate: 1/h}]}";
    /// let engine = Engine::new(Policy::from_text(text, Format::Yaml)?.policy, memory)?;
    /// let of = |app| Facts::new().with("header.x-app", app);
    /// let sets = [of("good"), of("good, good").as_joined_values()];
    /// let exempt = of("good").with_other_sets(&sets);
    /// assert!(engine.decide(&exempt).decision().is_unlimited());
    /// let sets = [of("vil"), of("e, vil").as_joined_values()];
    /// let blocked = of("e").with_other_sets(&sets);
    /// assert!(engine.decide(&blocked).denied().is_some());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub const fn as_joined_values(mut self) -> Self {
        self.scope = Scope::Joined;
        self
    }

    /// Sets how many leading bits of an IPv4 and an IPv6 address identify a client. A rule with `key: ip` counts by
    /// that network; the default is 32 and 64. A rule with `key: ip/56` counts by 56 bits. Conditions on `ip` see the
    /// whole address.
    ///
    /// ```
    /// # use tollgate::clock::Manual;
    /// # use tollgate_engine::backend::Memory;
    /// # use tollgate_engine::document::Format;
    /// # use tollgate_engine::{Engine, Policy};
    /// # let memory = Memory::builder().clock(Manual::new()).wall(Manual::new()).build();
    /// use tollgate_engine::Facts;
    ///
    /// let policy = Policy::from_text("limits: [{name: clients, key: ip, rate: 1/h}]", Format::Yaml)?.policy;
    /// let engine = Engine::new(policy, memory)?;
    /// let of = |ip| Facts::new().with("ip", ip).with_client_prefixes(32, 56);
    /// assert!(engine.decide(&of("2001:db8::1")).allowed().is_some());
    /// let other = of("2001:db8:0:ff::1");
    /// assert!(engine.decide(&other).denied().is_some());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn with_client_prefixes(mut self, ipv4_bits: u8, ipv6_bits: u8) -> Self {
        self.client_bits = ClientBits::new(ipv4_bits, ipv6_bits);
        self
    }

    /// Whether this is the only set of facts, about the whole request, as nearly always.
    #[inline]
    pub(crate) const fn is_single(&self) -> bool {
        self.other_sets.is_empty() && matches!(self.scope, Scope::Request)
    }

    /// All sets of facts of the request, this one first.
    pub(crate) fn sets(&'a self) -> impl Iterator<Item = &'a Self> {
        std::iter::once(self).chain(self.other_sets)
    }

    /// The set with this number, among [all](Self::sets).
    pub(crate) fn facts_set(&'a self, number: u32) -> &'a Self {
        let other = (number as usize).checked_sub(1);
        other
            .and_then(|place| self.other_sets.get(place))
            .unwrap_or(self)
    }

    /// Sets the cost of the request, for all rules that find no cost in a fact. A permit costs one, whatever the
    /// cost.
    ///
    /// ```
    /// # use tollgate::clock::Manual;
    /// # use tollgate_engine::backend::Memory;
    /// # use tollgate_engine::document::Format;
    /// # use tollgate_engine::{Engine, Policy};
    /// # let memory = Memory::builder().clock(Manual::new()).wall(Manual::new()).build();
    /// use tollgate_engine::Facts;
    ///
    /// let policy = Policy::from_text("limits: [{name: all, rate: 10/h}]", Format::Yaml)?.policy;
    /// let engine = Engine::new(policy, memory)?;
    /// assert_eq!(engine.decide(&Facts::new().with_cost(3)).decision().remaining, 7);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub const fn with_cost(mut self, cost: u64) -> Self {
        self.set_cost(cost);
        self
    }

    /// Sets the cost of the request, as [`with_cost`](Self::with_cost) does.
    ///
    /// ```
    /// let mut facts = tollgate_engine::Facts::new();
    /// facts.set_cost(3);
    /// assert_eq!(facts.cost(), Some(3));
    /// ```
    pub const fn set_cost(&mut self, cost: u64) {
        self.cost = Some(cost);
    }

    /// The cost that the request itself states.
    pub const fn cost(&self) -> Option<u64> {
        self.cost
    }

    /// Adds one fact.
    #[must_use]
    #[inline]
    pub fn with(mut self, name: &'a str, value: &'a str) -> Self {
        self.set(name, value);
        self
    }

    /// Sets a fact, in place of an earlier value of this name.
    // Inlined, so that the compiler computes the prefix of a literal name.
    #[inline]
    pub fn set(&mut self, name: &'a str, value: &'a str) {
        let head = name_prefix(name);
        let known = self.heads.iter().zip(&mut self.inline);
        for (own, fact) in known.take(self.used) {
            if *own == head && fact.0 == name {
                fact.1 = value;
                return;
            }
        }
        match (
            self.heads.get_mut(self.used),
            self.inline.get_mut(self.used),
        ) {
            (Some(own), Some(fact)) => {
                (*own, *fact) = (head, (name, value));
                self.used += 1;
            }
            _ => self.set_on_heap(name, value),
        }
    }

    /// Sets a fact beyond `INLINE`.
    #[cold]
    fn set_on_heap(&mut self, name: &'a str, value: &'a str) {
        match self.more.iter_mut().find(|fact| fact.0 == name) {
            Some(fact) => fact.1 = value,
            None => self.more.push((name, value)),
        }
    }

    /// The value of the fact with this name.
    #[inline]
    pub fn get(&self, name: &str) -> Option<&'a str> {
        self.iter()
            .find(|(known, _)| *known == name)
            .map(|(_, value)| value)
    }

    /// All facts, in the order in which they were set.
    #[inline]
    pub fn iter(&self) -> impl Iterator<Item = (&'a str, &'a str)> {
        self.inline[..self.used].iter().chain(&self.more).copied()
    }

    /// Calls `each` with every fact and the prefix of its name.
    #[inline]
    pub(crate) fn each(&self, mut each: impl FnMut(u64, &'a str, &'a str)) {
        for (own, (name, value)) in self.heads.iter().zip(&self.inline).take(self.used) {
            each(*own, name, value);
        }
        for (name, value) in &self.more {
            each(name_prefix(name), name, value);
        }
    }
}

/// The fact that names the domain of a request of descriptors. No descriptor can set it.
pub const DOMAIN: &str = "domain";

/// The fact that tiers are keyed by.
pub(crate) const TENANT: &str = "tenant";

/// The fact that names the keys of a descriptor, such as `path/remote_address`: see [`descriptor_name`]. It is
/// [`ALL_DESCRIPTORS`] in the set that joins the facts of all descriptors. No descriptor can set it.
pub const DESCRIPTOR: &str = "descriptor";

/// The value of [`DESCRIPTOR`] in the set that joins the facts of all descriptors of a request.
pub const ALL_DESCRIPTORS: &str = "*";

/// The keys of a descriptor in one text, for a condition on [`DESCRIPTOR`]. Two different lists of keys never give
/// the same text.
///
/// ```
/// use tollgate_engine::facts::descriptor_name;
///
/// assert_eq!(descriptor_name(["path", "remote_address"]), "path/remote_address");
/// assert_eq!(descriptor_name(["a/b", "*"]), "a%2Fb/%2A");
/// ```
pub fn descriptor_name<'k>(keys: impl IntoIterator<Item = &'k str>) -> String {
    let mut name = String::new();
    for (place, key) in keys.into_iter().enumerate() {
        if place > 0 {
            name.push('/');
        }
        for sign in key.chars() {
            match sign {
                '%' => name.push_str("%25"),
                '/' => name.push_str("%2F"),
                '*' => name.push_str("%2A"),
                sign => name.push(sign),
            }
        }
    }
    name
}

/// The fact that holds the client address. In a key it stands for the client's network.
pub(crate) const IP: &str = "ip";

/// Names of facts that requests commonly have, beside `header.<name>`.
pub const COMMON_FACTS: [&str; 11] = [
    "method", "path", "route", "host", "ip", "user", TENANT, "api_key", "tier", DOMAIN, DESCRIPTOR,
];

/// Whether requests commonly have this fact.
///
/// ```
/// use tollgate_engine::facts::is_known_fact;
///
/// assert!(is_known_fact("path") && is_known_fact("header.x-plan"));
/// assert!(!is_known_fact("paht"));
/// ```
pub fn is_known_fact(name: &str) -> bool {
    COMMON_FACTS.contains(&name) || name.starts_with("header.") || name.starts_with("header:")
}

/// Up to eight bytes of a name, in one number. Together with the length, it identifies a short name completely.
#[inline]
pub(crate) const fn name_prefix(name: &str) -> u64 {
    let bytes = name.as_bytes();
    if let Some(first) = bytes.first_chunk::<8>() {
        return u64::from_le_bytes(*first);
    }
    if let (Some(first), Some(last)) = (bytes.first_chunk::<4>(), bytes.last_chunk::<4>()) {
        // The two halves overlap if the name is shorter than eight bytes.
        let (first, last) = (u32::from_le_bytes(*first), u32::from_le_bytes(*last));
        return first as u64 | (last as u64) << 32;
    }
    match bytes {
        [a, b, c] => *a as u64 | (*b as u64) << 8 | (*c as u64) << 16,
        [a, b] => *a as u64 | (*b as u64) << 8,
        [a] => *a as u64,
        _ => 0,
    }
}

impl Default for Facts<'_> {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Facts<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

impl<'a> FromIterator<(&'a str, &'a str)> for Facts<'a> {
    fn from_iter<I: IntoIterator<Item = (&'a str, &'a str)>>(pairs: I) -> Self {
        let mut facts = Self::new();
        for (name, value) in pairs {
            facts.set(name, value);
        }
        facts
    }
}

/// The name of a fact as policies use it. A header's name is lowercased, because header names are case-insensitive.
///
/// ```
/// use tollgate_engine::facts::fact_name;
///
/// assert_eq!(fact_name("header.X-Plan"), "header.x-plan");
/// assert_eq!(fact_name("Team"), "Team");
/// ```
pub fn fact_name(name: &str) -> Cow<'_, str> {
    match name.strip_prefix("header.") {
        Some(header) if header.contains(|sign: char| sign.is_ascii_uppercase()) => {
            Cow::Owned(name.to_ascii_lowercase())
        }
        _ => Cow::Borrowed(name),
    }
}

/// One descriptor: a list of entries that a proxy sends about a request, Envoy's form of facts.
///
/// ```
/// use tollgate_engine::facts::Descriptor;
///
/// let descriptor = Descriptor::new(&[("path", "/login"), ("remote_address", "10.0.0.1")]);
/// assert_eq!(descriptor.entries.len(), 2);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Descriptor<'a> {
    /// Keys and values, from the outermost entry.
    pub entries: &'a [(&'a str, &'a str)],
    /// A limit that the proxy sends in place of the configured one: a count per unit.
    pub limit: Option<(u32, Unit)>,
    /// The cost of this descriptor, in place of the request's cost. A cost of 0 peeks.
    pub cost: Option<u64>,
    /// Refunds the cost instead of charging it: at most what the counter has counted. A counter doesn't record which
    /// request spent what, so refund what a request [was charged](crate::engine::DescriptorStatus::charged) and no
    /// more. Don't refund a denied request, because that would return what others have spent.
    pub refund: bool,
}

impl<'a> Descriptor<'a> {
    /// A descriptor with these entries, at the request's cost.
    pub const fn new(entries: &'a [(&'a str, &'a str)]) -> Self {
        Self {
            entries,
            limit: None,
            cost: None,
            refund: false,
        }
    }
}

/// The units of Envoy's limits.
///
/// ```
/// use tollgate_engine::facts::Unit;
///
/// assert_eq!(Unit::Day.seconds(), 86_400);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Unit {
    /// A second.
    Second,
    /// A minute.
    Minute,
    /// An hour.
    Hour,
    /// 24 hours.
    Day,
    /// Seven days.
    Week,
    /// 30 days.
    Month,
    /// 365 days.
    Year,
}

/// The name of each unit, and its length in seconds.
const UNIT_LENGTHS: [(&str, u64); Unit::ALL.len()] = [
    ("second", 1),
    ("minute", 60),
    ("hour", 3_600),
    ("day", 86_400),
    ("week", 7 * 86_400),
    ("month", 30 * 86_400),
    ("year", 365 * 86_400),
];

impl Unit {
    /// All units, the shortest first.
    pub const ALL: [Self; 7] = [
        Self::Second,
        Self::Minute,
        Self::Hour,
        Self::Day,
        Self::Week,
        Self::Month,
        Self::Year,
    ];

    /// The unit of this length.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollgate_engine::facts::Unit;
    ///
    /// assert_eq!(Unit::of(Duration::from_secs(60)), Some(Unit::Minute));
    /// assert_eq!(Unit::of(Duration::from_secs(61)), None);
    /// ```
    pub fn of(length: Duration) -> Option<Self> {
        let is_as_long = |unit: &Self| Duration::from_secs(unit.seconds()) == length;
        Self::ALL.into_iter().find(is_as_long)
    }

    /// The name in envoyproxy/ratelimit's files.
    ///
    /// ```
    /// use tollgate_engine::facts::Unit;
    ///
    /// assert_eq!(Unit::Hour.name(), "hour");
    /// ```
    pub const fn name(self) -> &'static str {
        UNIT_LENGTHS[self as usize].0
    }

    /// The length in seconds, as envoyproxy/ratelimit counts.
    pub const fn seconds(self) -> u64 {
        UNIT_LENGTHS[self as usize].1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_facts_are_all_known_and_the_latest_counts() {
        let names: Vec<_> = (0..40).map(|number| format!("fact{number}")).collect();
        let mut facts: Facts<'_> = names.iter().map(|name| (name.as_str(), "old")).collect();
        facts.set("fact3", "new");
        facts.set("fact39", "new");
        assert_eq!(facts.iter().count(), 40);
        assert_eq!(facts.get("fact3"), Some("new"));
        assert_eq!(facts.get("fact39"), Some("new"));
        assert_eq!(facts.get("fact20"), Some("old"));
    }
}
