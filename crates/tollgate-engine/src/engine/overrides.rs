//! The overrides that an engine keeps: added, listed, removed, and applied to each policy that comes into force.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use foldhash::fast::FixedState;
use tollgate::Timestamp;

use super::rules::CompiledPolicy;
use crate::address::Network;
use crate::backend::Backend;
use crate::facts::{COMMON_FACTS, IP, is_known_fact};
use crate::lint::impossible_value;
use crate::overrides::{
    MAX_OVERRIDE_DURATION, MAX_OVERRIDES, NewOverride, Override, OverrideAction, OverrideError,
    OverrideFacts, OverrideStatus, ReplacementLimits, Target, TargetKey,
};
use crate::suggestions::closest;

mod active;
mod fact_pattern;
mod override_table;
mod snapshot;
mod target_keys;
mod target_resolution;

pub(crate) use active::{ActiveOverrides, PolicyOverrides};
pub(crate) use override_table::{LimitOverride, Limiter, OverrideRef};
pub(super) use snapshot::SnapshotForm;
pub(super) use target_keys::{TargetFacts, TargetTexts};
pub(super) use target_resolution::{KeyContext, as_descriptor};

use override_table::{OverrideStats, OverrideTable};

/// The most text that an override's target may have.
const MAX_TARGET_BYTES: usize = 2_048;
/// The longest author's name.
const MAX_AUTHOR_BYTES: usize = 256;
/// How many different sets of facts overrides without a rule may use: each request is looked up by each of them.
const MAX_FACT_SETS: usize = 16;
/// How many overrides may have globs or networks: each request is matched with each of them.
const MAX_PATTERNS: usize = 256;
/// If the wall clock shows a time this much before an override was added, it was set back.
const CLOCK_SLACK: Duration = Duration::from_secs(1);

/// All overrides of an engine.
#[derive(Clone, Debug, Default)]
pub(super) struct OverrideBook {
    overrides: Vec<Override>,
    /// The use of each override, by its number.
    stats: HashMap<u64, Arc<OverrideStats>, FixedState>,
    /// The number of the newest override.
    last_id: u64,
}

/// What overrides are applied to.
#[derive(Clone, Copy)]
pub(super) struct OverrideContext<'a, B> {
    pub(super) keys: KeyContext<'a>,
    pub(super) backend: &'a B,
}

impl OverrideBook {
    /// Adds an override. It replaces one with the same action on the same target.
    pub(super) fn add<B: Backend>(
        &mut self,
        new: NewOverride,
        context: &OverrideContext<'_, B>,
        now: Timestamp,
    ) -> Result<Override, OverrideError> {
        validate_override(&new)?;
        validate_facts(context.keys.rules, &new.target, new.facts)?;
        let mut order = Override {
            id: self.last_id + 1,
            act: new.act,
            target: new.target,
            by: new.by,
            made_at: now,
            until: now + new.lasts,
            effect: OverrideStatus::InForce,
            used_count: 0,
            last_used_at: None,
        };
        // Compile the override alone, in a table of its own, to find out whether it has an effect.
        order.effect = OverrideTable::default().add(&order, Arc::default(), context);
        if let OverrideStatus::Idle(why) = order.effect {
            return Err(why);
        }
        let is_other =
            |other: &Override| other.target != order.target || other.act.name() != order.act.name();
        let others = self.overrides.iter().filter(|other| is_other(other));
        // An override that is replaced doesn't count.
        if others.clone().count() >= MAX_OVERRIDES {
            return Err(OverrideError::Full);
        }
        check_fact_sets(&order, others.clone())?;
        check_pattern_count(&order, others)?;
        self.overrides.retain(is_other);
        self.last_id = order.id;
        self.overrides.push(order.clone());
        Ok(order)
    }

    /// Removes the first override that matches.
    pub(super) fn withdraw(&mut self, is_meant: impl Fn(&Override) -> bool) -> Option<Override> {
        let place = self.overrides.iter().position(is_meant)?;
        let order = self.overrides.remove(place);
        Some(self.with_stats(order))
    }

    /// The overrides that match, with their use.
    pub(super) fn list(&self, is_meant: impl Fn(&Override) -> bool) -> Vec<Override> {
        let meant = self.overrides.iter().filter(|order| is_meant(order));
        meant.map(|order| self.with_stats(order.clone())).collect()
    }

    /// Applies all overrides to a policy. If that is about to come into force, the book stays locked until it is.
    pub(super) fn apply_to_policy<B: Backend>(&mut self, context: &OverrideContext<'_, B>) {
        self.remove_expired_stats();
        let mut table = OverrideTable::default();
        for order in &mut self.overrides {
            let acted = Arc::clone(self.stats.entry(order.id).or_default());
            order.effect = table.add(order, acted, context);
        }
        let table = (!self.overrides.is_empty()).then_some(table);
        context.keys.rules.overrides.set(table);
    }

    /// Removes expired overrides, and returns whether anything changed. If the clock was set back, the durations of
    /// the others start again now, so that none lasts longer than it was added for.
    pub(super) fn remove_expired(&mut self, now: Timestamp) -> bool {
        let before = self.overrides.len();
        self.overrides.retain(|order| order.until > now);
        let mut has_changed = self.overrides.len() < before;
        for order in &mut self.overrides {
            if order.made_at > now + CLOCK_SLACK {
                let lasts = order.until - order.made_at;
                (order.made_at, order.until) = (now, now + lasts);
                has_changed = true;
            }
        }
        has_changed
    }

    /// Drops the use of overrides that are gone.
    fn remove_expired_stats(&mut self) {
        let ids: HashSet<u64, FixedState> = self.overrides.iter().map(|order| order.id).collect();
        self.stats.retain(|id, _| ids.contains(id));
    }

    /// An override, with its use so far.
    fn with_stats(&self, mut order: Override) -> Override {
        let acted = self.stats.get(&order.id).map(|acted| acted.read());
        (order.used_count, order.last_used_at) = acted.unwrap_or_default();
        order
    }
}

/// Checks an override's duration, sizes and target, independent of the policy.
fn validate_override(new: &NewOverride) -> Result<(), OverrideError> {
    if new.lasts.is_zero() || new.lasts > MAX_OVERRIDE_DURATION {
        return Err(OverrideError::InvalidDuration(new.lasts));
    }
    let texts = [
        ("the target", new.target.bytes(), MAX_TARGET_BYTES),
        ("the name of the author", new.by.len(), MAX_AUTHOR_BYTES),
    ];
    let too_long = texts.into_iter().find(|(_, bytes, most)| bytes > most);
    if let Some((what, bytes, most)) = too_long {
        return Err(OverrideError::TooLong { what, bytes, most });
    }
    match (&new.act, &new.target.rule, &new.target.key) {
        (OverrideAction::Block, None, TargetKey::AllRequests) => Err(OverrideError::MissingTarget),
        (OverrideAction::Limit(replacement), ..)
            if *replacement == ReplacementLimits::default() =>
        {
            Err(OverrideError::NoReplacement)
        }
        (
            OverrideAction::Limit(_),
            None,
            TargetKey::AllRequests | TargetKey::Facts(_) | TargetKey::Patterns(_),
        ) => Err(OverrideError::MissingRule),
        _ => Ok(()),
    }
}

/// Checks whether any request could have the facts of an override.
fn validate_facts(
    rules: &CompiledPolicy,
    target: &Target,
    names: OverrideFacts,
) -> Result<(), OverrideError> {
    let slots = &rules.matcher.slots;
    let is_written_for_all = target.rule.is_none() && names == OverrideFacts::Known;
    for (fact, value) in target.key.facts() {
        let is_named = || slots.names().iter().any(|own| **own == *fact);
        // An override with a rule is checked against the rule's key instead.
        if is_written_for_all && !is_known_fact(fact) && !is_named() {
            let named = slots.names().iter().map(|own| &**own);
            return Err(OverrideError::UnknownFact {
                fact: fact.to_owned(),
                near: match fact {
                    REMOTE_ADDRESS => Some(IP),
                    _ => closest(fact, COMMON_FACTS.into_iter().chain(named)),
                }
                .map(str::to_owned),
            });
        }
        if is_no_address(fact, value) || is_written_for_all && is_no_ip(fact, value) {
            return Err(OverrideError::NotAnAddress {
                fact: fact.to_owned(),
                value: value.to_owned(),
            });
        }
        if is_written_for_all && let Some(slip) = impossible_value(fact, value) {
            return Err(OverrideError::NeverMatches {
                why: slip.message,
                help: slip.help,
            });
        }
    }
    Ok(())
}

/// Envoy's name of the fact `ip`.
const REMOTE_ADDRESS: &str = "remote_address";

/// Whether a value of the fact `ip` is neither an address, a network nor a glob.
fn is_no_ip(fact: &str, value: &str) -> bool {
    fact == IP && !value.contains('*') && Network::parse(value).is_none()
}

/// Whether a value looks like an address or a network, and is none.
fn is_no_address(fact: &str, value: &str) -> bool {
    let is_of_addresses = |sign: char| sign.is_ascii_hexdigit() || matches!(sign, '.' | ':' | '/');
    let is_like_one = value.contains(['.', ':', '/']) && value.chars().all(is_of_addresses);
    fact == "ip" && is_like_one && Network::parse(value).is_none()
}

/// The names of the facts in an override's target, if it names no rule.
fn fact_names(order: &Override) -> Option<Vec<&str>> {
    match (&order.target.rule, &order.target.key) {
        (None, TargetKey::Facts(facts)) => {
            Some(facts.iter().map(|(name, _)| name.as_str()).collect())
        }
        _ => None,
    }
}

/// Checks that requests aren't looked up by too many different sets of facts.
fn check_fact_sets<'a>(
    order: &Override,
    others: impl Iterator<Item = &'a Override>,
) -> Result<(), OverrideError> {
    let Some(own) = fact_names(order) else {
        return Ok(());
    };
    let mut sorts: Vec<_> = others.filter_map(fact_names).collect();
    sorts.push(own);
    sorts.sort_unstable();
    sorts.dedup();
    if sorts.len() > MAX_FACT_SETS {
        return Err(OverrideError::TooManyFactSets(MAX_FACT_SETS));
    }
    Ok(())
}

/// Checks that requests aren't matched with too many patterns.
fn check_pattern_count<'a>(
    order: &Override,
    others: impl Iterator<Item = &'a Override>,
) -> Result<(), OverrideError> {
    let is_pattern = |order: &Override| matches!(order.target.key, TargetKey::Patterns(_));
    if is_pattern(order) && others.filter(|other| is_pattern(other)).count() >= MAX_PATTERNS {
        return Err(OverrideError::TooManyPatterns(MAX_PATTERNS));
    }
    Ok(())
}
