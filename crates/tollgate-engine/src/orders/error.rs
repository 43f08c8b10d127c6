//! Why an order can't be carried out.

use std::fmt;
use std::time::Duration;

use tollgate::LimitError;

use super::{LONGEST_ORDER, MOST_ORDERS};
use crate::matcher::glob::MOST_PARTS;

/// Why an order can't be carried out, or nobody is found, and what to do about it.
///
/// ```
/// use tollgate_engine::orders::OrderError;
///
/// let lacks = OrderError::LacksFact { rule: "per-user".to_owned(), fact: "user".to_owned() };
/// assert_eq!(lacks.to_string(), "the key of \"per-user\" is made of the fact \"user\": say user=…");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum OrderError {
    /// No rule, tier or limit of a tree has this name.
    UnknownRule {
        /// The name.
        rule: String,
        /// One that is like it.
        near: Option<String>,
    },
    /// The rule is off, or all of the policy is.
    Off {
        /// The rule.
        rule: String,
    },
    /// The key isn't whole.
    LacksFact {
        /// The rule.
        rule: String,
        /// What its key needs.
        fact: String,
    },
    /// The key has more than the rule's: it would be for more requests than was meant.
    NotOfKey {
        /// The rule.
        rule: String,
        /// What its key isn't made of.
        fact: String,
    },
    /// Neither the policy names this fact, nor do requests commonly have it.
    UnknownFact {
        /// The fact.
        fact: String,
        /// One that is like it.
        near: Option<String>,
    },
    /// A text that no address is, and no network.
    NotAnAddress {
        /// The fact, whose values are addresses.
        fact: String,
        /// The text.
        value: String,
    },
    /// A value that no request has, as a path without its `/`.
    NeverMatches {
        /// Why.
        why: String,
        /// What to write instead.
        help: String,
    },
    /// A glob that can't be matched.
    BadGlob(String),
    /// A network in a descriptor, whose values are compared as they are.
    NetworkInDescriptor {
        /// The key of the entry.
        key: String,
        /// The network.
        value: String,
    },
    /// One key is looked for, and these values name many.
    ManyKeys {
        /// The rule.
        rule: String,
        /// The fact.
        fact: String,
        /// What stands for many.
        value: String,
    },
    /// The policy decides descriptors only, which have no facts.
    OnlyTrees,
    /// No rule has a key that these facts make.
    NoKey,
    /// The rule is a limit of a tree, whose keys are descriptors.
    WantsDescriptor {
        /// The limit.
        rule: String,
    },
    /// A descriptor meets no limit, or another than was named.
    OtherLimit {
        /// The one that was named.
        rule: Option<String>,
        /// The one that it meets.
        met: Option<String>,
    },
    /// Nobody is named.
    NamesNobody,
    /// An override that doesn't say of which rule.
    WantsRule,
    /// An override that says no limit.
    NoReplacement,
    /// The rule has no such limit.
    NoSuchLimit {
        /// The rule.
        rule: String,
        /// What sort.
        sort: &'static str,
    },
    /// The rule has several rates, none of which has the period.
    WhichRate {
        /// The rule.
        rule: String,
        /// Its rates.
        rates: Vec<String>,
    },
    /// A rule that counts in windows is to have another period, of which its counter knows nothing.
    OtherPeriod {
        /// The rule.
        rule: String,
        /// Its rate.
        own: String,
        /// The one that was to stand in for it.
        asked: String,
    },
    /// The limit can't be counted.
    Limit {
        /// The rule.
        rule: String,
        /// Why.
        why: String,
    },
    /// It would last no time, or too long.
    Lasts(Duration),
    /// There are too many orders.
    Full,
    /// There are orders by too many different sets of facts.
    TooManySorts(usize),
    /// There are too many orders by globs and networks.
    TooManyPatterns(usize),
    /// It has more text than is kept.
    TooLong {
        /// What has.
        what: &'static str,
        /// How much.
        bytes: usize,
        /// How much may be.
        most: usize,
    },
}

impl OrderError {
    pub(crate) fn limit(rule: &str, error: &LimitError) -> Self {
        Self::Limit {
            rule: rule.to_owned(),
            why: error.to_string(),
        }
    }
}

impl fmt::Display for OrderError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownRule { rule, near } => {
                write!(f, "no rule, tier or limit of a tree is called {rule:?}")?;
                match near {
                    Some(near) => write!(f, ": did you mean {near:?}?"),
                    None => Ok(()),
                }
            }
            Self::Off { rule } => write!(f, "{rule:?} is off"),
            Self::LacksFact { rule, fact } => write!(
                f,
                "the key of {rule:?} is made of the fact {fact:?}: say {fact}=…"
            ),
            Self::NotOfKey { rule, fact } => write!(
                f,
                "the key of {rule:?} isn't made of the fact {fact:?}: leave it out"
            ),
            Self::NoKey => {
                f.write_str("no rule has a key that is made of these facts: name a rule, or, of a tree, the domain and the descriptor")
            }
            Self::WantsDescriptor { rule } => write!(
                f,
                "{rule:?} is a limit of a tree: say the domain and the entries of a descriptor"
            ),
            Self::OtherLimit { rule, met } => of_descriptor(f, rule.as_deref(), met.as_deref()),
            Self::NamesNobody => {
                f.write_str("that would be for all requests: name a rule, or the facts of a key")
            }
            Self::WantsRule => f.write_str("name the rule whose limit is to be another"),
            Self::NoReplacement => {
                f.write_str("say the limit: a rate, a quota, or how many at once")
            }
            Self::NoSuchLimit { rule, sort } => write!(f, "{rule:?} has no {sort}"),
            Self::WhichRate { rule, rates } => {
                let rates = rates.join(", ");
                write!(
                    f,
                    "{rule:?} has several rates ({rates}): say one by the period of one of them"
                )
            }
            Self::OtherPeriod { rule, own, asked } => write!(
                f,
                "{rule:?} counts {own} in windows, which say nothing of another period: say {asked} by the period of {own}, or change the policy"
            ),
            Self::Limit { rule, why } => write!(f, "{rule:?} can't have that limit: {why}"),
            other => other.fmt_value(f),
        }
    }
}

impl OrderError {
    /// Shows what is wrong with a fact or its value.
    fn fmt_value(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownFact { fact, near } => {
                write!(f, "no rule of the policy names the fact {fact:?}")?;
                match near {
                    Some(near) => write!(f, ": did you mean {near:?}?"),
                    None => f.write_str(
                        ": if requests have it all the same, say so by --any-fact (\"any_fact\": true)",
                    ),
                }
            }
            Self::NotAnAddress { fact, value } => write!(
                f,
                "{fact}={value} is no address and no network: write {fact}=203.0.113.7 or {fact}=203.0.113.0/24"
            ),
            Self::NeverMatches { why, help } => write!(
                f,
                "{why}: {help}; if requests have it all the same, say so by --any-fact (\"any_fact\": true)"
            ),
            Self::BadGlob(glob) => write!(
                f,
                "the glob {glob:?} can't be matched: * is anything but /, ** anything, with at most 16 stars and {MOST_PARTS} characters after the first"
            ),
            Self::NetworkInDescriptor { key, value } => write!(
                f,
                "values of a descriptor are compared as they are, and {key}={value} is a network: name one address, or block the network by a rule or in the policy"
            ),
            Self::ManyKeys { rule, fact, value } => {
                write!(f, "{fact}={value} is many keys of {rule:?}: name one of them")
            }
            Self::OnlyTrees => f.write_str(
                "the policy has limits of trees only, which know no facts: say the domain and the entries of a descriptor",
            ),
            bound => bound.fmt_bound(f),
        }
    }

    /// Shows what there is too much of.
    fn fmt_bound(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lasts(Duration::ZERO) => {
                f.write_str("an order lasts for some time: say how long")
            }
            Self::Lasts(asked) => write!(
                f,
                "an order lasts at most {} days, not {}: change the policy instead",
                LONGEST_ORDER.as_secs() / 86_400,
                asked.as_secs().div_ceil(86_400)
            ),
            Self::Full => write!(
                f,
                "there are {MOST_ORDERS} orders, and no more are kept: withdraw some"
            ),
            Self::TooManySorts(most) => write!(
                f,
                "there are orders by {most} different sets of facts, and no more are kept: name a rule"
            ),
            Self::TooManyPatterns(most) => write!(
                f,
                "there are {most} orders by globs and networks, and no more are kept: put them into the policy's block list"
            ),
            Self::TooLong { what, bytes, most } => {
                write!(
                    f,
                    "{what} has {bytes} bytes, more than the {most} that are kept"
                )
            }
            _ => Ok(()),
        }
    }
}

fn of_descriptor(f: &mut fmt::Formatter<'_>, rule: Option<&str>, met: Option<&str>) -> fmt::Result {
    match (rule, met) {
        (_, None) => f.write_str("no limit of the domain is for this descriptor"),
        (Some(rule), Some(met)) => {
            write!(f, "the limit for this descriptor is {met:?}, not {rule:?}")
        }
        (None, Some(met)) => write!(f, "the limit for this descriptor is {met:?}"),
    }
}

impl std::error::Error for OrderError {}
