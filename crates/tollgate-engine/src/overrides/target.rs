//! Who an order is for: a rule, and a key by the facts that make it.

use std::collections::BTreeMap;
use std::fmt;

use crate::address::Network;
use crate::facts::fact_name;
use crate::key_text::{KeyTextError, QuotedText, read_pairs, write_pair};

/// Who an order is for, or whom an operator looks for: a rule, tier or limit of a tree by name, and a key of it.
///
/// A key is named by the facts that make it, so that it is the same as that of a request which has them; of a rule by
/// `ip/64`, any address of the network names it.
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

/// Whose requests.
///
/// ```
/// use tollgate_engine::overrides::{Target, TargetKey};
///
/// assert_eq!(Target::rule("per-user").target_key(), &TargetKey::AllRequests);
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum TargetKey {
    /// All.
    AllRequests,
    /// Those with these facts, in the order of their names.
    Facts(Vec<(String, String)>),
    /// Those whose facts match all of these, in the order of their names.
    Patterns(Vec<(String, FactPattern)>),
    /// Those with this descriptor.
    Descriptor {
        /// The domain that they are asked about in.
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

    /// All requests that a rule, a tier or a limit of a tree (`domain/key=value/key`) is for.
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

    /// All requests that have these facts, as they are written, whichever rules are for them.
    pub fn facts<N: Into<String>, V: Into<String>>(
        facts: impl IntoIterator<Item = (N, V)>,
    ) -> Self {
        let exact = to_owned_pairs(facts).map(|(name, value)| (name, FactPattern::Exact(value)));
        Self::patterns(None, exact)
    }

    /// What an operator means who writes these values: those with a `*` are globs, and networks stand for their addresses.
    /// With a rule, its key is made of them.
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

    /// What lists and logs show for a key (`ip=2001:db8::/64 method=GET`), read again. A value in quotes is no pattern.
    ///
    /// # Errors
    /// If it is no such text, or only the beginning of one.
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
        // In the order of their names, each with what is said last.
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

    /// The counter of a tree that a request with this descriptor meets.
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

    /// The name of the rule, tier or limit of a tree, if it has one.
    pub fn rule_name(&self) -> Option<&str> {
        self.rule.as_deref()
    }

    /// Whose requests.
    pub fn target_key(&self) -> &TargetKey {
        &self.key
    }

    /// How many bytes of text it is.
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
    /// Facts, with their values or patterns as they were written; none if it isn't named by facts.
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

/// Pairs of a target, as a request has them.
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

/// Which values of a fact an order is for.
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
    /// This text.
    Exact(String),
    /// What a policy's glob matches: `*` is anything but `/`, `**` anything, `?` one character but `/`.
    Glob(String),
    /// All addresses of this network; and the text itself, as lists show a key that is a network.
    Network(String),
}

impl FactPattern {
    /// What an operator means who writes this: a glob if it has a `*`, a network if it is one, as a policy reads it.
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

    /// As it was written.
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
            // A star stands bare only here, where it means a glob.
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
