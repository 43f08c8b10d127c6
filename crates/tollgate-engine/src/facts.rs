//! What is known of a request: pairs of text, borrowed from it.

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

use crate::address::ClientBits;

mod bytes;

pub use bytes::text_of_bytes;

/// How many facts need no allocation.
const INLINE: usize = 16;

/// What is known of a request: its method, path, user, tenant, address, headers, anything.
///
/// Names that rules commonly use: `method`, `path`, `route`, `host`, `ip`, `user`, `tenant`, `api_key`,
/// `tier`, and `header.<name>` for a header, in lower case as [`fact_name`] has it. A name set twice has
/// its latest value.
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
    /// The [`head`] of each name that is in place: most names are told apart by it alone.
    heads: [u64; INLINE],
    inline: [(&'a str, &'a str); INLINE],
    used: usize,
    /// Only for requests with very many facts.
    more: Vec<(&'a str, &'a str)>,
    /// What the request itself says that it costs.
    cost: Option<u64>,
    /// Further sets of facts that the request stands for.
    other_sets: &'a [Facts<'a>],
    pub(crate) scope: Scope,
    /// How many bits of `ip` tell one client from another.
    pub(crate) client_bits: ClientBits,
}

/// What a set of facts is about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Scope {
    /// The whole request.
    #[default]
    Request,
    /// The whole request, with several values of a fact in one text.
    Joined,
    /// One of its descriptors.
    Descriptor,
}

impl<'a> Facts<'a> {
    /// Nothing is known.
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

    /// The same for a request that stands for other sets of facts, too: each set is matched by itself, and the request passes
    /// if all of them do. A rule and key that several sets have in common are charged once.
    ///
    /// A proxy may send two users of one request, say. Neither may hide the other.
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

    /// The same as the facts of one descriptor by itself: only rules that have a condition on [`DESCRIPTOR`] see them.
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

    /// The same as facts in which several values of one fact stand together in one text, as lines of a header do that a service may
    /// read as one. What is blocked and what is limited are looked for in them as in any [other set](Self::with_other_sets); an exemption, or a
    /// bypass by an operator, has to be for each value by itself, and isn't looked for here.
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

    /// The same for a request whose client has all addresses that begin with as many equal bits as its own, of IPv4 and of IPv6. A
    /// rule with `key: ip` counts by these: 32 and 64, unless said otherwise. One with `key: ip/56` counts by 56. Conditions on `ip`
    /// see the whole address.
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

    /// Whether this is one set of facts about the whole request, as nearly always.
    #[inline]
    pub(crate) const fn is_single(&self) -> bool {
        self.other_sets.is_empty() && matches!(self.scope, Scope::Request)
    }

    /// All sets of facts that the request stands for, this one first.
    pub(crate) fn sets(&'a self) -> impl Iterator<Item = &'a Self> {
        std::iter::once(self).chain(self.other_sets)
    }

    /// The set of this number, of [all](Self::sets).
    pub(crate) fn facts_set(&'a self, number: u32) -> &'a Self {
        let other = (number as usize).checked_sub(1);
        other
            .and_then(|place| self.other_sets.get(place))
            .unwrap_or(self)
    }

    /// The same for a request that costs so much, by all rules that find its cost in no fact. Slots cost one,
    /// whatever it is.
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

    /// Notes what the request costs, as [`costing`](Self::with_cost) does.
    ///
    /// ```
    /// let mut facts = tollgate_engine::Facts::new();
    /// facts.set_cost(3);
    /// assert_eq!(facts.cost(), Some(3));
    /// ```
    pub const fn set_cost(&mut self, cost: u64) {
        self.cost = Some(cost);
    }

    /// What the request itself says that it costs.
    pub const fn cost(&self) -> Option<u64> {
        self.cost
    }

    /// The same with one fact more.
    #[must_use]
    #[inline]
    pub fn with(mut self, name: &'a str, value: &'a str) -> Self {
        self.set(name, value);
        self
    }

    /// Notes a fact, in place of what was known by this name.
    // Inlined, so that the head of a name that the program has in it is a number there.
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

    /// Notes one of very many facts.
    #[cold]
    fn set_on_heap(&mut self, name: &'a str, value: &'a str) {
        match self.more.iter_mut().find(|fact| fact.0 == name) {
            Some(fact) => fact.1 = value,
            None => self.more.push((name, value)),
        }
    }

    /// What is known by this name.
    #[inline]
    pub fn get(&self, name: &str) -> Option<&'a str> {
        self.iter()
            .find(|(known, _)| *known == name)
            .map(|(_, value)| value)
    }

    /// All facts, in the order in which they were noted.
    #[inline]
    pub fn iter(&self) -> impl Iterator<Item = (&'a str, &'a str)> {
        self.inline[..self.used].iter().chain(&self.more).copied()
    }

    /// The same, each with the head of its name.
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

/// The fact that holds the domain of a request of descriptors. No descriptor can set it.
pub const DOMAIN: &str = "domain";

/// The fact whose limits tiers are.
pub(crate) const TENANT: &str = "tenant";

/// The fact that tells of a request of descriptors which keys a descriptor has, as `path/remote_address`: see
/// [`descriptor_name`]. It is [`ALL_DESCRIPTORS`] where the facts of all descriptors stand together. No descriptor can set it.
pub const DESCRIPTOR: &str = "descriptor";

/// What [`DESCRIPTOR`] is where the facts of all descriptors of a request stand together.
pub const ALL_DESCRIPTORS: &str = "*";

/// The keys of a descriptor in one text, for a condition on [`DESCRIPTOR`]. No two lists of keys are the same text.
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

/// The fact that holds the address of the client. As a key it is the network that a client has.
pub(crate) const IP: &str = "ip";

/// Names of facts that requests commonly have; headers are `header.<name>` beside these.
pub const COMMON_FACTS: [&str; 11] = [
    "method", "path", "route", "host", "ip", "user", TENANT, "api_key", "tier", DOMAIN, DESCRIPTOR,
];

/// Whether a fact is one that requests commonly have.
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

/// Up to eight bytes of a name, in one number: with its length, all of a short one.
#[inline]
pub(crate) const fn name_prefix(name: &str) -> u64 {
    let bytes = name.as_bytes();
    if let Some(first) = bytes.first_chunk::<8>() {
        return u64::from_le_bytes(*first);
    }
    if let (Some(first), Some(last)) = (bytes.first_chunk::<4>(), bytes.last_chunk::<4>()) {
        // Two halves that may overlap.
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

/// The name of a fact as policies know it: that of a header is in lower case, as headers are the same
/// however they are written.
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

/// One list of entries that a proxy sends about a request: Envoy's form of facts.
///
/// ```
/// use tollgate_engine::facts::Descriptor;
///
/// let descriptor = Descriptor::new(&[("path", "/login"), ("remote_address", "10.0.0.1")]);
/// assert_eq!(descriptor.entries.len(), 2);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Descriptor<'a> {
    /// Keys and values, from the outermost.
    pub entries: &'a [(&'a str, &'a str)],
    /// A limit that the proxy asks for in place of the configured one: so many in this unit.
    pub limit: Option<(u32, Unit)>,
    /// What this request costs here, if not what the whole request says; 0 peeks.
    pub cost: Option<u64>,
    /// Gives the cost back instead of taking it: at most what its counter has counted, whoever took it. A counter knows no
    /// requests, so give back what a request [was charged](crate::engine::DescriptorStatus::charged) and no more: nothing of
    /// one that was denied, whose refund would give back what others took.
    pub refund: bool,
}

impl<'a> Descriptor<'a> {
    /// These entries, at the request's cost.
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

/// What each unit is called, and its length in seconds.
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
    /// All of them, the shortest first.
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

    /// As envoyproxy/ratelimit's files say it.
    ///
    /// ```
    /// use tollgate_engine::facts::Unit;
    ///
    /// assert_eq!(Unit::Hour.name(), "hour");
    /// ```
    pub const fn name(self) -> &'static str {
        UNIT_LENGTHS[self as usize].0
    }

    /// Its length in seconds, as envoyproxy/ratelimit counts.
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
