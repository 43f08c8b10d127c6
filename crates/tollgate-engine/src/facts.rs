//! What is known of a request: pairs of text, borrowed from it.

use std::borrow::Cow;
use std::fmt;

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
    inline: [(&'a str, &'a str); INLINE],
    used: usize,
    /// Only for requests with very many facts.
    more: Vec<(&'a str, &'a str)>,
}

impl<'a> Facts<'a> {
    /// Nothing is known.
    pub const fn new() -> Self {
        Self {
            inline: [("", ""); INLINE],
            used: 0,
            more: Vec::new(),
        }
    }

    /// The same with one fact more.
    #[must_use]
    pub fn with(mut self, name: &'a str, value: &'a str) -> Self {
        self.set(name, value);
        self
    }

    /// Notes a fact, in place of what was known by this name.
    #[inline]
    pub fn set(&mut self, name: &'a str, value: &'a str) {
        let known = self.inline[..self.used].iter_mut().chain(&mut self.more);
        for fact in known {
            if fact.0 == name {
                fact.1 = value;
                return;
            }
        }
        match self.inline.get_mut(self.used) {
            Some(place) => {
                *place = (name, value);
                self.used += 1;
            }
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
    /// Gives the cost back instead of taking it.
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

impl Unit {
    /// Its length in seconds, as envoyproxy/ratelimit counts.
    pub const fn seconds(self) -> u64 {
        match self {
            Self::Second => 1,
            Self::Minute => 60,
            Self::Hour => 3_600,
            Self::Day => 86_400,
            Self::Week => 7 * 86_400,
            Self::Month => 30 * 86_400,
            Self::Year => 365 * 86_400,
        }
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
