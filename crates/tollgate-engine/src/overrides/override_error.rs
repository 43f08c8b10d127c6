//! Why an order can't be carried out.

use std::time::Duration;

use super::{MAX_OVERRIDE_DURATION, MAX_OVERRIDES};
use crate::matcher::glob::MAX_PARTS;

/// Why an order can't be carried out, or nobody is found, and what to do about it.
///
/// ```
/// use tollgate_engine::overrides::OverrideError;
///
/// let lacks = OverrideError::LacksFact { rule: "per-user".to_owned(), fact: "user".to_owned() };
/// assert_eq!(lacks.to_string(), "the key of \"per-user\" is made of the fact \"user\": say user=…");
/// ```
#[derive(Clone, Debug, PartialEq, Eq, derive_more::Display)]
#[non_exhaustive]
pub enum OverrideError {
    /// No rule, tier or limit of a tree has this name.
    #[display("no rule, tier or limit of a tree is called {rule:?}{}", did_you_mean(near).map_or_else(String::new, |help| format!(": {help}")))]
    UnknownRule {
        /// The name.
        rule: String,
        /// One that is like it.
        near: Option<String>,
    },
    /// The rule is off, or all of the policy is.
    #[display("{rule:?} is off")]
    Off {
        /// The rule.
        rule: String,
    },
    /// The key isn't whole.
    #[display("the key of {rule:?} is made of the fact {fact:?}: say {fact}=…")]
    LacksFact {
        /// The rule.
        rule: String,
        /// What its key needs.
        fact: String,
    },
    /// The key has more than the rule's: it would be for more requests than was meant.
    #[display("the key of {rule:?} isn't made of the fact {fact:?}: leave it out")]
    NotOfKey {
        /// The rule.
        rule: String,
        /// What its key isn't made of.
        fact: String,
    },
    /// Neither the policy names this fact, nor do requests commonly have it.
    #[display("no rule of the policy names the fact {fact:?}: {}", did_you_mean(near).unwrap_or(ANY_FACT.to_owned()))]
    UnknownFact {
        /// The fact.
        fact: String,
        /// One that is like it.
        near: Option<String>,
    },
    /// A text that no address is, and no network.
    #[display(
        "{fact}={value} is no address and no network: write {fact}=203.0.113.7 or {fact}=203.0.113.0/24"
    )]
    NotAnAddress {
        /// The fact, whose values are addresses.
        fact: String,
        /// The text.
        value: String,
    },
    /// A value that no request has, as a path without its `/`.
    #[display("{why}: {help}; {ANY_FACT}")]
    NeverMatches {
        /// Why.
        why: String,
        /// What to write instead.
        help: String,
    },
    /// A glob that can't be matched.
    #[display(
        "the glob {_0:?} can't be matched: * is anything but /, ** anything, with at most 16 stars and {MAX_PARTS} characters after the first"
    )]
    BadGlob(String),
    /// A network in a descriptor, whose values are compared as they are.
    #[display(
        "values of a descriptor are compared as they are, and {key}={value} is a network: name one address, or block the network by a rule or in the policy"
    )]
    NetworkInDescriptor {
        /// The key of the entry.
        key: String,
        /// The network.
        value: String,
    },
    /// One key is looked for, and these values name many.
    #[display("{fact}={value} is many keys of {rule:?}: name one of them")]
    ManyKeys {
        /// The rule.
        rule: String,
        /// The fact.
        fact: String,
        /// What stands for many.
        value: String,
    },
    /// The policy decides descriptors only, which have no facts.
    #[display(
        "the policy has limits of trees only, which know no facts: say the domain and the entries of a descriptor"
    )]
    OnlyTrees,
    /// No rule has a key that these facts make.
    #[display(
        "no rule has a key that is made of these facts: name a rule, or, of a tree, the domain and the descriptor"
    )]
    NoKey,
    /// The rule is a limit of a tree, whose keys are descriptors.
    #[display("{rule:?} is a limit of a tree: say the domain and the entries of a descriptor")]
    WantsDescriptor {
        /// The limit.
        rule: String,
    },
    /// A descriptor meets no limit, or another than was named.
    #[display("{}", of_descriptor(rule.as_deref(), met.as_deref()))]
    OtherLimit {
        /// The one that was named.
        rule: Option<String>,
        /// The one that it meets.
        met: Option<String>,
    },
    /// Nobody is named.
    #[display("that would be for all requests: name a rule, or the facts of a key")]
    MissingTarget,
    /// An override that doesn't say of which rule.
    #[display("name the rule whose limit is to be another")]
    MissingRule,
    /// An override that says no limit.
    #[display("say the limit: a rate, a quota, or how many at once")]
    NoReplacement,
    /// The rule has no such limit.
    #[display("{rule:?} has no {sort}")]
    NoSuchLimit {
        /// The rule.
        rule: String,
        /// What sort.
        sort: &'static str,
    },
    /// The rule has several rates, none of which has the period.
    #[display("{rule:?} has several rates ({}): say one by the period of one of them", rates.join(", "))]
    WhichRate {
        /// The rule.
        rule: String,
        /// Its rates.
        rates: Vec<String>,
    },
    /// A rule that counts in windows is to have another period, of which its counter knows nothing.
    #[display(
        "{rule:?} counts {own} in windows, which say nothing of another period: say {asked} by the period of {own}, or change the policy"
    )]
    OtherPeriod {
        /// The rule.
        rule: String,
        /// Its rate.
        own: String,
        /// The one that was to stand in for it.
        asked: String,
    },
    /// The limit can't be counted.
    #[display("{rule:?} can't have that limit: {why}")]
    Limit {
        /// The rule.
        rule: String,
        /// Why.
        why: String,
    },
    /// It would last no time, or too long.
    #[display("{}", lasts(*_0))]
    InvalidDuration(Duration),
    /// There are too many orders.
    #[display("there are {MAX_OVERRIDES} orders, and no more are kept: withdraw some")]
    Full,
    /// There are orders by too many different sets of facts.
    #[display(
        "there are orders by {_0} different sets of facts, and no more are kept: name a rule"
    )]
    TooManyFactSets(usize),
    /// There are too many orders by globs and networks.
    #[display(
        "there are {_0} orders by globs and networks, and no more are kept: put them into the policy's block list"
    )]
    TooManyPatterns(usize),
    /// It has more text than is kept.
    #[display("{what} has {bytes} bytes, more than the {most} that are kept")]
    TooLong {
        /// What has.
        what: &'static str,
        /// How much.
        bytes: usize,
        /// How much may be.
        most: usize,
    },
}

impl OverrideError {
    pub(crate) fn limit(rule: &str, why: impl ToString) -> Self {
        Self::Limit {
            rule: rule.to_owned(),
            why: why.to_string(),
        }
    }
}

const ANY_FACT: &str =
    "if requests have it all the same, say so by --any-fact (\"any_fact\": true)";

fn did_you_mean(near: &Option<String>) -> Option<String> {
    near.as_ref().map(|near| format!("did you mean {near:?}?"))
}

fn lasts(asked: Duration) -> String {
    if asked.is_zero() {
        return "an order lasts for some time: say how long".to_owned();
    }
    let [most, days] = [MAX_OVERRIDE_DURATION, asked].map(|time| time.as_secs().div_ceil(86_400));
    format!("an order lasts at most {most} days, not {days}: change the policy instead")
}

/// What is said of a descriptor.
fn of_descriptor(rule: Option<&str>, met: Option<&str>) -> String {
    match (rule, met) {
        (_, None) => "no limit of the domain is for this descriptor".to_owned(),
        (Some(rule), Some(met)) => {
            format!("the limit for this descriptor is {met:?}, not {rule:?}")
        }
        (None, Some(met)) => format!("the limit for this descriptor is {met:?}"),
    }
}

impl std::error::Error for OverrideError {}
