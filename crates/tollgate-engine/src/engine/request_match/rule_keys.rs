//! The keys of candidate rules, hashed before the rules are known to match; and the facts that a request lacks.

use std::hint::black_box;

use tollgate::OnMissingKey;

use super::{INLINE, MatchInput, RequestMatch, RuleMatch, is_replaced, to_u32};
use crate::backend::Backend;
use crate::engine::rules::{CompiledPolicy, CompiledRule, TierMatch};
use crate::limits::{KeyHashers, KeyPlan, RequestKey};
use crate::matcher::FactValues;
use crate::matcher::inline_vec::InlineVec;
use crate::policy::Mode;
use crate::verdict::{BLOCKED, DecidedBy, RuleDecision};

/// The keys of candidate rules, hashed before the rules are known to match. The backend starts to load their entries
/// meanwhile, which are in no CPU cache if there are many keys.
pub(super) struct PrefetchedKeys(InlineVec<(u32, [u64; 2]), INLINE>);

impl PrefetchedKeys {
    /// No keys: each is hashed once its rule is known to match.
    pub(super) const fn none() -> Self {
        Self(InlineVec::new())
    }

    #[inline]
    pub(super) fn prefetch(
        input: &MatchInput<'_, '_>,
        candidates: &[u32],
        known: &FactValues<'_, '_>,
        backend: &impl Backend,
    ) -> Self {
        let (mut early, rules) = (Self::none(), input.rules);
        let first = rules.block_count + rules.exempt_count;
        // A request that may be exempt or blocked likely needs no key.
        if candidates.iter().any(|number| (*number as usize) < first) {
            return early;
        }
        let candidates = candidates.iter().take(INLINE);
        let rules = candidates.filter_map(|number| {
            let number = (*number as usize).checked_sub(first)?;
            Some((number, rules.rules.get(number)?))
        });
        for (_, rule) in rules.clone() {
            // Loads whose results aren't used yet, so that the cache misses of several rules overlap.
            black_box((rule.default_cost, rule.is_shared));
        }
        for (number, rule) in rules {
            let Some(fingerprint) = rule.key.fingerprint(known, input.hashers) else {
                continue;
            };
            if let Some(limit) = rule.limits.as_slice().first() {
                backend.prefetch(limit, fingerprint);
            }
            early.0.push((to_u32(number), fingerprint));
        }
        early
    }

    /// The match of a rule by its key. `None` if the request lacks a part of the key and the rule lets such requests
    /// pass.
    #[inline(always)]
    pub(super) fn match_key(
        &self,
        number: u32,
        rule: &CompiledRule,
        known: &FactValues<'_, '_>,
        hashers: &KeyHashers,
    ) -> Option<RuleMatch> {
        let mut early = self.0.as_slice().iter();
        let early = early.find(|(own, _)| *own == number);
        let found = early.map(|(_, fingerprint)| *fingerprint);
        let found = found.or_else(|| fingerprint_of(rule, known, hashers));
        if found.is_some() {
            rule.key_presence.record_found();
        }
        let fingerprint = match found {
            Some(fingerprint) => fingerprint,
            None => missing_key_fingerprint(rule, hashers)?,
        };
        Some(RuleMatch {
            number,
            fingerprint,
            is_keyless: found.is_none(),
            facts_set: 0,
            mode: rule.mode_for(&RequestKey::new(&rule.key, known.facts, fingerprint)),
        })
    }
}

#[inline(never)]
fn fingerprint_of(
    rule: &CompiledRule,
    known: &FactValues<'_, '_>,
    hashers: &KeyHashers,
) -> Option<[u64; 2]> {
    rule.key.fingerprint(known, hashers)
}

/// The fingerprint that requests without the key share. `None` if the rule lets them pass.
#[cold]
fn missing_key_fingerprint(rule: &CompiledRule, hashers: &KeyHashers) -> Option<[u64; 2]> {
    (rule.on_missing_key != OnMissingKey::Pass).then(|| KeyPlan::missing(hashers))
}

/// What rules read and the request lacks.
pub(crate) struct MissingFacts {
    /// The rules that match it and whose key it lacks, by number.
    pub(crate) keys: InlineVec<u32, INLINE>,
    /// The rules whose cost fact it lacks, by number.
    pub(crate) costs: InlineVec<u32, INLINE>,
    /// Its tier, if it should have one and hasn't.
    pub(crate) tier: TierMatch,
    /// Whether no rule matches it.
    pub(crate) is_unmatched: bool,
}

impl MissingFacts {
    pub(super) const fn new() -> Self {
        Self {
            keys: InlineVec::new(),
            costs: InlineVec::new(),
            tier: TierMatch::NoTiers,
            is_unmatched: false,
        }
    }

    /// Whether it lacks anything.
    #[inline(always)]
    pub(crate) fn is_any(&self) -> bool {
        self.is_unmatched
            || self.tier != TierMatch::NoTiers
            || !self.keys.as_slice().is_empty()
            || !self.costs.as_slice().is_empty()
    }

    /// Drops rules that another rule replaces: nothing is missing for them.
    #[inline(never)]
    pub(super) fn forget_replaced(&mut self, rules: &CompiledPolicy, met: &[RuleMatch]) {
        if self.keys.as_slice().is_empty() {
            return;
        }
        let mut left = InlineVec::new();
        for number in self.keys.as_slice() {
            let mode = rules.rules[*number as usize].mode;
            if !is_replaced(rules, met, *number, mode) {
                left.push(*number);
            }
        }
        self.keys = left;
    }
}

/// The rules that deny a request because it lacks their key.
#[derive(Debug, Default)]
pub(crate) struct MissingKeyDenials {
    /// The first enforced one.
    pub(crate) denied: Option<RuleDecision>,
    /// The ones in shadow mode.
    pub(crate) shadows: Vec<RuleDecision>,
}

impl RequestMatch<'_> {
    /// Records whether a request states its cost, for a rule that reads it from a fact.
    pub(super) fn record_cost(&mut self, rule: &CompiledRule, number: u32, said: Option<u64>) {
        match said {
            Some(_) => rule.cost_presence.record_found(),
            None => self.missing.costs.push(number),
        }
    }

    /// Records that a rule applies although the request lacks the key. Returns whether the rule denies such requests.
    #[cold]
    pub(super) fn is_denied_for_missing_key(
        &mut self,
        rule: &CompiledRule,
        met: RuleMatch,
    ) -> bool {
        self.missing.keys.push(met.number);
        if rule.on_missing_key != OnMissingKey::Deny {
            return false;
        }
        let keyless = self.missing_key_denials.get_or_insert_default();
        let denied = met.decided(DecidedBy::MissingKey(met.number), BLOCKED);
        match met.mode {
            Mode::Enforce => {
                keyless.denied.get_or_insert(denied);
            }
            Mode::Shadow => keyless.shadows.push(denied),
            Mode::Off => {}
        }
        true
    }
}
