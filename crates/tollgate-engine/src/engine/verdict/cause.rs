//! What decided about a request, by numbers of the rules in force.

use tollgate::Timestamp;

use crate::bounds::{Excess, TooMuch};
use crate::cause::Cause;
use crate::engine::rules::Rules;
use crate::facts::Facts;
use crate::limits::{Limit, RequestKey};

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
