//! What made a decision, by the numbers of the rules in force.

use tollgate::{Decision, DenyReason, Outcome, Timestamp};

use super::{DecisionBasis, RuleDecision, percent_of};
use crate::bounds::{BoundExceeded, ExceededBound};
use crate::cause::Cause;
use crate::engine::rules::CompiledPolicy;
use crate::facts::Facts;
use crate::limits::{Limit, LimitKind, RequestKey};

/// What made a decision: a [`Cause`] by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DecidedBy {
    Nothing,
    Exempt(usize),
    Block(usize),
    /// A rule or a tier.
    Applied(u32),
    /// An override of a rule or a tier.
    Blocked(u32),
    /// An override without a rule, by its number.
    Ordered(u64),
    /// A rule whose key the request lacks.
    MissingKey(u32),
    /// A rule or a tier that is closed while its store is unavailable.
    StoreFailure(u32),
    Excess(ExceededBound),
}

impl DecidedBy {
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

    /// The percentage of keys for which it is enforced: 0 in shadow mode.
    pub(crate) fn enforced_percent(self, rules: &CompiledPolicy) -> u8 {
        match self.rule() {
            Some(number) => rules.rules[number as usize].enforced_percent(),
            None => percent_of(rules.mode),
        }
    }

    pub(crate) fn cause(self, rules: &CompiledPolicy) -> Cause<'_> {
        match self {
            Self::Nothing => Cause::Nothing,
            Self::Exempt(entry) => Cause::Exempt(entry),
            Self::Block(entry) => Cause::Block(entry),
            Self::StoreFailure(number) => Cause::StoreFailure(&rules.rules[number as usize].name),
            Self::Excess(ExceededBound::Checks { found, most }) => {
                Cause::TooMuch(BoundExceeded::Checks { found, most })
            }
            Self::Excess(ExceededBound::Fact { slot, bytes, most }) => {
                Cause::TooMuch(BoundExceeded::Fact {
                    name: rules.matcher.slots.name(slot),
                    bytes,
                    most,
                })
            }
            Self::Ordered(id) => Cause::Override(id),
            Self::Applied(number) | Self::Blocked(number) | Self::MissingKey(number) => {
                let applied = &rules.rules[number as usize];
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
pub(crate) fn deny_reason(kind: Option<&LimitKind>, decision: &Decision) -> DenyReason {
    match kind {
        _ if decision.outcome == Outcome::Never => DenyReason::TooLarge,
        Some(LimitKind::Quota(_)) => DenyReason::Quota,
        Some(LimitKind::Concurrency(_)) => DenyReason::Concurrency,
        _ => DenyReason::Rate,
    }
}

impl DecisionBasis {
    /// Why the request was denied, if it was.
    pub(crate) fn reason(&self, rules: &CompiledPolicy) -> DenyReason {
        if self.is_queue_full {
            return DenyReason::QueueFull;
        }
        self.rule_decision.reason(rules, self.decided_at)
    }
}

impl RuleDecision {
    /// A decision without a key and a limit.
    #[inline]
    pub(crate) const fn new(by: DecidedBy, decision: Decision) -> Self {
        Self {
            by,
            fingerprint: [0; 2],
            facts_set: 0,
            limit: 0,
            decision,
        }
    }

    /// The limit that decided, at this time.
    pub(crate) fn limit<'r>(
        &self,
        rules: &'r CompiledPolicy,
        at: Option<Timestamp>,
    ) -> Option<&'r Limit> {
        let (DecidedBy::Applied(number) | DecidedBy::StoreFailure(number)) = self.by else {
            return None;
        };
        let applied = &rules.rules[number as usize];
        let mut limits = applied.all_limits().chain(applied.warm_up_limits_at(at));
        limits.find(|limit| limit.id == self.limit)
    }

    /// The key that was charged, of a request with these facts. `None` if no rule decided.
    pub(crate) fn key<'a>(
        &self,
        rules: &'a CompiledPolicy,
        facts: &'a Facts<'a>,
    ) -> Option<RequestKey<'a>> {
        let plan = &rules.rules[self.by.rule()? as usize].key;
        let facts = facts.facts_set(self.facts_set);
        Some(RequestKey::new(plan, facts, self.fingerprint))
    }

    /// Why a request was denied at this time.
    pub(crate) fn reason(&self, rules: &CompiledPolicy, at: Option<Timestamp>) -> DenyReason {
        match self.by {
            DecidedBy::StoreFailure(_) => DenyReason::Store,
            DecidedBy::MissingKey(_) => DenyReason::MissingKey,
            DecidedBy::Block(_) | DecidedBy::Blocked(_) | DecidedBy::Ordered(_) => {
                DenyReason::Blocked
            }
            DecidedBy::Excess(_) => DenyReason::TooLarge,
            DecidedBy::Applied(number) if rules.rules[number as usize].sheds(self.limit) => {
                DenyReason::Shed
            }
            DecidedBy::Nothing | DecidedBy::Exempt(_) | DecidedBy::Applied(_) => {
                deny_reason(self.limit(rules, at).map(Limit::kind), &self.decision)
            }
        }
    }
}
