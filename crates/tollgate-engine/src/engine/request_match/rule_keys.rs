//! The keys of rules that may match, hashed before it is known whether they do; and what a request lacks, as the keys of rules.

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

/// Keys of rules that may match, found before it is known whether they do: what the backend needs for
/// them is on its way meanwhile, and in no cache if there are many keys.
pub(super) struct PrefetchedKeys(InlineVec<(u32, [u64; 2]), INLINE>);

impl PrefetchedKeys {
    /// No key: each is hashed once its rule is known to match.
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
        // A request that may be exempt or blocked is likely to need no key.
        if candidates.iter().any(|number| (*number as usize) < first) {
            return early;
        }
        let candidates = candidates.iter().take(INLINE);
        let rules = candidates.filter_map(|number| {
            let number = (*number as usize).checked_sub(first)?;
            Some((number, rules.rules.get(number)?))
        });
        for (_, rule) in rules.clone() {
            // Loads that nobody waits for: those of several rules overlap.
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

    /// How a rule applies to the key of a request that it matches; none if the request lacks a part of that, and passes for want
    /// of it.
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

/// The fingerprint of all who lack the key of a rule; none if it lets them pass.
#[cold]
fn missing_key_fingerprint(rule: &CompiledRule, hashers: &KeyHashers) -> Option<[u64; 2]> {
    (rule.on_missing_key != OnMissingKey::Pass).then(|| KeyPlan::missing(hashers))
}

/// What rules want of a request that it hasn't.
pub(crate) struct MissingFacts {
    /// Rules that match it, and whose key it lacks, by number.
    pub(crate) keys: InlineVec<u32, INLINE>,
    /// Rules that take their cost from a fact that says none, by number.
    pub(crate) costs: InlineVec<u32, INLINE>,
    /// How it stands to the tiers, if it isn't in one that it should be in.
    pub(crate) tier: TierMatch,
    /// Whether no rule is for it.
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

    /// A rule that another takes the place of wants nothing.
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

/// Rules that deny a request because it lacks their key.
#[derive(Debug, Default)]
pub(crate) struct MissingKeyDenials {
    /// The first that is enforced.
    pub(crate) denied: Option<RuleDecision>,
    /// Those that would, if they weren't in shadow.
    pub(crate) shadows: Vec<RuleDecision>,
}

impl RequestMatch<'_> {
    /// Notes whether a request says what it costs, by a rule that takes that from a fact.
    pub(super) fn record_cost(&mut self, rule: &CompiledRule, number: u32, said: Option<u64>) {
        match said {
            Some(_) => rule.cost_presence.record_found(),
            None => self.missing.costs.push(number),
        }
    }

    /// Notes that a rule applies to the request though it lacks the key: whether the rule denies such requests.
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
