//! Why a request was refused, in one word.

use std::fmt;

use tollgate::{Decision, Outcome, Timestamp};

use super::{BLOCKED, By, Said, Shadowed};
use crate::engine::rules::Rules;
use crate::limits::{Limit, LimitKind};

/// Why a request was refused, in a word that metrics and logs use.
///
/// ```
/// use tollgate_engine::verdict::Reason;
///
/// let names: Vec<_> = Reason::ALL.iter().map(|reason| reason.name()).collect();
/// assert_eq!(names, ["rate", "quota", "concurrency", "too_large", "blocked", "store", "shed"]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reason {
    /// Too many in a short time.
    Rate,
    /// The total of a longer period is used up.
    Quota,
    /// Too many at once.
    Concurrency,
    /// It costs more than the limit can ever hold, or brings more than is taken.
    TooLarge,
    /// It is on a list of what isn't served, or an operator has blocked it.
    Blocked,
    /// The store couldn't be asked, and the rule says that nothing passes then.
    Store,
    /// Too much is going on: a limit that adapts is reached, or the part of one that requests as critical as this may use.
    Shed,
}

impl Reason {
    /// All that there are.
    pub const ALL: [Self; 7] = [
        Self::Rate,
        Self::Quota,
        Self::Concurrency,
        Self::TooLarge,
        Self::Blocked,
        Self::Store,
        Self::Shed,
    ];

    /// The word.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Rate => "rate",
            Self::Quota => "quota",
            Self::Concurrency => "concurrency",
            Self::TooLarge => "too_large",
            Self::Blocked => "blocked",
            Self::Store => "store",
            Self::Shed => "shed",
        }
    }

    /// Of a limit that refused with this.
    pub(crate) fn of(kind: Option<&LimitKind>, decision: &Decision) -> Self {
        match kind {
            _ if decision.outcome == Outcome::Never => Self::TooLarge,
            Some(LimitKind::Quota(_)) => Self::Quota,
            Some(LimitKind::Concurrency(_)) => Self::Concurrency,
            _ => Self::Rate,
        }
    }
}

impl Said {
    /// Why it was refused, if it was.
    pub(crate) fn reason(&self, rules: &Rules) -> Reason {
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
    ) -> Reason {
        match self {
            Self::StoreFailure(_) => Reason::Store,
            Self::Block(_) | Self::Blocked(_) | Self::Ordered(_) => Reason::Blocked,
            Self::Excess(_) => Reason::TooLarge,
            Self::Applied(number) if rules.applied[number as usize].sheds(limit) => Reason::Shed,
            Self::Nothing | Self::Exempt(_) | Self::Applied(_) => {
                let limit = self.limit(rules, limit, at);
                Reason::of(limit.map(Limit::kind), decision)
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
            limit: 0,
            decision: BLOCKED,
        }
    }

    /// Why it would be refused, of a request that was decided at this time.
    pub(crate) fn reason(&self, rules: &Rules, at: Option<Timestamp>) -> Reason {
        self.by.reason(rules, (self.limit, at), &self.decision)
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
