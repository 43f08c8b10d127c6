//! Why an override is rejected.

use std::time::Duration;

use super::{MAX_OVERRIDE_DURATION, MAX_OVERRIDES};
use crate::matcher::glob::MAX_PARTS;

/// Why an override is rejected, or a lookup finds no key, and what to do about it.
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
        /// A similar name that exists.
        near: Option<String>,
    },
    /// The rule is off, or the whole policy is.
    #[display("{rule:?} is off")]
    Off {
        /// The rule.
        rule: String,
    },
    /// The key is incomplete.
    #[display("the key of {rule:?} is made of the fact {fact:?}: say {fact}=…")]
    LacksFact {
        /// The rule.
        rule: String,
        /// What its key needs.
        fact: String,
    },
    /// The target has a fact that isn't in the rule's key. Without it, the override would affect more requests than
    /// intended.
    #[display("the key of {rule:?} isn't made of the fact {fact:?}: leave it out")]
    NotOfKey {
        /// The rule.
        rule: String,
        /// What its key isn't made of.
        fact: String,
    },
    /// The policy doesn't name this fact, and requests don't commonly have it.
    #[display("no rule of the policy names the fact {fact:?}: {}", did_you_mean(near).unwrap_or(ANY_FACT.to_owned()))]
    UnknownFact {
        /// The fact.
        fact: String,
        /// A similar fact that exists.
        near: Option<String>,
    },
    /// The text is neither an address nor a network.
    #[display(
        "{fact}={value} is no address and no network: write {fact}=203.0.113.7 or {fact}=203.0.113.0/24"
    )]
    NotAnAddress {
        /// The fact, whose values are addresses.
        fact: String,
        /// The text.
        value: String,
    },
    /// No request has this value, such as a path without its `/`.
    #[display("{why}: {help}; {ANY_FACT}")]
    NeverMatches {
        /// Why.
        why: String,
        /// What to write instead.
        help: String,
    },
    /// The glob is invalid.
    #[display(
        "the glob {_0:?} can't be matched: * is anything but /, ** anything, with at most 16 stars and {MAX_PARTS} characters after the first"
    )]
    BadGlob(String),
    /// A descriptor has a network, but its values are compared as text.
    #[display(
        "values of a descriptor are compared as they are, and {key}={value} is a network: name one address, or block the network by a rule or in the policy"
    )]
    NetworkInDescriptor {
        /// The key of the entry.
        key: String,
        /// The network.
        value: String,
    },
    /// A lookup needs one key, and these values name several.
    #[display("{fact}={value} is many keys of {rule:?}: name one of them")]
    ManyKeys {
        /// The rule.
        rule: String,
        /// The fact.
        fact: String,
        /// The value that stands for several keys.
        value: String,
    },
    /// The policy has only limits for descriptors, which have no facts.
    #[display(
        "the policy has limits of trees only, which know no facts: say the domain and the entries of a descriptor"
    )]
    OnlyTrees,
    /// No rule has a key of these facts.
    #[display(
        "no rule has a key that is made of these facts: name a rule, or, of a tree, the domain and the descriptor"
    )]
    NoKey,
    /// The rule is a limit of a descriptor tree, whose keys are descriptors.
    #[display("{rule:?} is a limit of a tree: say the domain and the entries of a descriptor")]
    WantsDescriptor {
        /// The limit.
        rule: String,
    },
    /// No limit matches the descriptor, or another one than was named.
    #[display("{}", of_descriptor(rule.as_deref(), met.as_deref()))]
    OtherLimit {
        /// The limit that was named.
        rule: Option<String>,
        /// The limit that matches.
        met: Option<String>,
    },
    /// The target names no request.
    #[display("that would be for all requests: name a rule, or the facts of a key")]
    MissingTarget,
    /// The limit override names no rule.
    #[display("name the rule whose limit is to be another")]
    MissingRule,
    /// The limit override has no limits.
    #[display("say the limit: a rate, a quota, or how many concurrent requests")]
    NoReplacement,
    /// The rule has no limit of this kind.
    #[display("{rule:?} has no {sort}")]
    NoSuchLimit {
        /// The rule.
        rule: String,
        /// The kind of limit.
        sort: &'static str,
    },
    /// The rule has several rates, and none has the period.
    #[display("{rule:?} has several rates ({}): say one by the period of one of them", rates.join(", "))]
    WhichRate {
        /// The rule.
        rule: String,
        /// Its rates.
        rates: Vec<String>,
    },
    /// The rule counts in windows, and its counter can't be read with another period.
    #[display(
        "{rule:?} counts {own} in windows, which say nothing of another period: say {asked} by the period of {own}, or change the policy"
    )]
    OtherPeriod {
        /// The rule.
        rule: String,
        /// Its rate.
        own: String,
        /// The rate that should replace it.
        asked: String,
    },
    /// The limit is invalid.
    #[display("{rule:?} can't have that limit: {why}")]
    Limit {
        /// The rule.
        rule: String,
        /// Why.
        why: String,
    },
    /// The duration is zero or too long.
    #[display("{}", lasts(*_0))]
    InvalidDuration(Duration),
    /// The engine has too many overrides.
    #[display("there are {MAX_OVERRIDES} overrides, and no more are kept: remove some")]
    Full,
    /// The overrides use too many different sets of facts.
    #[display(
        "there are overrides by {_0} different sets of facts, and no more are kept: name a rule"
    )]
    TooManyFactSets(usize),
    /// There are too many overrides with globs and networks.
    #[display(
        "there are {_0} overrides by globs and networks, and no more are kept: put them into the policy's block list"
    )]
    TooManyPatterns(usize),
    /// The override has too much text.
    #[display("{what} has {bytes} bytes, more than the {most} that are kept")]
    TooLong {
        /// The part of the override that is too long.
        what: &'static str,
        /// Its length.
        bytes: usize,
        /// The longest that is kept.
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
        return "an override needs a duration: say how long it lasts".to_owned();
    }
    let [most, days] = [MAX_OVERRIDE_DURATION, asked].map(|time| time.as_secs().div_ceil(86_400));
    format!("an override lasts at most {most} days, not {days}: change the policy instead")
}

/// The message for a descriptor.
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
