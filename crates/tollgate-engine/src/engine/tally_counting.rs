//! What is counted of a verdict, and by which limiter.

use super::request_match::{RequestMatch, TreeMatch};
use super::rules::Rules;
use crate::envoy::Lookup;
use crate::limits::Answer;
use crate::policy::Mode;
use crate::tally::{
    ALLOWED, ASKED, BLOCK, BOUNDS, BYPASS, DENIED, EXEMPT, NEAR_LIMIT, NO_RULE, SHADOW_DENIED,
    Tallies, UNCOUNTED,
};
use crate::verdict::{DecidedBy, DenyReason, RequestDecision, is_near};

impl Tallies {
    /// A request that passed: each rule in force that applied to it, and the one that decided if it is near its limit.
    #[inline]
    pub(super) fn passed(
        &self,
        rules: &Rules,
        gathered: &RequestMatch<'_>,
        said: &RequestDecision,
    ) {
        self.add_passed();
        let applied = gathered.counted.as_slice();
        for row in applied {
            self.add(*row, ALLOWED);
        }
        if let DecidedBy::Applied(number) = said.decided.by
            && is_near(&said.decided.decision, rules.near_limit_percent)
        {
            self.add(rules.applied[number as usize].tally, NEAR_LIMIT);
        }
        if applied.is_empty() || !said.shadows.as_slice().is_empty() {
            self.count_passed_without_rule(rules, gathered, said);
        }
    }

    /// One that no rule in force was for, or that some in shadow were.
    #[cold]
    fn count_passed_without_rule(
        &self,
        rules: &Rules,
        gathered: &RequestMatch<'_>,
        said: &RequestDecision,
    ) {
        let is_counted = !gathered.counted.as_slice().is_empty() || gathered.has_shadow_match();
        match said.decided.by {
            DecidedBy::Exempt(_) => self.add(EXEMPT, ALLOWED),
            _ if is_counted || gathered.trees == TreeMatch::Some => {}
            _ if gathered.is_bypassed() || gathered.trees == TreeMatch::Bypassed => {
                self.add(BYPASS, ALLOWED)
            }
            _ => self.add(NO_RULE, ALLOWED),
        }
        for shadowed in said.shadows.as_slice() {
            self.add(row(rules, shadowed.by), SHADOW_DENIED);
        }
    }

    /// A rule in shadow that would have let the request pass.
    pub(super) fn count_shadow_passed(&self, rules: &Rules, number: u32, answer: &Answer) {
        let row = rules.applied[number as usize].tally;
        self.add(row, ALLOWED);
        if is_near(&answer.decision, rules.near_limit_percent) {
            self.add(row, NEAR_LIMIT);
        }
    }

    /// A request that was refused, by what decided.
    #[cold]
    pub(super) fn refused(&self, rules: &Rules, said: &RequestDecision) {
        self.add_refused();
        let reason = said.reason(rules);
        self.add(row(rules, said.decided.by), DENIED + reason as usize);
    }

    /// A request that has more of something than is taken.
    #[cold]
    pub(super) fn exceeded(&self, mode: Mode, counts_request: bool) {
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

/// What a request of descriptors came to.
#[derive(Clone, Copy, Debug)]
pub(super) enum Told {
    /// It passed, by this and by all others.
    Passed { near_limit: bool },
    /// This refused it.
    Refused(DenyReason),
    /// This would have, but is in shadow, or others of its quota have room.
    InShadow,
}

impl Tallies {
    /// What the limit of one descriptor said.
    pub(super) fn descriptor(&self, rules: &Rules, lookup: &Lookup<'_>, told: Told) {
        let row = match lookup.leaf() {
            Some(leaf) => rules.trees.tally(leaf),
            None => ASKED,
        };
        if row == UNCOUNTED {
            return;
        }
        match told {
            Told::Passed { near_limit } => {
                self.add(row, ALLOWED);
                if near_limit {
                    self.add(row, NEAR_LIMIT);
                }
            }
            Told::Refused(reason) => self.add(row, DENIED + reason as usize),
            Told::InShadow => self.add(row, SHADOW_DENIED),
        }
    }

    /// No descriptor of a request met a limit, or all that did were let through by operators.
    pub(super) fn count_unmatched(&self, rules: &Rules, found: &[Lookup<'_>]) {
        let row = if rules.trees.has_limits(found) {
            BYPASS
        } else {
            NO_RULE
        };
        self.add(row, ALLOWED);
    }
}

fn row(rules: &Rules, by: DecidedBy) -> u32 {
    match by {
        DecidedBy::Nothing => NO_RULE,
        DecidedBy::Exempt(_) => EXEMPT,
        DecidedBy::Block(_) | DecidedBy::Ordered(_) => BLOCK,
        DecidedBy::Excess(_) => BOUNDS,
        DecidedBy::Applied(number)
        | DecidedBy::Blocked(number)
        | DecidedBy::MissingKey(number)
        | DecidedBy::StoreFailure(number) => rules.applied[number as usize].tally,
    }
}
