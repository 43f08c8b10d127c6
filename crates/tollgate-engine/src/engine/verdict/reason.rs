//! Why a request was denied: which reason each cause and each limit stands for.

use tollgate::{Decision, DenyReason, Outcome, Timestamp};

use super::{BLOCKED, By, Said, Shadowed};
use crate::engine::rules::Rules;
use crate::limits::{Limit, LimitKind};

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
        self.by.reason(rules, (self.limit, self.at), &self.decision)
    }
}

impl By {
    /// Why this refused, by a limit at a time.
    fn reason(
        self,
        rules: &Rules,
        (limit, at): (u64, Option<Timestamp>),
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
        self.by.reason(rules, (self.limit, at), &self.decision)
    }
}
