//! Why a policy is rejected.

use tollgate::LimitError;

use crate::matcher::PatternError;

/// Why a policy is rejected. The policy in force stays.
///
/// ```
/// use tollgate::clock::Manual;
/// use tollgate_engine::backend::Memory;
/// use tollgate_engine::{Engine, Policy, PolicyError};
///
/// let memory = Memory::builder().clock(Manual::new()).wall(Manual::new()).build();
/// let policy = Policy { default_tier: Some("free".to_owned()), ..Policy::default() };
/// let error = Engine::new(policy, memory).expect_err("no such tier");
/// assert_eq!(error, PolicyError::UnknownTier { tier: "free".to_owned() });
/// assert_eq!(error.to_string(), "there is no tier \"free\"; add it to tiers, or name one that is there");
/// ```
#[derive(
    Clone, Debug, PartialEq, Eq, derive_more::Display, derive_more::Error, derive_more::From,
)]
#[non_exhaustive]
pub enum PolicyError {
    /// A condition is invalid.
    #[from]
    Pattern(#[error(not(source))] PatternError),
    /// An algorithm can't represent a rate.
    #[display("{rule:?}: {error}")]
    Rate {
        /// The rule or tier.
        rule: String,
        /// Why.
        #[error(not(source))]
        error: LimitError,
    },
    /// The backend can't keep a limit.
    #[display("{rule:?}: {why}")]
    Backend {
        /// The rule, tier or descriptor.
        rule: String,
        /// Why, and what to do instead.
        why: String,
    },
    /// The overload settings of a rule contradict each other.
    #[display("{rule:?}: {why}")]
    Overload {
        /// The rule.
        rule: String,
        /// Why.
        why: String,
    },
    /// A rule replaces one that doesn't exist.
    #[display(
        "{rule:?} replaces {replaces:?}, and no rule has that name; name a rule of this policy, or leave it out"
    )]
    UnknownRule {
        /// The rule.
        rule: String,
        /// The rule that it replaces.
        replaces: String,
    },
    /// The tier of a tenant, or the default tier, doesn't exist.
    #[display("there is no tier {tier:?}; add it to tiers, or name one that is there")]
    UnknownTier {
        /// The tier that is named.
        tier: String,
    },
    /// Two rules have the same name.
    #[display(
        "two rules are called {name:?}; names tell counters apart: rename one, or give both the same \"shared\" name if they \
         are to count together"
    )]
    SameName {
        /// The name.
        name: String,
    },
    /// A rule and a tier have the same name.
    #[display(
        "a rule and a tier are both called {name:?}; answers and metrics tell limits apart by name: rename one of them"
    )]
    RuleAndTier {
        /// The name.
        name: String,
    },
}
