//! Warnings about a policy in force: limits that exist and apply to nothing.

use std::fmt;

use tollgate::OnMissingKey;

use crate::suggestions::or_list;

/// The most names that a message lists.
const MAX_NAMES: usize = 12;

/// A limit of the policy in force that applied to none of its first hundred requests, or a tier that doesn't exist.
///
/// [`Observer::on_warning`](crate::observer::Observer::on_warning) gets each warning once, and
/// [`Engine::warnings`](crate::Engine::warnings) lists those of the policy in force.
///
/// ```
/// # use tollgate::clock::Manual;
/// # use tollgate_engine::backend::Memory;
/// # use tollgate_engine::document::Format;
/// # use tollgate_engine::{Engine, Facts, Policy};
/// # let memory = Memory::builder().clock(Manual::new()).wall(Manual::new()).build();
/// let policy = Policy::from_text("limits: [{name: per-user, key: user, rate: 1/h}]", Format::Yaml)?.policy;
/// let engine = Engine::new(policy, memory)?;
/// for _ in 0..100 {
///     assert!(engine.decide(&Facts::new().with("usr", "ada")).allowed().is_some());
/// }
/// assert_eq!(
///     engine.warnings()[0].to_string(),
///     "the rule \"per-user\" found its key in none of its first 100 requests, and let all of them pass: it counts by \
///      user, and the last request had usr; did you mean user where you say usr? Send that fact, or say on_missing_key: \
///      pass, deny or one_counter"
/// );
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, derive_more::Display)]
#[non_exhaustive]
pub enum Warning {
    /// A rule matched a hundred requests, and none of them had its key.
    #[display(
        "the rule {rule:?} found its key in none of its first 100 requests, and {}: it counts by {}, \
         and the last request had {had}{} Send that fact, or say on_missing_key: pass, deny or one_counter",
        missing_key_effect(*on_missing_key), keys(wants), sentence_end(had)
    )]
    KeyNeverFound {
        /// The rule.
        rule: String,
        /// The facts of each of its keys, in order.
        wants: Vec<Vec<String>>,
        /// What happens to a request without a key.
        on_missing_key: OnMissingKey,
        /// The facts of the last request.
        had: SeenFacts,
    },
    /// A rule takes its cost from a fact that its first hundred requests lacked, and charged its default.
    #[display(
        "the rule {rule:?} found its cost in none of its first 100 requests, and charged {default} for each: it reads \
         {wants} as a whole number, and the last request had {had}{} Send that fact, or say the cost as a number",
        sentence_end(had)
    )]
    CostNeverFound {
        /// The rule or tier.
        rule: String,
        /// The fact that should state the cost, as a whole number.
        wants: String,
        /// The charge for each request.
        default: u64,
        /// The facts of the last request.
        had: SeenFacts,
    },
    /// None of a hundred requests had a tenant, so no tier applied to any.
    #[display(
        "none of the first 100 requests had a tenant, so no tier applied to them: the last request had {had}{} \
         Send the fact tenant",
        sentence_end(had)
    )]
    TenantNeverFound {
        /// The facts of the last request.
        had: SeenFacts,
    },
    /// None of a hundred tenants was in a tier of the policy.
    #[display(
        "none of the first 100 tenants was in a tier of the policy: {}",
        no_tier(tier.as_ref(), known, *has_default)
    )]
    TierNeverFound {
        /// The fact that should carry the tier, and its value in the last request. `None` if the request lacks it.
        tier: Option<(String, String)>,
        /// The tiers of the policy.
        known: Vec<String>,
        /// Whether the default tier applied to these tenants.
        has_default: bool,
    },
    /// No rule matched any of the first hundred requests.
    #[display("{}", no_rule_met(*only_trees, had))]
    NoRuleMet {
        /// Whether the policy has no rules at all, only limits for descriptors.
        only_trees: bool,
        /// The facts of the last request.
        had: SeenFacts,
    },
    /// No limit matched any descriptor of the first hundred requests of descriptors.
    #[display(
        "no limit was for any descriptor of the first 100 requests, so nothing limits them: the last request \
         was of the domain {domain:?} with entries {}, and the policy has the domains {}",
        join_names(had),
        join_names(known)
    )]
    NoDescriptorMet {
        /// The domain of the last request.
        domain: String,
        /// The domains of the policy.
        known: Vec<String>,
        /// The keys of the last request's entries.
        had: Vec<String>,
    },
}

/// The names of a request's facts, and which of them resemble a name that the policy reads.
///
/// ```
/// use tollgate_engine::warning::SeenFacts;
///
/// let had = SeenFacts::default();
/// assert_eq!(had.to_string(), "no facts");
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SeenFacts {
    /// The names.
    pub names: Vec<String>,
    /// Names that nothing in the policy reads, each with the name that was likely meant.
    pub near: Vec<(String, String)>,
}

impl Warning {
    /// The rule that the warning is about, if any.
    ///
    /// ```
    /// use tollgate_engine::warning::{SeenFacts, Warning};
    ///
    /// # fn clock_time(warning: &Warning) -> Option<&str> {
    /// warning.rule()
    /// # }
    /// ```
    pub fn rule(&self) -> Option<&str> {
        match self {
            Self::KeyNeverFound { rule, .. } | Self::CostNeverFound { rule, .. } => Some(rule),
            _ => None,
        }
    }
}

/// Joins names to a list, and cuts it after [`MAX_NAMES`].
fn join_names(names: &[String]) -> String {
    let shown: Vec<&str> = names.iter().take(MAX_NAMES).map(String::as_str).collect();
    match names.len().saturating_sub(MAX_NAMES) {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}

impl fmt::Display for SeenFacts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.names.is_empty() {
            return f.write_str("no facts");
        }
        f.write_str(&join_names(&self.names))?;
        for (name, near) in self.near.iter().take(MAX_NAMES) {
            write!(f, "; did you mean {near} where you say {name}?")?;
        }
        Ok(())
    }
}

/// Ends a sentence about facts: a suggestion already ends with a question mark.
fn sentence_end(had: &SeenFacts) -> &'static str {
    if had.near.is_empty() { "." } else { "" }
}

fn keys(wants: &[Vec<String>]) -> String {
    let keys: Vec<_> = wants.iter().map(|facts| facts.join(" and ")).collect();
    or_list(&keys.iter().map(String::as_str).collect::<Vec<_>>())
}

const fn missing_key_effect(on_missing_key: OnMissingKey) -> &'static str {
    match on_missing_key {
        OnMissingKey::Pass => "let all of them pass",
        OnMissingKey::Deny => "denied all of them",
        OnMissingKey::OneCounter => "counted all of them together",
    }
}

fn no_tier(tier: Option<&(String, String)>, known: &[String], has_default: bool) -> String {
    let known = join_names(known);
    let why = match tier {
        Some((fact, value)) => {
            format!("the last request had {fact}={value:?}, and the tiers are {known}")
        }
        None => "they aren't listed under tenants".to_owned(),
    };
    let became = if has_default {
        "They are in the default tier"
    } else {
        "Nothing limits them: add the tier, or a default_tier"
    };
    format!("{why}. {became}")
}

fn no_rule_met(only_trees: bool, had: &SeenFacts) -> String {
    let (why, help) = if only_trees {
        (
            "the policy has limits for descriptors alone, and the first 100 requests had facts",
            "tollgate convert makes rules of such a policy",
        )
    } else {
        (
            "no rule was for any of the first 100 requests",
            "tollgate explain shows what each rule wants",
        )
    };
    let end = sentence_end(had);
    format!("{why}, so nothing limits them: the last request had {had}{end} {help}")
}
