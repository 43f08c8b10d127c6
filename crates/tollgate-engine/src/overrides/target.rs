//! The target of an override: a rule, and a key by its facts.

use std::collections::BTreeMap;
use std::fmt;

use crate::address::Network;
use crate::facts::fact_name;
use crate::key_text::{KeyTextError, QuotedText, read_pairs, write_pair};

/// The target of an override or of an operator's lookup: a rule, tier or limit of a tree by name, and a key of it.
///
/// A key is named by the facts that make it, so it equals the key of a request that has these facts. For a rule with
/// `ip/64`, any address of the network names the key.
///
/// ```
/// use tollgate_engine::overrides::Target;
///
/// assert_eq!(Target::key("per-user", [("user", "ada")]).to_string(), "user=ada of \"per-user\"");
/// assert_eq!(Target::rule("per-user").to_string(), "everybody of \"per-user\"");
/// assert_eq!(Target::facts([("user", "ada"), ("path", "/")]).to_string(), "path=/ user=ada");
/// assert_eq!(Target::descriptor("edge", [("user", "ada")]).to_string(), "edge/user=ada");
/// assert_eq!(Target::all_requests().to_string(), "everybody");
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Target {
    pub(crate) rule: Option<String>,
    pub(crate) key: TargetKey,
}

/// The requests that a target selects.
///
/// ```
/// use tollgate_engine::overrides::{Target, TargetKey};
///
/// assert_eq!(Target::rule("per-user").target_key(), &TargetKey::AllRequests);
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum TargetKey {
    /// All requests.
    AllRequests,
    /// Requests with these facts, in the order of their names.
    Facts(Vec<(String, String)>),
    /// Requests whose facts match all of these, in the order of their names.
    Patterns(Vec<(String, FactPattern)>),
    /// Requests with this descriptor.
    Descriptor {
        /// The domain of the requests.
        domain: String,
        /// Keys and values, from the outermost.
        entries: Vec<(String, String)>,
    },
}

fn to_owned_pairs<N: Into<String>, V: Into<String>>(
    pairs: impl IntoIterator<Item = (N, V)>,
) -> impl Iterator<Item = (String, String)> {
    let pairs = pairs.into_iter();
    pairs.map(|(name, value)| (name.into(), value.into()))
}

impl Target {
    /// All requests.
    pub fn all_requests() -> Self {
        Self {
            rule: None,
            key: TargetKey::AllRequests,
        }
    }

    /// All requests of a rule, a tier or a limit of a tree (`domain/key=value/key`).
    pub fn rule(name: impl Into<String>) -> Self {
        Self {
            rule: Some(name.into()),
            key: TargetKey::AllRequests,
        }
    }

    /// One key of a rule or a tier, by the facts that make it.
    pub fn key<N: Into<String>, V: Into<String>>(
        rule: impl Into<String>,
        facts: impl IntoIterator<Item = (N, V)>,
    ) -> Self {
        Self {
            rule: Some(rule.into()),
            ..Self::facts(facts)
        }
    }

    /// All requests with exactly these facts, whichever rules apply to them.
    pub fn facts<N: Into<String>, V: Into<String>>(
        facts: impl IntoIterator<Item = (N, V)>,
    ) -> Self {
        let exact = to_owned_pairs(facts).map(|(name, value)| (name, FactPattern::Exact(value)));
        Self::patterns(None, exact)
    }

    /// Reads values as operators write them: one with a `*` is a glob, and a network stands for its addresses. With a
    /// rule, they make its key.
    ///
    /// ```
    /// use tollgate_engine::overrides::Target;
    ///
    /// let network = Target::parse_facts(None, [("ip", "198.51.100.0/24")]);
    /// assert_eq!(network.to_string(), "ip=198.51.100.0/24");
    /// assert_eq!(Target::parse_facts(None, [("user", "ada")]), Target::facts([("user", "ada")]));
    /// ```
    pub fn parse_facts<N: Into<String>, V: Into<String>>(
        rule: Option<&str>,
        facts: impl IntoIterator<Item = (N, V)>,
    ) -> Self {
        let patterns = to_owned_pairs(facts).map(|(name, value)| (name, FactPattern::of(value)));
        Self::patterns(rule, patterns)
    }

    /// Parses a key as lists and logs show it (`ip=2001:db8::/64 method=GET`). A value in quotes is no pattern.
    ///
    /// # Errors
    /// If the text isn't a key, or is cut off.
    ///
    /// ```
    /// use tollgate_engine::overrides::Target;
    ///
    /// let target = Target::from_text(Some("per-user"), "user=\"a b\" plan=free")?;
    /// assert_eq!(target, Target::key("per-user", [("user", "a b"), ("plan", "free")]));
    /// # Ok::<(), tollgate_engine::overrides::KeyTextError>(())
    /// ```
    pub fn from_text(rule: Option<&str>, text: &str) -> Result<Self, KeyTextError> {
        let patterns = read_pairs(text)?.into_iter().map(|pair| {
            let pattern = if pair.is_quoted {
                FactPattern::Exact(pair.value)
            } else {
                FactPattern::of(pair.value)
            };
            (pair.name, pattern)
        });
        Ok(Self::patterns(rule, patterns))
    }

    fn patterns(
        rule: Option<&str>,
        facts: impl IntoIterator<Item = (String, FactPattern)>,
    ) -> Self {
        // The map sorts by name and keeps the last value of each.
        let named = facts.into_iter();
        let named = named.map(|(name, own)| (fact_name(&name).into_owned(), own));
        let all: Vec<_> = named.collect::<BTreeMap<_, _>>().into_iter().collect();
        let is_exact = |(_, pattern): &(_, FactPattern)| matches!(pattern, FactPattern::Exact(_));
        let key = if all.is_empty() {
            TargetKey::AllRequests
        } else if all.iter().all(is_exact) {
            let exact = all.into_iter();
            let exact = exact.map(|(name, own)| (name, own.text().to_owned()));
            TargetKey::Facts(exact.collect())
        } else {
            TargetKey::Patterns(all)
        };
        Self {
            rule: rule.map(str::to_owned),
            key,
        }
    }

    /// The counter of a tree that a request with this descriptor uses.
    pub fn descriptor<N: Into<String>, V: Into<String>>(
        domain: impl Into<String>,
        entries: impl IntoIterator<Item = (N, V)>,
    ) -> Self {
        Self {
            rule: None,
            key: TargetKey::Descriptor {
                domain: domain.into(),
                entries: to_owned_pairs(entries).collect(),
            },
        }
    }

    /// The name of the rule, tier or limit of a tree, if the target has one.
    pub fn rule_name(&self) -> Option<&str> {
        self.rule.as_deref()
    }

    /// The requests that the target selects.
    pub fn target_key(&self) -> &TargetKey {
        &self.key
    }

    /// The length of all its text, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        let entries = match &self.key {
            TargetKey::Descriptor { domain, entries } => Some((domain, entries)),
            _ => None,
        };
        let pairs = entries
            .iter()
            .flat_map(|(_, entries)| as_str_pairs(entries));
        let pairs = self.key.facts().chain(pairs);
        let lengths = pairs.map(|(name, value)| name.len() + value.len());
        let names = [self.rule.as_ref(), entries.map(|(domain, _)| domain)];
        let names = names.into_iter().flatten().map(String::len);
        lengths.chain(names).sum()
    }
}

impl TargetKey {
    /// The facts, with values or patterns as they were written. Empty if the target isn't named by facts.
    pub(crate) fn facts(&self) -> impl Iterator<Item = (&str, &str)> {
        let (exact, patterns): (&[_], &[_]) = match self {
            Self::Facts(facts) => (facts, &[]),
            Self::Patterns(facts) => (&[], facts),
            Self::AllRequests | Self::Descriptor { .. } => (&[], &[]),
        };
        let patterns = patterns.iter();
        as_str_pairs(exact).chain(patterns.map(|(fact, own)| (fact.as_str(), own.text())))
    }
}

/// The pairs of a target, in the form of a request's.
pub(crate) fn as_str_pairs(pairs: &[(String, String)]) -> impl Iterator<Item = (&str, &str)> {
    let pairs = pairs.iter();
    pairs.map(|(name, value)| (name.as_str(), value.as_str()))
}

fn write_pairs<'a, V: fmt::Display>(
    f: &mut fmt::Formatter<'_>,
    pairs: impl Iterator<Item = (&'a String, V)>,
) -> fmt::Result {
    for (place, (name, value)) in pairs.enumerate() {
        f.write_str(if place > 0 { " " } else { "" })?;
        write_pair(f, name, value)?;
    }
    Ok(())
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.key.fmt(f)?;
        match &self.rule {
            Some(rule) => write!(f, " of {rule:?}"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for TargetKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AllRequests => f.write_str("everybody"),
            Self::Facts(facts) => {
                let facts = facts.iter();
                write_pairs(f, facts.map(|(name, value)| (name, QuotedText(value))))
            }
            Self::Patterns(facts) => {
                let facts = facts.iter();
                write_pairs(f, facts.map(|(name, pattern)| (name, pattern)))
            }
            Self::Descriptor { domain, entries } => {
                f.write_str(domain)?;
                for (key, value) in entries {
                    write!(f, "/{key}={value}")?;
                }
                Ok(())
            }
        }
    }
}

/// The values of a fact that an override selects.
///
/// ```
/// use tollgate_engine::overrides::FactPattern;
///
/// assert_eq!(FactPattern::of("ada"), FactPattern::Exact("ada".to_owned()));
/// assert_eq!(FactPattern::of("/api/**"), FactPattern::Glob("/api/**".to_owned()));
/// assert_eq!(FactPattern::of("10.0.0.0/8"), FactPattern::Network("10.0.0.0/8".to_owned()));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FactPattern {
    /// Exactly this text.
    Exact(String),
    /// A policy's glob: `*` is anything but `/`, `**` anything, `?` one character but `/`.
    Glob(String),
    /// All addresses of this network, and its text itself, because lists show a key that is a network in this form.
    Network(String),
}

impl FactPattern {
    /// Reads a value as operators write it: a glob if it has a `*`, a network if it is one by the policy's syntax,
    /// else the text.
    pub fn of(text: impl Into<String>) -> Self {
        let text = text.into();
        if text.contains('*') {
            Self::Glob(text)
        } else if text.contains('/') && Network::parse(&text).is_some() {
            Self::Network(text)
        } else {
            Self::Exact(text)
        }
    }

    /// The text as it was written.
    pub fn text(&self) -> &str {
        match self {
            Self::Exact(text) | Self::Glob(text) | Self::Network(text) => text,
        }
    }
}

impl fmt::Display for FactPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exact(text) => QuotedText(text).fmt(f),
            // An unquoted star always means a glob, so any other text with one is quoted.
            Self::Glob(text)
                if QuotedText(&text.replace('*', ""))
                    .to_string()
                    .starts_with('"') =>
            {
                write!(f, "{text:?}")
            }
            Self::Glob(text) | Self::Network(text) => f.write_str(text),
        }
    }
}
