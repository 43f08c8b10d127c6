//! What is said about a request, step by step: by what settles it, by rules in force, by those in shadow.

use tollgate::{Decision, Outcome};

use super::gather::{Gathered, Keyless, Met, Ordered, Run};
use super::rules::Rules;
use super::warm::is_gate;
use crate::limits::Answer;
use crate::policy::Mode;
use crate::verdict::{BLOCKED, By, MetLimit, Said, Shadowed};

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
            return match &gathered.keyless {
                Some(keyless) => self.is_keyless(keyless),
                None => false,
            };
        };
        self.by = by;
        if let By::Block(_) | By::Excess(_) = by {
            self.allowed = false;
            self.decision = BLOCKED;
        }
        true
    }

    /// Whether a rule denies it because it lacks a key.
    #[cold]
    fn is_keyless(&mut self, keyless: &Keyless) -> bool {
        let Some(met) = keyless.denied else {
            let shadows = keyless.shadows.iter().map(|met| Shadowed {
                fingerprint: met.fingerprint,
                ..Shadowed::blocked(By::MissingKey(met.number))
            });
            shadows.for_each(|shadowed| self.shadows.push(shadowed));
            return false;
        };
        (self.allowed, self.by) = (false, By::MissingKey(met.number));
        (self.decision, self.fingerprint) = (BLOCKED, met.fingerprint);
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
        self.set = blocked.set;
        self.blocked_by = Some(blocked.order.id);
        true
    }

    /// What the rules in force say.
    #[inline]
    pub(super) fn hear(&mut self, gathered: &Gathered<'_>, answer: Answer) {
        self.allowed = answer.allowed;
        self.decision = answer.decision;
        let is_unavailable = answer.is_unavailable();
        self.permits.own = answer.pass;
        self.unavailable = answer.unavailable;
        self.at = gathered.now;
        let group = &gathered.enforced;
        let decider = answer.decider.and_then(|decider| {
            let number = *group.askers.as_slice().get(decider)?;
            let check = group.checks.as_slice().get(decider)?;
            self.limit = check.limit.id;
            Some(Met {
                number,
                fingerprint: check.key.fingerprint(),
                is_keyless: false,
                set: gathered.set_of(&check.key),
                mode: Mode::Enforce,
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
            self.by = if is_unavailable {
                By::StoreFailure(met.number)
            } else {
                By::Applied(met.number)
            };
            (self.fingerprint, self.set) = (met.fingerprint, met.set);
            if let Some(ordered) = &gathered.ordered {
                self.changed = ordered.changed(met.number).cloned();
            }
        }
    }

    /// Keeps what each limit in force said, the most urgent first, if there are several.
    pub(super) fn list_limits(&mut self, gathered: &Gathered<'_>, each: &[Decision]) {
        let group = &gathered.enforced;
        let (checks, askers) = (group.checks.as_slice(), group.askers.as_slice());
        // A request that never passes is told of that limit alone: a store isn't asked about the others.
        let never = self.decision.outcome == Outcome::Never;
        if never || each.len() < 2 || each.len() != checks.len() {
            return;
        }
        let limits = checks.iter().zip(askers).zip(each);
        // One that stands beside a rate only until the rule is warm is told of if it denies.
        let limits =
            limits.filter(|((check, _), said)| !is_gate(check.limit) || !said.is_allowed());
        let mut limits: Vec<_> = limits
            .map(|((check, asker), decision)| {
                let mut decision = *decision;
                if self.allowed {
                    // Others may have come between the charge and the look.
                    decision.outcome = Outcome::Allowed;
                }
                MetLimit {
                    by: By::Applied(*asker),
                    kind: check.limit.kind().clone(),
                    decision,
                    cost: check.cost.max(1),
                }
            })
            .collect();
        // What denied may have come back by now, or is no limit of these: then it is told alone.
        if !self.allowed && limits.iter().all(|met| met.decision.is_allowed()) {
            return;
        }
        limits.sort_by_key(MetLimit::urgency);
        self.limits = Some(limits.into());
    }

    /// What a rule in shadow says.
    pub(super) fn hear_shadow(
        &mut self,
        rules: &Rules,
        gathered: &Gathered<'_>,
        run: Run<'_, '_>,
        answer: Answer,
    ) {
        let Run { rule, checks } = run;
        if !answer.allowed {
            let decider = answer.decider.and_then(|decider| checks.get(decider));
            let decider = decider.or(checks.first());
            self.shadows.push(Shadowed {
                by: By::Applied(rule),
                fingerprint: decider.map_or([0; 2], |check| check.key.fingerprint()),
                set: decider.map_or(0, |check| gathered.set_of(&check.key)),
                limit: decider.map_or(0, |check| check.limit.id),
                decision: answer.decision,
            });
        } else if rules.applied[rule as usize].holds {
            self.permits.shadows.push(answer.pass);
        }
    }
}
