//! The keys of rules that may match, hashed before it is known whether they do, and how a rule applies to a request's key.

use std::hint::black_box;

use super::{INLINE, Met, keyless};
use crate::backend::Backend;
use crate::engine::rules::{Applied, Rules};
use crate::facts::Facts;
use crate::limits::{KeyHashers, RequestKey};
use crate::matcher::Known;
use crate::matcher::few::Few;
use crate::policy::Mode;

/// Keys of rules that may match, found before it is known whether they do: what the backend needs for
/// them is on its way meanwhile, and in no cache if there are many keys.
pub(super) struct Early(Few<Met, INLINE>);

impl Early {
    /// No key: each is hashed once its rule is known to match.
    pub(super) const fn none() -> Self {
        Self(Few::new())
    }

    #[inline]
    pub(super) fn of(
        rules: &Rules,
        candidates: &[u32],
        known: &Known<'_, '_>,
        (hashers, backend): (&KeyHashers, &impl Backend),
    ) -> Self {
        let mut early = Self::none();
        let first = rules.block + rules.exempt;
        // A request that may be exempt or blocked is likely to need no key.
        if candidates.iter().any(|number| (*number as usize) < first) {
            return early;
        }
        let candidates = candidates.iter().take(INLINE);
        let rules = candidates.filter_map(|number| {
            let number = (*number as usize).checked_sub(first)?;
            Some((number, rules.applied.get(number)?))
        });
        for (_, rule) in rules.clone() {
            // Loads that nobody waits for: those of several rules overlap.
            black_box((rule.default_cost, rule.shares));
        }
        for (number, rule) in rules {
            let Some(fingerprint) = rule.key.fingerprint(known, hashers) else {
                continue;
            };
            if let Some(limit) = rule.limits.as_slice().first() {
                backend.prefetch(limit, fingerprint);
            }
            early.0.push(Met {
                number: u32::try_from(number).unwrap_or(u32::MAX),
                fingerprint,
                is_keyless: false,
                set: 0,
            });
        }
        early
    }

    #[inline]
    fn find(&self, number: u32) -> Option<[u64; 2]> {
        let mut met = self.0.as_slice().iter();
        met.find(|met| met.number == number)
            .map(|met| met.fingerprint)
    }
}

/// A rule whose match a request has, and how it applies to the request's key; none if the request lacks a part of that, and
/// passes for want of it.
#[inline(always)]
pub(super) fn meet<'a>(
    number: usize,
    rule: &'a Applied,
    (early, hashers): (&Early, &KeyHashers),
    (known, facts): (&Known<'_, '_>, &'a Facts<'a>),
) -> Option<(Met, Mode)> {
    let number = u32::try_from(number).unwrap_or(u32::MAX);
    let fingerprint = early.find(number);
    let (fingerprint, is_keyless) = match fingerprint.or_else(|| late(rule, known, hashers)) {
        Some(fingerprint) => {
            rule.seen.note_found();
            (fingerprint, false)
        }
        None => (keyless::fingerprint(rule, hashers)?, true),
    };
    let mode = rule.mode_for(&RequestKey::new(&rule.key, facts, fingerprint));
    let met = Met {
        number,
        fingerprint,
        is_keyless,
        set: 0,
    };
    Some((met, mode))
}

/// The key of a tier, of one rule of very many that may match, or of a request that might be exempt.
#[inline(never)]
fn late(rule: &Applied, known: &Known<'_, '_>, hashers: &KeyHashers) -> Option<[u64; 2]> {
    rule.key.fingerprint(known, hashers)
}
