//! What is said about a request, step by step: by what settles it, by rules in force, by those in shadow.

use super::gather::{Gathered, Met};
use super::rules::Rules;
use crate::limits::Answer;
use crate::policy::OnStoreFailure;
use crate::verdict::{BLOCKED, By, Said, Shadowed};

impl Said {
    /// Whether nothing has to be asked.
    #[inline]
    pub(super) fn settle(&mut self, gathered: &Gathered<'_>) -> bool {
        if let Some(entry) = gathered.shadow_block {
            self.shadows.push(Shadowed {
                by: By::Block(entry),
                decision: BLOCKED,
            });
        }
        if let Some(excess) = gathered.shadow_excess {
            self.shadows.push(Shadowed {
                by: By::Excess(excess),
                decision: BLOCKED,
            });
        }
        let Some(by) = gathered.settled else {
            return false;
        };
        self.by = by;
        if let By::Block(_) | By::Excess(_) = by {
            self.allowed = false;
            self.decision = BLOCKED;
        }
        true
    }

    /// What the rules in force say.
    #[inline]
    pub(super) fn hear(&mut self, gathered: &Gathered<'_>, answer: Answer) {
        self.allowed = answer.allowed;
        self.decision = answer.decision;
        self.permits.own = answer.pass;
        self.fallback = answer.fallback;
        self.at = gathered.now;
        let group = &gathered.enforced;
        let decider = answer.decider.and_then(|decider| {
            let number = *group.askers.as_slice().get(decider)?;
            let check = group.checks.as_slice().get(decider)?;
            self.limit = check.limit.id;
            Some(Met {
                number,
                fingerprint: check.key.fingerprint(),
            })
        });
        if let Some(met) = decider.or(gathered.unasked) {
            self.by = match (answer.allowed, answer.fallback) {
                (false, Some(OnStoreFailure::Closed)) => By::StoreFailure(met.number),
                _ => By::Applied(met.number),
            };
            self.fingerprint = met.fingerprint;
        }
    }

    /// What a rule in shadow says.
    pub(super) fn overhear(&mut self, rules: &Rules, number: u32, answer: Answer) {
        if !answer.allowed {
            self.shadows.push(Shadowed {
                by: By::Applied(number),
                decision: answer.decision,
            });
        } else if rules.applied[number as usize].holds {
            self.permits.shadows.push(answer.pass);
        }
    }
}
