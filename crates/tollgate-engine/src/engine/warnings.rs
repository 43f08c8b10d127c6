//! Counting requests that lack what rules want, and warning of limits that never apply.

use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use super::recorder::Recorder;
use super::request_match::RequestMatch;
use super::rules::{Applied, Rules, TierMatch};
use crate::facts::{Descriptor, Facts};
use crate::suggestions::misspelt;
use crate::tally::{MISSING_KEY, NO_TENANT};
use crate::warning::{Had, Warning};

/// Most names of facts that are kept of a request, and most characters of each.
const MOST_NAMES: usize = 64;
const LONGEST_NAME: usize = 80;

/// What was warned of since the policy is in force.
#[derive(Debug, Default)]
pub(super) struct Warnings {
    all: Mutex<Vec<Warning>>,
    /// Who logs them, beside the observer.
    log: OnceLock<fn(&Warning)>,
}

impl Warnings {
    pub(super) fn all(&self) -> MutexGuard<'_, Vec<Warning>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Of several layers with one engine the first one logs.
    pub(super) fn log_by(&self, log: fn(&Warning)) {
        let _ = self.log.set(log);
    }
}

impl Recorder {
    #[cold]
    fn warn(&self, warning: Warning) {
        if let Some(observer) = &self.observer {
            observer.warned(&warning);
        }
        if let Some(log) = self.warnings.log.get() {
            log(&warning);
        }
        self.warnings.all().push(warning);
    }

    /// Counts what a request lacks, and warns of what all have lacked so far.
    #[inline]
    pub(super) fn record_missing_facts(
        &self,
        rules: &Rules,
        gathered: &RequestMatch<'_>,
        facts: &Facts<'_>,
    ) {
        if gathered.lacks.is_any() {
            self.record_each_missing_fact(rules, gathered, facts);
        }
    }

    #[cold]
    #[inline(never)]
    fn record_each_missing_fact(
        &self,
        rules: &Rules,
        gathered: &RequestMatch<'_>,
        facts: &Facts<'_>,
    ) {
        for number in gathered.lacks.keys.as_slice() {
            let rule = &rules.applied[*number as usize];
            if let Some(tallies) = &self.tallies {
                tallies.add(rule.tally, MISSING_KEY);
            }
            if rule.seen.record_missing() && !rule.is_missing_expected {
                self.warn(key_never_found(rules, rule, facts));
            }
        }
        for number in gathered.lacks.costs.as_slice() {
            let rule = &rules.applied[*number as usize];
            if rule.cost_seen.record_missing() {
                self.warn(cost_never_found(rules, rule, facts));
            }
        }
        match gathered.lacks.tier {
            TierMatch::NoTiers | TierMatch::In(_) => {}
            TierMatch::NoTenant => self.record_missing_tenant(rules, facts),
            TierMatch::Unknown(default) => self.record_unknown_tier(rules, facts, default),
        }
        if gathered.lacks.rule && rules.unmet.count_to_hundred() && has_no_match(rules) {
            self.warn(Warning::NoRuleMet {
                only_trees: has_only_trees(rules),
                had: had(rules, facts),
            });
        }
    }

    fn record_missing_tenant(&self, rules: &Rules, facts: &Facts<'_>) {
        if let Some(tallies) = &self.tallies {
            tallies.add(NO_TENANT, MISSING_KEY);
        }
        if rules.tiers.tenants_seen.record_missing() {
            self.warn(Warning::TenantNeverFound {
                had: had(rules, facts),
            });
        }
    }

    fn record_unknown_tier(&self, rules: &Rules, facts: &Facts<'_>, default: Option<u32>) {
        if let Some(tallies) = &self.tallies {
            tallies.add_unknown_tier();
        }
        if rules.tiers.tiers_seen.record_missing() {
            let tier = rules.tiers.fact.and_then(|slot| {
                let fact = rules.matcher.slots.name(slot);
                Some((fact.to_owned(), short(facts.get(fact)?)))
            });
            let known = rules.tiers.names().into_iter();
            self.warn(Warning::TierNeverFound {
                tier,
                known: known.map(str::to_owned).collect(),
                has_default: default.is_some(),
            });
        }
    }

    /// Warns of descriptors of which none has met a limit so far.
    #[cold]
    pub(super) fn record_unmatched_descriptors(
        &self,
        rules: &Rules,
        domain: &str,
        descriptors: &[Descriptor<'_>],
    ) {
        if !rules.trees.is_any() || !rules.trees.seen.record_missing() {
            return;
        }
        let mut had: Vec<String> = Vec::new();
        for (key, _) in descriptors.iter().flat_map(|own| own.entries) {
            let key = short(key);
            if had.len() < MOST_NAMES && !had.contains(&key) {
                had.push(key);
            }
        }
        self.warn(Warning::NoDescriptorMet {
            domain: short(domain),
            known: rules.policy.domains.keys().cloned().collect(),
            had,
        });
    }
}

/// Whether all limits are for descriptors, so that none is for facts.
fn has_only_trees(rules: &Rules) -> bool {
    rules.block + rules.exempt + rules.applied.len() == 0 && rules.trees.is_any()
}

/// Whether there are rules or trees, and neither a rule nor a tier has matched a request. Of tiers alone it is told that they
/// find nobody.
fn has_no_match(rules: &Rules) -> bool {
    let mut applied = rules.applied.iter();
    let has_rules = rules.applied.iter().any(|rule| !rule.is_tier);
    (has_rules || has_only_trees(rules)) && !applied.any(|rule| rule.seen.is_any())
}

fn key_never_found(rules: &Rules, rule: &Applied, facts: &Facts<'_>) -> Warning {
    let owned = |facts: Vec<&str>| facts.into_iter().map(str::to_owned).collect();
    Warning::KeyNeverFound {
        rule: rule.name.to_string(),
        wants: rule.key.fact_lists().map(owned).collect(),
        on_missing_key: rule.on_missing_key,
        had: had(rules, facts),
    }
}

fn cost_never_found(rules: &Rules, rule: &Applied, facts: &Facts<'_>) -> Warning {
    let slots = &rules.matcher.slots;
    Warning::CostNeverFound {
        rule: rule.name.to_string(),
        wants: rule
            .cost
            .map_or_else(String::new, |slot| slots.name(slot).to_owned()),
        default: rule.default_cost,
        had: had(rules, facts),
    }
}

/// The facts of a request, as people are told of them.
fn had(rules: &Rules, facts: &Facts<'_>) -> Had {
    let names = facts.iter().map(|(name, _)| short(name));
    let mut names: Vec<_> = names.take(MOST_NAMES).collect();
    names.sort_unstable();
    let near = misspelt(&rules.policy, facts).into_iter();
    Had {
        names,
        near: near
            .map(|(name, near)| (short(name), near.to_owned()))
            .collect(),
    }
}

/// A name that clients may have chosen, on one line and not too long.
fn short(name: &str) -> String {
    let shown: String = name.chars().take(LONGEST_NAME).collect();
    shown.escape_debug().to_string()
}
