//! Counts requests that lack facts that rules read, and warns of limits that never apply.

use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use super::recorder::Recorder;
use super::request_match::RequestMatch;
use super::rules::{CompiledPolicy, CompiledRule, TierMatch};
use crate::counters::{MISSING_KEY, NO_TENANT};
use crate::facts::{Descriptor, Facts};
use crate::suggestions::misspelled_facts;
use crate::warning::{SeenFacts, Warning};

/// The most fact names that are recorded of a request, and the most characters of each.
const MAX_NAMES: usize = 64;
const MAX_NAME_CHARS: usize = 80;

/// The warnings since the policy came into force.
#[derive(Debug, Default)]
pub(super) struct Warnings {
    all: Mutex<Vec<Warning>>,
    /// The function that logs warnings, beside the observer.
    log: OnceLock<fn(&Warning)>,
}

impl Warnings {
    pub(super) fn all(&self) -> MutexGuard<'_, Vec<Warning>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// If several layers share an engine, the first one logs.
    pub(super) fn log_by(&self, log: fn(&Warning)) {
        let _ = self.log.set(log);
    }
}

impl Recorder {
    #[cold]
    fn warn(&self, warning: Warning) {
        if let Some(observer) = &self.observer {
            observer.on_warning(&warning);
        }
        if let Some(log) = self.warnings.log.get() {
            log(&warning);
        }
        self.warnings.all().push(warning);
    }

    /// Counts the facts that a request lacks, and warns of those that every request has lacked so far.
    #[inline]
    pub(super) fn record_missing_facts(
        &self,
        rules: &CompiledPolicy,
        gathered: &RequestMatch<'_>,
        facts: &Facts<'_>,
    ) {
        if gathered.missing.is_any() {
            self.record_each_missing_fact(rules, gathered, facts);
        }
    }

    #[cold]
    #[inline(never)]
    fn record_each_missing_fact(
        &self,
        rules: &CompiledPolicy,
        gathered: &RequestMatch<'_>,
        facts: &Facts<'_>,
    ) {
        for number in gathered.missing.keys.as_slice() {
            let rule = &rules.rules[*number as usize];
            if let Some(tallies) = &self.tallies {
                tallies.add(rule.tally_row, MISSING_KEY);
            }
            if rule.key_presence.record_missing() && !rule.is_missing_expected {
                self.warn(key_never_found(rules, rule, facts));
            }
        }
        for number in gathered.missing.costs.as_slice() {
            let rule = &rules.rules[*number as usize];
            if rule.cost_presence.record_missing() {
                self.warn(cost_never_found(rules, rule, facts));
            }
        }
        match gathered.missing.tier {
            TierMatch::NoTiers | TierMatch::In(_) => {}
            TierMatch::NoTenant => self.record_missing_tenant(rules, facts),
            TierMatch::Unknown(default) => self.record_unknown_tier(rules, facts, default),
        }
        if gathered.missing.is_unmatched
            && rules.unmatched_requests.count_to_hundred()
            && has_no_match(rules)
        {
            self.warn(Warning::NoRuleMet {
                only_trees: has_only_trees(rules),
                had: request_facts(rules, facts),
            });
        }
    }

    fn record_missing_tenant(&self, rules: &CompiledPolicy, facts: &Facts<'_>) {
        if let Some(tallies) = &self.tallies {
            tallies.add(NO_TENANT, MISSING_KEY);
        }
        if rules.tiers.tenant_presence.record_missing() {
            self.warn(Warning::TenantNeverFound {
                had: request_facts(rules, facts),
            });
        }
    }

    fn record_unknown_tier(&self, rules: &CompiledPolicy, facts: &Facts<'_>, default: Option<u32>) {
        if let Some(tallies) = &self.tallies {
            tallies.add_unknown_tier();
        }
        if rules.tiers.tier_presence.record_missing() {
            let tier = rules.tiers.fact.and_then(|slot| {
                let fact = rules.matcher.slots.name(slot);
                Some((fact.to_owned(), shorten(facts.get(fact)?)))
            });
            let known = rules.tiers.names().into_iter();
            self.warn(Warning::TierNeverFound {
                tier,
                known: known.map(str::to_owned).collect(),
                has_default: default.is_some(),
            });
        }
    }

    /// Warns if no limit has matched any descriptor so far.
    #[cold]
    pub(super) fn record_unmatched_descriptors(
        &self,
        rules: &CompiledPolicy,
        domain: &str,
        descriptors: &[Descriptor<'_>],
    ) {
        if !rules.trees.is_any() || !rules.trees.presence.record_missing() {
            return;
        }
        let mut had: Vec<String> = Vec::new();
        for (key, _) in descriptors.iter().flat_map(|own| own.entries) {
            let key = shorten(key);
            if had.len() < MAX_NAMES && !had.contains(&key) {
                had.push(key);
            }
        }
        self.warn(Warning::NoDescriptorMet {
            domain: shorten(domain),
            known: rules.policy.domains.keys().cloned().collect(),
            had,
        });
    }
}

/// Whether all limits are for descriptors, and none for facts.
fn has_only_trees(rules: &CompiledPolicy) -> bool {
    rules.block_count + rules.exempt_count + rules.rules.len() == 0 && rules.trees.is_any()
}

/// Whether there are rules or trees, and neither a rule nor a tier has matched a request. A policy with only tiers
/// has its own warning.
fn has_no_match(rules: &CompiledPolicy) -> bool {
    let mut applied = rules.rules.iter();
    let has_rules = rules.rules.iter().any(|rule| !rule.is_tier);
    (has_rules || has_only_trees(rules)) && !applied.any(|rule| rule.key_presence.is_any())
}

fn key_never_found(rules: &CompiledPolicy, rule: &CompiledRule, facts: &Facts<'_>) -> Warning {
    let owned = |facts: Vec<&str>| facts.into_iter().map(str::to_owned).collect();
    Warning::KeyNeverFound {
        rule: rule.name.to_string(),
        wants: rule.key.fact_lists().map(owned).collect(),
        on_missing_key: rule.on_missing_key,
        had: request_facts(rules, facts),
    }
}

fn cost_never_found(rules: &CompiledPolicy, rule: &CompiledRule, facts: &Facts<'_>) -> Warning {
    let slots = &rules.matcher.slots;
    Warning::CostNeverFound {
        rule: rule.name.to_string(),
        wants: rule
            .cost_fact
            .map_or_else(String::new, |slot| slots.name(slot).to_owned()),
        default: rule.default_cost,
        had: request_facts(rules, facts),
    }
}

/// The facts of a request, for a message.
fn request_facts(rules: &CompiledPolicy, facts: &Facts<'_>) -> SeenFacts {
    let names = facts.iter().map(|(name, _)| shorten(name));
    let mut names: Vec<_> = names.take(MAX_NAMES).collect();
    names.sort_unstable();
    let near = misspelled_facts(&rules.policy, facts).into_iter();
    SeenFacts {
        names,
        near: near
            .map(|(name, near)| (shorten(name), near.to_owned()))
            .collect(),
    }
}

/// Shortens and escapes a name that a client may have chosen, for one line of a log.
fn shorten(name: &str) -> String {
    let shown: String = name.chars().take(MAX_NAME_CHARS).collect();
    shown.escape_debug().to_string()
}
