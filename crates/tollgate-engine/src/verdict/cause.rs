//! What decided about a request.

use std::fmt;

use tollgate::Timestamp;

use crate::engine::TooMuch;
use crate::engine::bounds::Excess;
use crate::engine::rules::Rules;
use crate::facts::Facts;
use crate::limits::{Limit, RequestKey};

/// What decided about a request.
///
/// ```
/// use tollgate_engine::verdict::Cause;
///
/// assert_eq!(Cause::Rule("per-user").to_string(), "rule \"per-user\"");
/// assert_eq!(Cause::Block(0).to_string(), "block[0]");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Cause<'a> {
    /// No rule is for it.
    Nothing,
    /// It is exempt, by this entry of the list.
    Exempt(usize),
    /// It is blocked, by this entry of the list.
    Block(usize),
    /// It is blocked by an operator's [order](crate::orders) of this number, which names no rule.
    Ordered(u64),
    /// A rule, by name.
    Rule(&'a str),
    /// What a tier allows, by name.
    Tier(&'a str),
    /// A limit of a tree of descriptors, as `domain/key=value/key`.
    Descriptor(&'a str),
    /// A limit that a descriptor brought along.
    Asked,
    /// The store couldn't be asked about a rule or tier that nothing passes without, by name. The limit
    /// itself has refused nothing.
    StoreFailure(&'a str),
    /// It has more of something than [is taken](crate::Bounds). No limit was asked.
    TooMuch(TooMuch<'a>),
}

impl fmt::Display for Cause<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nothing => f.write_str("no rule"),
            Self::Exempt(entry) => write!(f, "exempt[{entry}]"),
            Self::Block(entry) => write!(f, "block[{entry}]"),
            Self::Ordered(id) => write!(f, "order {id}"),
            Self::Rule(name) => write!(f, "rule {name:?}"),
            Self::Tier(name) => write!(f, "tier {name:?}"),
            Self::Descriptor(path) => write!(f, "descriptor {path:?}"),
            Self::Asked => f.write_str("a limit that was asked for"),
            Self::StoreFailure(name) => write!(f, "no store to ask about {name:?}"),
            Self::TooMuch(what) => what.fmt(f),
        }
    }
}

/// The same by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum By {
    Nothing,
    Exempt(usize),
    Block(usize),
    /// A rule or a tier.
    Applied(u32),
    /// An operator's order about a rule or a tier.
    Blocked(u32),
    /// An operator's order about no rule, by its number.
    Ordered(u64),
    /// A rule whose key the request lacks.
    MissingKey(u32),
    /// A rule or a tier that is closed while there is no store.
    StoreFailure(u32),
    Excess(Excess),
}

impl By {
    /// The number of the rule or tier.
    pub(crate) const fn rule(self) -> Option<u32> {
        match self {
            Self::Applied(number)
            | Self::Blocked(number)
            | Self::MissingKey(number)
            | Self::StoreFailure(number) => Some(number),
            _ => None,
        }
    }

    /// The limit of this number, of what decided at a time.
    pub(crate) fn limit(self, rules: &Rules, id: u64, at: Option<Timestamp>) -> Option<&Limit> {
        let (Self::Applied(number) | Self::StoreFailure(number)) = self else {
            return None;
        };
        let applied = &rules.applied[number as usize];
        let mut limits = applied.limits.as_slice().iter().chain(applied.gates_at(at));
        let found = limits.find(|limit| limit.id == id);
        found.or_else(|| Some(&applied.adapting()?.limit).filter(|limit| limit.id == id))
    }

    /// The key of this fingerprint, of a request with these facts; none if no rule decided.
    pub(crate) fn key<'a>(
        self,
        rules: &'a Rules,
        facts: &'a Facts<'a>,
        fingerprint: [u64; 2],
    ) -> Option<RequestKey<'a>> {
        let plan = &rules.applied[self.rule()? as usize].key;
        Some(RequestKey::new(plan, facts, fingerprint))
    }

    pub(crate) fn cause(self, rules: &Rules) -> Cause<'_> {
        match self {
            Self::Nothing => Cause::Nothing,
            Self::Exempt(entry) => Cause::Exempt(entry),
            Self::Block(entry) => Cause::Block(entry),
            Self::StoreFailure(number) => Cause::StoreFailure(&rules.applied[number as usize].name),
            Self::Excess(Excess::Checks { found, most }) => {
                Cause::TooMuch(TooMuch::Checks { found, most })
            }
            Self::Excess(Excess::Fact { slot, bytes, most }) => Cause::TooMuch(TooMuch::Fact {
                name: rules.matcher.slots().name(slot),
                bytes,
                most,
            }),
            Self::Ordered(id) => Cause::Ordered(id),
            Self::Applied(number) | Self::Blocked(number) | Self::MissingKey(number) => {
                let applied = &rules.applied[number as usize];
                if applied.is_tier {
                    Cause::Tier(&applied.name)
                } else {
                    Cause::Rule(&applied.name)
                }
            }
        }
    }
}
