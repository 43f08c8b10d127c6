//! What is said about a request, step by step: by what settles it, by rules in force, by those in shadow.

use super::gather::{Gathered, Met, Ordered};
use super::rules::Rules;
use crate::limits::{Answer, Check};
use crate::policy::OnStoreFailure;
use crate::verdict::{BLOCKED, By, Said, Shadowed};

impl Said {
    /// Whether nothing has to be asked.
    #[inline]
    pub(super) fn settle(&mut self, gathered: &Gathered<'_>) -> bool {
        if let Some(entry) = gathered.shadow_block {
            self.shadows.push(Shadowed::blocked(By::Block(entry)));
        }
        if let Some(excess) = gathered.shadow_excess {
            self.shadows.push(Shadowed::blocked(By::Excess(excess)));
        }
        if let Some(ordered) = &gathered.ordered
            && self.is_blocked(ordered)
        {
            return true;
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

    /// Whether an order blocks it.
    #[cold]
    fn is_blocked(&mut self, ordered: &Ordered<'_>) -> bool {
        for blocked in &ordered.shadow_blocks {
            self.shadows.push(Shadowed::from(*blocked));
        }
        let Some(blocked) = ordered.block else {
            return false;
        };
        (self.allowed, self.by) = (false, blocked.by);
        (self.decision, self.fingerprint) = (blocked.decision, blocked.fingerprint);
        self.blocked_by = Some(blocked.order.id);
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
        let gate = || {
            let gate = gathered.gate(answer.decider?)?;
            Some((gate.met, gate.adapting.limit.id))
        };
        let decider = decider.or_else(|| {
            let (met, limit) = gate()?;
            self.limit = limit;
            Some(met)
        });
        if let Some(met) = decider.or(gathered.unasked) {
            self.by = match (answer.allowed, answer.fallback) {
                (false, Some(OnStoreFailure::Closed)) => By::StoreFailure(met.number),
                _ => By::Applied(met.number),
            };
            self.fingerprint = met.fingerprint;
            if let Some(ordered) = &gathered.ordered {
                self.changed = ordered.changed(met.number).cloned();
            }
        }
    }

    /// What a rule in shadow says.
    pub(super) fn overhear(
        &mut self,
        rules: &Rules,
        (number, checks): (u32, &[Check<'_>]),
        answer: Answer,
    ) {
        if !answer.allowed {
            let decider = answer.decider.and_then(|decider| checks.get(decider));
            let decider = decider.or(checks.first());
            self.shadows.push(Shadowed {
                by: By::Applied(number),
                fingerprint: decider.map_or([0; 2], |check| check.key.fingerprint()),
                limit: decider.map_or(0, |check| check.limit.id),
                decision: answer.decision,
            });
        } else if rules.applied[number as usize].holds {
            self.permits.shadows.push(answer.pass);
        }
    }
}
