//! Requests without the key of a rule that matches them: what is counted of it, and what the rule does about it.

use tollgate::OnMissingKey;

use super::{Gathered, INLINE, Met, is_replaced};
use crate::engine::rules::{Applied, Rules, Tiered};
use crate::limits::{KeyHashers, KeyPlan};
use crate::matcher::few::Few;
use crate::policy::Mode;

/// What rules want of a request that it hasn't.
pub(crate) struct Lacks {
    /// Rules that match it, and whose key it lacks, by number.
    pub(crate) keys: Few<u32, INLINE>,
    /// Rules that take their cost from a fact that says none, by number.
    pub(crate) costs: Few<u32, INLINE>,
    /// How it stands to the tiers, if it isn't in one that it should be in.
    pub(crate) tier: Tiered,
    /// Whether no rule is for it.
    pub(crate) rule: bool,
}

impl Lacks {
    pub(super) const fn new() -> Self {
        Self {
            keys: Few::new(),
            costs: Few::new(),
            tier: Tiered::NoTiers,
            rule: false,
        }
    }

    /// Whether it lacks anything.
    #[inline(always)]
    pub(crate) fn is_any(&self) -> bool {
        self.rule
            || self.tier != Tiered::NoTiers
            || !self.keys.as_slice().is_empty()
            || !self.costs.as_slice().is_empty()
    }

    /// A rule that another takes the place of wants nothing.
    #[inline(never)]
    pub(super) fn forget_replaced(&mut self, rules: &Rules, met: &[(Met, Mode)]) {
        if self.keys.as_slice().is_empty() {
            return;
        }
        let mut left = Few::new();
        for number in self.keys.as_slice() {
            let mode = rules.applied[*number as usize].mode;
            if !is_replaced(rules, met, (*number, mode)) {
                left.push(*number);
            }
        }
        self.keys = left;
    }
}

/// Rules that deny a request because it lacks their key.
#[derive(Debug, Default)]
pub(crate) struct Keyless {
    /// The first that is enforced.
    pub(crate) denied: Option<Met>,
    /// Those that would, if they weren't in shadow.
    pub(crate) shadows: Vec<Met>,
}

/// The fingerprint by which a rule treats all requests without its key alike; none if it lets them pass.
#[cold]
pub(super) fn fingerprint(rule: &Applied, hashers: &KeyHashers) -> Option<[u64; 2]> {
    match rule.on_missing_key {
        OnMissingKey::Pass => None,
        OnMissingKey::Deny | OnMissingKey::OneCounter => Some(KeyPlan::missing(hashers)),
    }
}

impl Gathered<'_> {
    /// Notes whether a request says what it costs, by a rule that takes that from a fact.
    pub(super) fn note_cost(&mut self, rule: &Applied, number: u32, said: Option<u64>) {
        match said {
            Some(_) => rule.cost_seen.note_found(),
            None => self.lacks.costs.push(number),
        }
    }

    /// Notes that a rule applies to the request though it lacks the key: whether the rule denies such requests.
    #[cold]
    pub(super) fn deny_keyless(&mut self, rule: &Applied, met: Met, mode: Mode) -> bool {
        self.lacks.keys.push(met.number);
        if rule.on_missing_key != OnMissingKey::Deny {
            return false;
        }
        let keyless = self.keyless.get_or_insert_default();
        match mode {
            Mode::Enforce => {
                keyless.denied.get_or_insert(met);
            }
            Mode::Shadow => keyless.shadows.push(met),
            Mode::Off => {}
        }
        true
    }
}
