//! Who an order is for: a rule, and a key by the facts that make it.

use std::fmt;

use crate::facts::fact_name;

/// Who an order is for, or whom an operator looks for: a rule, tier or limit of a tree by name, and a key of it.
///
/// A key is named by the facts that make it, so that it is the same as that of a request which has them; of a rule by
/// `ip/64`, any address of the network names it.
///
/// ```
/// use tollgate_engine::orders::Target;
///
/// assert_eq!(Target::key("per-user", [("user", "ada")]).to_string(), "user=ada of \"per-user\"");
/// assert_eq!(Target::rule("per-user").to_string(), "everybody of \"per-user\"");
/// assert_eq!(Target::facts([("user", "ada"), ("path", "/")]).to_string(), "path=/ user=ada");
/// assert_eq!(Target::descriptor("edge", [("user", "ada")]).to_string(), "edge/user=ada");
/// assert_eq!(Target::everything().to_string(), "everybody");
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Target {
    pub(crate) rule: Option<String>,
    pub(crate) key: TargetKey,
}

/// Whose requests.
///
/// ```
/// use tollgate_engine::orders::{Target, TargetKey};
///
/// assert_eq!(Target::rule("per-user").whose(), &TargetKey::Everybody);
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum TargetKey {
    /// All.
    Everybody,
    /// Those with these facts, in the order of their names.
    Facts(Vec<(String, String)>),
    /// Those with this descriptor.
    Descriptor {
        /// The domain that they are asked about in.
        domain: String,
        /// Keys and values, from the outermost.
        entries: Vec<(String, String)>,
    },
}

fn owned<N: Into<String>, V: Into<String>>(
    pairs: impl IntoIterator<Item = (N, V)>,
) -> impl Iterator<Item = (String, String)> {
    let pairs = pairs.into_iter();
    pairs.map(|(name, value)| (name.into(), value.into()))
}

impl Target {
    /// All requests.
    pub fn everything() -> Self {
        Self {
            rule: None,
            key: TargetKey::Everybody,
        }
    }

    /// All requests that a rule, a tier or a limit of a tree (`domain/key=value/key`) is for.
    pub fn rule(name: impl Into<String>) -> Self {
        Self {
            rule: Some(name.into()),
            key: TargetKey::Everybody,
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
        let mut all: Vec<(String, String)> = Vec::new();
        for (name, value) in owned(facts) {
            let name = fact_name(&name).into_owned();
            match all.binary_search_by(|(known, _)| known.as_str().cmp(&name)) {
                Ok(place) => all[place].1 = value,
                Err(place) => all.insert(place, (name, value)),
            }
        }
        Self {
            rule: None,
            key: if all.is_empty() {
                TargetKey::Everybody
            } else {
                TargetKey::Facts(all)
            },
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
                entries: owned(entries).collect(),
            },
        }
    }

    /// The name of the rule, tier or limit of a tree, if it has one.
    pub fn rule_name(&self) -> Option<&str> {
        self.rule.as_deref()
    }

    /// Whose requests.
    pub fn whose(&self) -> &TargetKey {
        &self.key
    }

    /// How many bytes of text it is.
    pub(crate) fn bytes(&self) -> usize {
        let sum = |pairs: &[(String, String)]| {
            let lengths = pairs.iter().map(|(name, value)| name.len() + value.len());
            lengths.sum::<usize>()
        };
        let key = match &self.key {
            TargetKey::Everybody => 0,
            TargetKey::Facts(facts) => sum(facts),
            TargetKey::Descriptor { domain, entries } => domain.len() + sum(entries),
        };
        key + self.rule.as_ref().map_or(0, String::len)
    }
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
            Self::Everybody => f.write_str("everybody"),
            Self::Facts(facts) => {
                for (place, (name, value)) in facts.iter().enumerate() {
                    let space = if place > 0 { " " } else { "" };
                    write!(f, "{space}{name}={value}")?;
                }
                Ok(())
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
