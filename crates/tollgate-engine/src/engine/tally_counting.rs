//! Counts decisions by limiter.

use super::request_match::{RequestMatch, TreeMatch};
use super::rules::CompiledPolicy;
use crate::counters::{
    ALLOWED, BLOCK, BOUNDS, BYPASS, DENIED, EXEMPT, NEAR_LIMIT, NO_RULE, REQUESTED, SHADOW_DENIED,
    Tallies, UNCOUNTED,
};
use crate::envoy::LookupResult;
use crate::limits::Answer;
use crate::policy::Mode;
use crate::verdict::{DecidedBy, DecisionBasis, DenyReason, is_near_limit};

impl Tallies {
    /// Counts an allowed request: for each enforced rule that applied, and for the one that decided if its limit is
    /// nearly used up.
    #[inline]
    pub(super) fn count_passed(
        &self,
        rules: &CompiledPolicy,
        gathered: &RequestMatch<'_>,
        said: &DecisionBasis,
    ) {
        self.add_passed();
        let applied = gathered.tally_rows.as_slice();
        for row in applied {
            self.add(*row, ALLOWED);
        }
        if let DecidedBy::Applied(number) = said.rule_decision.by
            && is_near_limit(&said.rule_decision.decision, rules.near_limit_percent)
        {
            self.add(rules.rules[number as usize].tally_row, NEAR_LIMIT);
        }
        if applied.is_empty() || !said.shadows.as_slice().is_empty() {
            self.count_passed_without_rule(rules, gathered, said);
        }
    }

    /// Counts an allowed request that no enforced rule matched, or that rules in shadow mode would have denied.
    #[cold]
    fn count_passed_without_rule(
        &self,
        rules: &CompiledPolicy,
        gathered: &RequestMatch<'_>,
        said: &DecisionBasis,
    ) {
        let is_counted = !gathered.tally_rows.as_slice().is_empty() || gathered.has_shadow_match();
        match said.rule_decision.by {
            DecidedBy::Exempt(_) => self.add(EXEMPT, ALLOWED),
            _ if is_counted || gathered.trees == TreeMatch::Some => {}
            _ if gathered.is_bypassed() || gathered.trees == TreeMatch::Bypassed => {
                self.add(BYPASS, ALLOWED)
            }
            _ => self.add(NO_RULE, ALLOWED),
        }
        for shadowed in said.shadows.as_slice() {
            self.add(tally_row(rules, shadowed.by), SHADOW_DENIED);
        }
    }

    /// Counts a request that a rule in shadow mode would have allowed.
    pub(super) fn count_shadow_passed(&self, rules: &CompiledPolicy, number: u32, answer: &Answer) {
        let row = rules.rules[number as usize].tally_row;
        self.add(row, ALLOWED);
        if is_near_limit(&answer.decision, rules.near_limit_percent) {
            self.add(row, NEAR_LIMIT);
        }
    }

    /// Counts a denied request by its cause.
    #[cold]
    pub(super) fn count_denied(&self, rules: &CompiledPolicy, said: &DecisionBasis) {
        self.add_refused();
        let reason = said.reason(rules);
        self.add(
            tally_row(rules, said.rule_decision.by),
            DENIED + reason as usize,
        );
    }

    /// Counts a request that exceeds a bound.
    #[cold]
    pub(super) fn count_excess(&self, mode: Mode, counts_request: bool) {
        let column = match mode {
            Mode::Enforce => DENIED + DenyReason::TooLarge as usize,
            Mode::Shadow => SHADOW_DENIED,
            Mode::Off => ALLOWED,
        };
        match mode {
            _ if !counts_request => {}
            Mode::Enforce => self.add_refused(),
            Mode::Shadow | Mode::Off => self.add_passed(),
        }
        self.add(BOUNDS, column);
    }
}

/// The outcome of one descriptor.
#[derive(Clone, Copy, Debug)]
pub(super) enum DescriptorOutcome {
    /// The request was allowed.
    Passed { near_limit: bool },
    /// This descriptor denied the request.
    Denied(DenyReason),
    /// This descriptor would have denied the request, but is in shadow mode, or others in quota mode have room.
    InShadow,
}

impl Tallies {
    /// Counts the outcome of one descriptor.
    pub(super) fn count_descriptor(
        &self,
        rules: &CompiledPolicy,
        lookup: &LookupResult<'_>,
        told: DescriptorOutcome,
    ) {
        let row = match lookup.leaf() {
            Some(leaf) => rules.trees.tally(leaf),
            None => REQUESTED,
        };
        if row == UNCOUNTED {
            return;
        }
        match told {
            DescriptorOutcome::Passed { near_limit } => {
                self.add(row, ALLOWED);
                if near_limit {
                    self.add(row, NEAR_LIMIT);
                }
            }
            DescriptorOutcome::Denied(reason) => self.add(row, DENIED + reason as usize),
            DescriptorOutcome::InShadow => self.add(row, SHADOW_DENIED),
        }
    }

    /// Counts a request whose descriptors have no limit, or whose limits were all bypassed.
    pub(super) fn count_unmatched(&self, rules: &CompiledPolicy, found: &[LookupResult<'_>]) {
        let row = if rules.trees.has_limits(found) {
            BYPASS
        } else {
            NO_RULE
        };
        self.add(row, ALLOWED);
    }
}

fn tally_row(rules: &CompiledPolicy, by: DecidedBy) -> u32 {
    match by {
        DecidedBy::Nothing => NO_RULE,
        DecidedBy::Exempt(_) => EXEMPT,
        DecidedBy::Block(_) | DecidedBy::Ordered(_) => BLOCK,
        DecidedBy::Excess(_) => BOUNDS,
        DecidedBy::Applied(number)
        | DecidedBy::Blocked(number)
        | DecidedBy::MissingKey(number)
        | DecidedBy::StoreFailure(number) => rules.rules[number as usize].tally_row,
    }
}
