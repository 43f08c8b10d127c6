//! What decided about a request, by numbers of the rules in force.

use tollgate::{Decision, DenyReason, Outcome, Timestamp};

use super::{BLOCKED, Said, Shadowed};
use crate::bounds::{Excess, TooMuch};
use crate::cause::Cause;
use crate::engine::rules::Rules;
use crate::facts::Facts;
use crate::limits::{Limit, LimitKind, RequestKey};

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

/// Why a limit denied a request with this decision.
pub(crate) fn reason_of(kind: Option<&LimitKind>, decision: &Decision) -> DenyReason {
    match kind {
        _ if decision.outcome == Outcome::Never => DenyReason::TooLarge,
        Some(LimitKind::Quota(_)) => DenyReason::Quota,
        Some(LimitKind::Concurrency(_)) => DenyReason::Concurrency,
        _ => DenyReason::Rate,
    }
}

impl Said {
    /// Why it was refused, if it was.
    pub(crate) fn reason(&self, rules: &Rules) -> DenyReason {
        if self.is_queue_full {
            return DenyReason::QueueFull;
        }
        self.by.reason(rules, self.limit, self.at, &self.decision)
    }
}

impl By {
    /// Why this refused, by a limit at a time.
    fn reason(
        self,
        rules: &Rules,
        limit: u64,
        at: Option<Timestamp>,
        decision: &Decision,
    ) -> DenyReason {
        match self {
            Self::StoreFailure(_) => DenyReason::Store,
            Self::MissingKey(_) => DenyReason::MissingKey,
            Self::Block(_) | Self::Blocked(_) | Self::Ordered(_) => DenyReason::Blocked,
            Self::Excess(_) => DenyReason::TooLarge,
            Self::Applied(number) if rules.applied[number as usize].sheds(limit) => {
                DenyReason::Shed
            }
            Self::Nothing | Self::Exempt(_) | Self::Applied(_) => {
                let limit = self.limit(rules, limit, at);
                reason_of(limit.map(Limit::kind), decision)
            }
        }
    }
}

impl Shadowed {
    /// What would be refused if the policy were enforced, without a limit.
    pub(crate) const fn blocked(by: By) -> Self {
        Self {
            by,
            fingerprint: [0; 2],
            set: 0,
            limit: 0,
            decision: BLOCKED,
        }
    }

    /// Why it would be refused, of a request that was decided at this time.
    pub(crate) fn reason(&self, rules: &Rules, at: Option<Timestamp>) -> DenyReason {
        self.by.reason(rules, self.limit, at, &self.decision)
    }
}
