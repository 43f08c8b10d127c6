//! The overrides of a request, while its checks are collected.

use std::sync::Arc;
use std::time::Duration;

use tollgate::{Decision, Outcome, Timestamp};

use super::{RequestMatch, RuleLimits, RuleMatch};
use crate::engine::overrides::{ActiveOverrides, LimitOverride, Limiter, OverrideRef};
use crate::engine::rules::{CompiledPolicy, CompiledRule};
use crate::facts::{Facts, Scope};
use crate::matcher::FactValues;
use crate::policy::Mode;
use crate::verdict::{DecidedBy, RuleDecision};

/// The overrides of a request.
pub(crate) struct RequestOverrides<'a> {
    active: &'a ActiveOverrides,
    /// The bypass of all rules, if there is one.
    pub(super) bypass: Option<OverrideRef>,
    /// The overrides that bypassed a rule or replaced its limits.
    applied: Vec<OverrideRef>,
    /// Whether an override bypassed a rule.
    pub(crate) is_bypassed: bool,
    /// The block that denies the request. Of several, the one that expires last.
    pub(crate) block: Option<(OverrideRef, RuleDecision)>,
    /// The blocks that would deny it if they weren't in shadow mode.
    pub(crate) shadow_blocks: Vec<(OverrideRef, RuleDecision)>,
    /// The rules whose limits are replaced for this request.
    pub(crate) limit_overrides: Vec<(u32, [u64; 2], &'a Arc<LimitOverride>)>,
}

/// The match of an override without a rule.
const NO_KEY: RuleMatch = RuleMatch {
    number: 0,
    fingerprint: [0; 2],
    is_keyless: false,
    facts_set: 0,
    mode: Mode::Enforce,
};

/// The decision about a request that is blocked until then.
pub(crate) fn blocked_until(until: Timestamp, now: Timestamp) -> Decision {
    let left = (until - now).max(Duration::from_nanos(1));
    Decision::new(Outcome::Denied, 0, 0, left, left)
}

impl<'a> RequestMatch<'a> {
    /// Records the overrides of the whole request, before any rule is matched. For several sets of facts it is called
    /// once per set, and keeps what the sets before had. A bypass of the whole request applies to each descriptor,
    /// too.
    #[cold]
    pub(super) fn match_overrides(
        &mut self,
        rules: &CompiledPolicy,
        orders: &'a ActiveOverrides,
        facts: &Facts<'_>,
        bypass: Option<OverrideRef>,
    ) {
        let rulings = orders.for_request(facts);
        let ordered = self.overrides.get_or_insert_with(|| {
            Box::new(RequestOverrides {
                active: orders,
                bypass: None,
                applied: Vec::new(),
                is_bypassed: false,
                block: None,
                shadow_blocks: Vec::new(),
                limit_overrides: Vec::new(),
            })
        });
        ordered.bypass = rulings.bypass.or(bypass);
        // A block applies to the whole request, not to its parts.
        let block = rulings.block;
        if let Some(order) = block.filter(|_| facts.scope != Scope::Descriptor) {
            let mode = rules.mode;
            ordered.record_block(
                order,
                DecidedBy::Ordered(order.id),
                RuleMatch { mode, ..NO_KEY },
            );
        }
    }

    /// Adds the checks of one rule, with its overrides.
    #[cold]
    pub(super) fn add_rule_with_overrides(
        &mut self,
        rule: &'a CompiledRule,
        met: RuleMatch,
        known: &FactValues<'_, 'a>,
        cost: Option<u64>,
    ) {
        let Some(ordered) = &mut self.overrides else {
            return;
        };
        let rulings =
            ordered
                .active
                .for_key(Limiter::Applied(met.number), met.fingerprint, known.facts);
        if let Some(order) = rulings.block {
            let by = DecidedBy::Blocked(met.number);
            ordered.record_block(order, by, met);
        }
        if let Some(bypass) = ordered.bypass.or(rulings.bypass) {
            ordered.is_bypassed = true;
            ordered.record_applied(bypass);
            return;
        }
        let Some(changed) = rulings.limits else {
            let limits = rule.limits.as_slice();
            return self.add_limits(RuleLimits { rule, limits }, met, known, cost);
        };
        ordered
            .limit_overrides
            .push((met.number, met.fingerprint, changed));
        ordered.record_applied(changed.order);
        let limits = &*changed.limits;
        self.add_limits(RuleLimits { rule, limits }, met, known, cost);
    }
}

impl<'a> RequestOverrides<'a> {
    /// Records an override once, even if it bypasses several rules.
    fn record_applied(&mut self, order: OverrideRef) {
        if !self.applied.contains(&order) {
            self.applied.push(order);
        }
    }

    /// Counts the use of overrides by a request that was decided.
    #[cold]
    pub(crate) fn count_applied(&self) {
        let shadow = self.shadow_blocks.iter().map(|(order, _)| order);
        let decided = match &self.block {
            Some((order, _)) => std::slice::from_ref(order),
            None => &self.applied,
        };
        shadow
            .chain(decided)
            .for_each(|order| self.active.record_use(*order));
    }

    fn record_block(&mut self, order: OverrideRef, by: DecidedBy, met: RuleMatch) {
        let blocked = (
            order,
            met.decided(by, blocked_until(order.until, self.active.now)),
        );
        match met.mode {
            Mode::Enforce => {
                let others = self.block.filter(|(other, _)| other.until >= order.until);
                self.block = others.or(Some(blocked));
            }
            // Several keys of a request may have the same override, which is used once.
            Mode::Shadow if self.shadow_blocks.iter().any(|(own, _)| *own == order) => {}
            Mode::Shadow => self.shadow_blocks.push(blocked),
            Mode::Off => {}
        }
    }

    /// The limits that replace a rule's for one key.
    pub(crate) fn limit_override(
        &self,
        number: u32,
        fingerprint: [u64; 2],
    ) -> Option<&'a Arc<LimitOverride>> {
        let mut overrides = self.limit_overrides.iter();
        overrides
            .find(|(own, key, _)| (*own, *key) == (number, fingerprint))
            .map(|(_, _, changed)| *changed)
    }
}
