//! Builds the decision about a request step by step: early decisions, then enforced rules, then those in shadow mode.

use tollgate::{Decision, Outcome};

use super::request_match::{MissingKeyDenials, RequestMatch, RequestOverrides, ShadowQuery};
use super::warm_up::is_gate;
use crate::limits::Answer;
use crate::verdict::{BLOCKED, DecidedBy, DecisionBasis, ListedLimit, Permits, RuleDecision};

impl DecisionBasis {
    /// Whether the decision needs no check.
    #[inline]
    pub(super) fn is_decided_early(&mut self, gathered: &RequestMatch<'_>) -> bool {
        if let Some(entry) = gathered.shadow_block {
            self.shadows
                .push(RuleDecision::new(DecidedBy::Block(entry), BLOCKED));
        }
        if let Some(excess) = gathered.shadow_excess {
            self.shadows
                .push(RuleDecision::new(DecidedBy::Excess(excess), BLOCKED));
        }
        if let Some(ordered) = &gathered.overrides
            && self.is_blocked(ordered)
        {
            return true;
        }
        let Some(by) = gathered.early_decision else {
            return match &gathered.missing_key_denials {
                Some(keyless) => self.is_denied_for_missing_key(keyless),
                None => false,
            };
        };
        self.rule_decision.by = by;
        if let DecidedBy::Block(_) | DecidedBy::Excess(_) = by {
            self.is_allowed = false;
            self.rule_decision.decision = BLOCKED;
        }
        true
    }

    /// Whether a rule denies the request because it lacks a key.
    #[cold]
    fn is_denied_for_missing_key(&mut self, keyless: &MissingKeyDenials) -> bool {
        let Some(denied) = keyless.denied else {
            let shadows = keyless.shadows.iter();
            shadows.for_each(|shadowed| self.shadows.push(*shadowed));
            return false;
        };
        (self.is_allowed, self.rule_decision) = (false, denied);
        true
    }

    /// Whether an override blocks the request.
    #[cold]
    fn is_blocked(&mut self, ordered: &RequestOverrides<'_>) -> bool {
        let shadows = ordered.shadow_blocks.iter();
        shadows.for_each(|(_, shadowed)| self.shadows.push(*shadowed));
        let Some((order, denied)) = ordered.block else {
            return false;
        };
        (self.is_allowed, self.rule_decision) = (false, denied);
        self.block_id = Some(order.id);
        true
    }

    /// Applies the answer of the enforced rules.
    #[inline]
    pub(super) fn apply_answer(&mut self, gathered: &RequestMatch<'_>, answer: Answer) {
        self.is_allowed = answer.allowed;
        self.rule_decision.decision = answer.decision;
        let is_unavailable = answer.is_unavailable();
        self.permits = Permits(answer.pass);
        self.unavailable = answer.unavailable;
        self.decided_at = gathered.now;
        let group = &gathered.enforced;
        let check = answer.decider.and_then(|decider| {
            let number = *group.askers.as_slice().get(decider)?;
            let check = group.checks.as_slice().get(decider)?;
            let set = gathered.facts_set_of(&check.key);
            Some((number, check.key.fingerprint(), set, check.limit.id))
        });
        let gate = || {
            let gate = gathered.gate(answer.decider?)?;
            let (met, limit) = (gate.rule_match, gate.limiter.limit.id);
            Some((met.number, met.fingerprint, met.facts_set, limit))
        };
        let unasked = || {
            let met = gathered.first_rule?;
            Some((met.number, met.fingerprint, met.facts_set, 0))
        };
        if let Some((number, fingerprint, set, limit)) = check.or_else(gate).or_else(unasked) {
            self.rule_decision = RuleDecision {
                by: if is_unavailable {
                    DecidedBy::StoreFailure(number)
                } else {
                    DecidedBy::Applied(number)
                },
                fingerprint,
                facts_set: set,
                limit,
                decision: answer.decision,
            };
            if let Some(ordered) = &gathered.overrides {
                self.limit_override = ordered.limit_override(number, fingerprint).cloned();
            }
        }
    }

    /// Lists the decision of each enforced limit, the most urgent first, if there are several.
    pub(super) fn list_limits(&mut self, gathered: &RequestMatch<'_>, each: &[Decision]) {
        let group = &gathered.enforced;
        let (checks, askers) = (group.checks.as_slice(), group.askers.as_slice());
        // A request that can never be allowed lists nothing but that limit: the store doesn't check the others.
        let never = self.rule_decision.decision.outcome == Outcome::Never;
        if never || each.len() < 2 || each.len() != checks.len() {
            return;
        }
        let limits = checks.iter().zip(askers).zip(each);
        // A temporary limit of a rule that warms up is listed only if it denies.
        let limits =
            limits.filter(|((check, _), said)| !is_gate(check.limit) || !said.is_allowed());
        let mut limits: Vec<_> = limits
            .map(|((check, asker), decision)| {
                let mut decision = *decision;
                if self.is_allowed {
                    // The peek came after the charge, and other requests may have been charged in between.
                    decision.outcome = Outcome::Allowed;
                }
                ListedLimit {
                    by: DecidedBy::Applied(*asker),
                    kind: check.limit.kind().clone(),
                    decision,
                    cost: check.cost.max(1),
                }
            })
            .collect();
        // The limit that denied may have refilled by the peek, or isn't among these: then the list is left out.
        if !self.is_allowed && limits.iter().all(|met| met.decision.is_allowed()) {
            return;
        }
        limits.sort_by_key(ListedLimit::urgency);
        self.limits = Some(limits.into());
    }
}

impl ShadowQuery<'_, '_> {
    /// The denial that the rule would make. `None` if it allows the request.
    pub(super) fn denial(
        &self,
        gathered: &RequestMatch<'_>,
        answer: &Answer,
    ) -> Option<RuleDecision> {
        if answer.allowed {
            return None;
        }
        let decider = answer.decider.and_then(|decider| self.checks.get(decider));
        let key = decider.or(self.checks.first()).map(|check| {
            let set = gathered.facts_set_of(&check.key);
            (check.key.fingerprint(), set, check.limit.id)
        });
        let (fingerprint, set, limit) = key.unwrap_or_default();
        Some(RuleDecision {
            by: DecidedBy::Applied(self.rule),
            fingerprint,
            facts_set: set,
            limit,
            decision: answer.decision,
        })
    }
}
