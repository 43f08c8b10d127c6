//! Lints: warnings about what the author of a policy probably didn't intend, with stable codes and help.

use std::collections::HashSet;

use tollgate::Algorithm;

use crate::diagnostic::{Code, Diagnostic};
use crate::document::Span;
use crate::envoy::{self, DescriptorDomains};
use crate::native::{PolicySpans, RuleSpans};
use crate::policy::{
    Counting, Mode, OnStoreFailure, OverLimitAction, Pattern, Policy, Rule, is_bucket,
};

mod codes;
mod condition_texts;
mod coverage;
mod keys;
mod match_rules;
mod missing_limits;
mod rate_bounds;
mod redundant_limits;

pub use codes::*;
pub(crate) use condition_texts::impossible_value;

/// The most warnings that are kept.
const MAX_WARNINGS: usize = 1_000;

/// Warns of what the author of a policy probably didn't intend, at the positions of the rules.
///
/// Files that are read with [`Policy::from_path`] have been linted already, with exact positions.
///
/// ```
/// use tollgate_engine::document::Format;
/// use tollgate_engine::{Policy, lint};
///
/// let text = "limits: [{name: login, key: [ip], rate: 5/m}]";
/// let checked = Policy::from_text(text, Format::Yaml)?;
/// let warnings = lint::lint(&checked.policy);
/// assert_eq!(warnings[0].code, lint::ADDRESS_ALONE);
/// # Ok::<(), tollgate_engine::LoadError>(())
/// ```
pub fn lint(policy: &Policy) -> Vec<Diagnostic> {
    let rules = policy.rules.iter();
    let rules = rules.map(|rule| RuleSpans::all_at(rule.span, &rule.limits));
    let tiers = policy.tiers.iter();
    let tiers =
        tiers.map(|(name, tier)| (name.clone(), RuleSpans::all_at(tier.span, &tier.limits)));
    let places = PolicySpans {
        rules: rules.collect(),
        tiers: tiers.collect(),
        condition_texts: condition_texts::condition_texts(policy),
        ..PolicySpans::default()
    };
    lint_with_spans(policy, &places)
}

/// Lints the limits of descriptor trees, each by itself. The proxy decides which of them a request uses, so they
/// aren't compared with one another.
pub(crate) fn lint_domains(domains: &DescriptorDomains) -> Vec<Diagnostic> {
    let mut found = Warnings(Vec::new());
    for mut rule in envoy::convert_to_rules(domains).rules {
        // A rate of zero is how Envoy's form blocks requests, so it isn't a mistake.
        rule.limits.rates.retain(|rate| rate.burst_size() > 0);
        let places = RuleSpans::all_at(rule.span, &rule.limits);
        check_rates(&mut found, &rule, &places);
        redundant_limits::check_limits_of_rule(&mut found, &rule, &places);
        keys::check_keys(&mut found, &rule, &places);
        check_open_on_failure(&mut found, &rule, &places);
    }
    found.0
}

/// Lints a policy with the exact positions of its parts.
pub(crate) fn lint_with_spans(policy: &Policy, places: &PolicySpans) -> Vec<Diagnostic> {
    let mut found = Warnings(Vec::new());
    for (rule, place) in active_rules(policy, places) {
        check_rates(&mut found, rule, place);
        keys::check_keys(&mut found, rule, place);
        check_open_on_failure(&mut found, rule, place);
        keys::check_adaptive_and_shed(&mut found, policy, rule, place);
    }
    check_tiers(&mut found, policy, places);
    redundant_limits::check_redundant_limits(&mut found, policy, places);
    condition_texts::check_facts(&mut found, policy, places);
    condition_texts::check_texts(&mut found, &places.condition_texts);
    match_rules::check_matches(&mut found, policy, places);
    missing_limits::check_missing_limits(&mut found, policy, places);
    let mut warnings = found.0;
    warnings.sort_by_key(|warning| warning.span);
    warnings
}

/// The rules that aren't off.
fn active_rules<'a>(
    policy: &'a Policy,
    places: &'a PolicySpans,
) -> impl Iterator<Item = (&'a Rule, &'a RuleSpans)> {
    let rules = policy.rules.iter().zip(&places.rules);
    rules.filter(|(rule, _)| rule.mode != Mode::Off)
}

/// The warnings so far, bounded to a number that people can read.
struct Warnings(Vec<Diagnostic>);

impl Warnings {
    fn warn(&mut self, code: Code, span: Span, message: String, help: impl Into<String>) {
        if self.0.len() < MAX_WARNINGS {
            let warning = Diagnostic::warning(code, message, span);
            self.0.push(warning.with_help(help));
        }
    }
}

fn check_rates(found: &mut Warnings, rule: &Rule, place: &RuleSpans) {
    let algorithm = rule.algorithm;
    for (rate, span) in rule.limits.rates.iter().zip(&place.rates) {
        keys::check_log_memory(found, rate, algorithm, *span);
        let burst = u128::from(rate.burst_size());
        if burst == 0 {
            let message = "a burst below 1: nothing passes, ever".to_owned();
            let help = "give a burst of 1 at least, or list the requests under block";
            found.warn(BURST_BELOW_ONE, *span, message, help);
            continue;
        }
        // A token bucket that never refills is a stock that can be used up once.
        if rate.is_zero() && algorithm != Algorithm::TokenBucket {
            let message = "a rate of zero: nothing passes, ever, whatever the burst".to_owned();
            let help = "give a rate above zero, list the requests under block, or say algorithm: token-bucket \
                        for a burst that is had once";
            found.warn(BURST_BELOW_ONE, *span, message, help);
            continue;
        }
        // A window's burst is its count, so there is nothing to choose.
        let Some(period) = rate.period().filter(|_| is_bucket(algorithm)) else {
            continue;
        };
        // A rate per part of a second is compared by its count per second, which is what people mean.
        const SECOND: u128 = 1_000_000_000;
        let count = u128::from(rate.count());
        let count = match period.as_nanos() {
            short if short < SECOND => count * SECOND / short,
            _ => count,
        };
        let (least, most) = (count, count.saturating_mul(5));
        // Where requests wait, a small burst is how they are spread out.
        if burst < least && rule.over == OverLimitAction::Deny {
            let message = format!(
                "a burst of {burst} is below the {count} of the rate: clients that send in bunches are \
                 refused long before they have used it"
            );
            let help = format!("give a burst from {least} to {most}, or a shorter period");
            found.warn(BURST_RATIO, *span, message, help);
        } else if burst > most {
            let message = format!(
                "a burst of {burst} is more than five times the {count} of the rate: this much may \
                 come at once"
            );
            let help = format!("give a burst from {least} to {most}, or add a second rate");
            found.warn(BURST_RATIO, *span, message, help);
        }
    }
}

fn check_tiers(found: &mut Warnings, policy: &Policy, places: &PolicySpans) {
    let taken: HashSet<&String> = policy.tenants.values().collect();
    for (name, tier) in &policy.tiers {
        let Some(place) = places.tiers.get(name) else {
            continue;
        };
        let rule = tier.as_rule(name);
        check_rates(found, &rule, place);
        check_open_quota(found, &rule, place);
        let used = policy.tier_fact.is_some()
            || policy.default_tier.as_ref() == Some(name)
            || taken.contains(name);
        if !used {
            let message = format!("no tenant can be in the tier {name:?}");
            let help = "put a tenant into it, make it the default_tier, or name a tier_fact";
            found.warn(UNUSED_TIER, place.name, message, help);
        }
    }
}

/// Words in paths and names that suggest a login, where attackers guess passwords.
const LOGIN_WORDS: &str = "auth authenticate authorize challenge credentials forgot login logon mfa oauth \
    oauth2 otp passwd password register reset session sessions signin signup sso token \
    totp verify";

fn check_open_on_failure(found: &mut Warnings, rule: &Rule, place: &RuleSpans) {
    if check_open_quota(found, rule, place) || !is_open_on_failure(rule.on_store_failure.rate, rule)
    {
        return;
    }
    if let Some(word) = login_word(rule) {
        let message = format!(
            "while the store can't be asked, nothing limits what looks like a login ({word:?})"
        );
        let help = "say local or closed: guessing passwords is when a store is made to fail";
        found.warn(OPEN_ON_FAILURE, place.on_store_failure, message, help);
    }
}

/// Whether nothing limits requests while the store is unavailable.
fn is_open_on_failure(failure: OnStoreFailure, rule: &Rule) -> bool {
    failure == OnStoreFailure::Open && rule.counting != Counting::Local
}

/// Warns of a quota that is open while the store is unavailable. Returns whether it is.
fn check_open_quota(found: &mut Warnings, rule: &Rule, place: &RuleSpans) -> bool {
    let is_open =
        rule.limits.quota.is_some() && is_open_on_failure(rule.on_store_failure.quota, rule);
    if is_open {
        let message = "while the store can't be asked, everyone goes beyond this quota".to_owned();
        let help = "leave on_store_failure out (closed for a quota), or say local";
        found.warn(OPEN_ON_FAILURE, place.on_store_failure, message, help);
    }
    is_open
}

/// A word in the rule's paths or name that suggests a login.
fn login_word(rule: &Rule) -> Option<&'static str> {
    let conditions = rule.matches.conditions.iter();
    let paths = conditions.filter(|(fact, _)| matches!(fact.as_str(), "path" | "route"));
    // A negated condition has no alternatives, so its text isn't read.
    let paths = paths.flat_map(|(_, pattern)| pattern.alternatives());
    let texts = paths.filter_map(Pattern::text);
    std::iter::once(rule.name.as_str())
        .chain(texts)
        .find_map(|text| {
            // "sign-in" is two words here, and one in the list.
            let lower = text.to_ascii_lowercase();
            let joined = lower.replace("sign-", "sign").replace("log-", "log");
            let mut words = condition_texts::split_words(&joined).into_iter();
            words.find_map(|word| LOGIN_WORDS.split(' ').find(|login| *login == word))
        })
}
