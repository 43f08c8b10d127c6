//! Overrides compiled for one policy: found by the rule's number and the key's fingerprint, or by facts.

use std::collections::HashMap;
use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use foldhash::fast::RandomState;
use tollgate::{Algorithm, Rate, Timestamp};

use super::fact_pattern::{FactConditions, canonical};
use super::target_resolution::{TargetKeyId, as_descriptor};
use super::{CLOCK_SLACK, OverrideContext};
use crate::backend::Backend;
use crate::engine::rules::CompiledPolicy;
use crate::facts::Facts;
use crate::limits::{Limit, LimitKind};
use crate::overrides::{
    Override, OverrideAction, OverrideError, OverrideStatus, ReplacementLimits, TargetKey,
};
use crate::policy::Mode;

/// How long an expired override stays in a table while others are in force. A new table with many overrides takes
/// milliseconds, which a request would have to wait for.
const SWEEP_DELAY: Duration = Duration::from_secs(60);

/// A rule or tier, or a limit of a tree, by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Limiter {
    Applied(u32),
    Leaf(u32),
}

/// An override by number, with its expiry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OverrideRef {
    pub(crate) id: u64,
    pub(crate) until: Timestamp,
    /// The index of its use in the table.
    number: u32,
}

/// The limits of a rule, some of them replaced.
#[derive(Debug)]
pub(crate) struct LimitOverride {
    pub(crate) order: OverrideRef,
    pub(crate) limits: Box<[Limit]>,
}

/// The overrides of one target.
#[derive(Debug, Default)]
pub(super) struct TargetOverrides {
    pub(super) block: Option<OverrideRef>,
    pub(super) bypass: Option<OverrideRef>,
    /// In the order in which they were added. The last one that hasn't expired applies.
    pub(super) limit_overrides: Vec<Arc<LimitOverride>>,
}

/// All overrides that have an effect.
#[derive(Debug, Default)]
pub(super) struct OverrideTable {
    /// The number of overrides of each limiter.
    limiters: HashMap<Limiter, usize, RandomState>,
    by_key: HashMap<TargetKeyId, TargetOverrides, RandomState>,
    /// Overrides without a rule, by the facts that they name.
    fact_sets: Vec<FactSetOverrides>,
    /// Overrides with globs and networks, in the order in which they were added.
    patterns: Vec<PatternOverrides>,
    pub(super) global_bypass: Option<OverrideRef>,
    /// The use of each override, by index.
    stats: Vec<Arc<OverrideStats>>,
    /// When the first override expires, and the last.
    ends_first: Option<Timestamp>,
    ends_last: Timestamp,
    /// When the newest override was added.
    made_last: Timestamp,
}

/// Overrides with the same names of facts.
#[derive(Debug)]
struct FactSetOverrides {
    names: Box<[Box<str>]>,
    /// Overrides by their values, joined in one text.
    keys: HashMap<String, TargetOverrides, RandomState>,
}

/// The overrides of requests that match, of one rule or of all.
#[derive(Debug)]
struct PatternOverrides {
    limiter: Option<Limiter>,
    conditions: FactConditions,
    acts: TargetOverrides,
}

impl OverrideTable {
    /// Adds an override, and returns its effect under this policy.
    pub(super) fn add<B: Backend>(
        &mut self,
        order: &Override,
        acted: Arc<OverrideStats>,
        context: &OverrideContext<'_, B>,
    ) -> OverrideStatus {
        self.stats.push(acted);
        let first = self.ends_first.unwrap_or(order.until);
        self.ends_first = Some(first.min(order.until));
        self.ends_last = self.ends_last.max(order.until);
        self.made_last = self.made_last.max(order.made_at);
        match self.try_add(order, context) {
            Ok(Mode::Shadow) if order.act == OverrideAction::Block => OverrideStatus::InShadow,
            Ok(_) => OverrideStatus::InForce,
            Err(why) => OverrideStatus::Idle(why),
        }
    }

    fn try_add<B: Backend>(
        &mut self,
        order: &Override,
        context: &OverrideContext<'_, B>,
    ) -> Result<Mode, OverrideError> {
        let rules = context.keys.rules;
        let timed = OverrideRef {
            id: order.id,
            until: order.until,
            number: u32::try_from(self.stats.len() - 1).unwrap_or(u32::MAX),
        };
        let target = &*as_descriptor(rules, &order.target)?;
        match (&target.rule, &target.key) {
            (None, TargetKey::AllRequests) => {
                self.global_bypass = Some(timed);
                return Ok(rules.mode);
            }
            (None, TargetKey::Facts(facts)) => {
                check_has_rules(rules)?;
                self.fact_set(facts).set(&order.act, timed);
                return Ok(rules.mode);
            }
            (None, TargetKey::Patterns(facts)) => {
                check_has_rules(rules)?;
                let conditions = FactConditions::new(facts)?;
                self.add_pattern(None, conditions).set(&order.act, timed);
                return Ok(rules.mode);
            }
            _ => {}
        }
        let found = context.keys.resolve_target(target)?;
        let limits = match &order.act {
            OverrideAction::Limit(replacement) => {
                Some(replace_limits(&found.name, found.limits, replacement)?)
            }
            _ => None,
        };
        for limit in limits.iter().flatten() {
            let supported = context.backend.supports(limit);
            supported.map_err(|why| OverrideError::limit(&found.name, why))?;
        }
        *self.limiters.entry(found.place.limiter).or_default() += 1;
        let acts = match found.conditions {
            Some(conditions) => self.add_pattern(Some(found.place.limiter), conditions),
            None => self.by_key.entry(found.place).or_default(),
        };
        match limits {
            Some(limits) => {
                acts.limit_overrides.push(Arc::new(LimitOverride {
                    order: timed,
                    limits: limits.into(),
                }));
            }
            None => acts.set(&order.act, timed),
        }
        Ok(found.mode)
    }

    fn add_pattern(
        &mut self,
        limiter: Option<Limiter>,
        conditions: FactConditions,
    ) -> &mut TargetOverrides {
        self.patterns.push(PatternOverrides {
            limiter,
            conditions,
            acts: TargetOverrides::default(),
        });
        let last = self.patterns.len() - 1;
        &mut self.patterns[last].acts
    }

    /// Counts a request that an override decided.
    #[cold]
    pub(super) fn record_use(&self, timed: OverrideRef, now: Timestamp) {
        if let Some(acted) = self.stats.get(timed.number as usize) {
            acted.note(now);
        }
    }

    /// The overrides of requests with these facts.
    fn fact_set(&mut self, facts: &[(String, String)]) -> &mut TargetOverrides {
        let names = || facts.iter().map(|(name, _)| name.as_str());
        let is_own = |sort: &FactSetOverrides| sort.names.iter().map(|name| &**name).eq(names());
        let place = self.fact_sets.iter().position(is_own).unwrap_or_else(|| {
            self.fact_sets.push(FactSetOverrides {
                names: names().map(Box::from).collect(),
                keys: HashMap::default(),
            });
            self.fact_sets.len() - 1
        });
        let values = join_values(facts.iter().map(|(_, value)| Some(&**value)));
        let keys = &mut self.fact_sets[place].keys;
        keys.entry(values.unwrap_or_default()).or_default()
    }

    /// Whether a new table without the expired overrides is worth its cost: all have expired, or some have for long,
    /// or the clock was set back.
    pub(super) fn is_old(&self, now: Timestamp) -> bool {
        self.ends_last <= now
            || (self.ends_first).is_some_and(|first| first + SWEEP_DELAY <= now)
            || self.made_last > now + CLOCK_SLACK
    }

    /// How many overrides a limiter has.
    pub(super) fn count(&self, limiter: Limiter) -> usize {
        self.limiters.get(&limiter).copied().unwrap_or_default()
    }

    pub(super) fn at_key(
        &self,
        limiter: Limiter,
        fingerprint: Option<[u64; 2]>,
    ) -> Option<&TargetOverrides> {
        self.by_key.get(&TargetKeyId {
            limiter,
            fingerprint,
        })
    }

    /// The overrides with globs and networks that match a request, of one limiter or of all: the newest first.
    pub(super) fn matching_patterns<'t>(
        &'t self,
        limiter: Option<Limiter>,
        facts: &Facts<'_>,
    ) -> impl Iterator<Item = &'t TargetOverrides> {
        let own = self.patterns.iter().rev();
        let own =
            own.filter(move |own| own.limiter == limiter && own.conditions.match_facts(facts));
        own.map(|own| &own.acts)
    }

    /// The overrides without a rule whose facts this request has.
    pub(super) fn matching_facts<'t>(
        &'t self,
        facts: &Facts<'_>,
    ) -> impl Iterator<Item = &'t TargetOverrides> {
        let by_value = self.fact_sets.iter().filter_map(|sort| {
            let values = sort.names.iter().map(|name| facts.get(name));
            sort.keys.get(&join_values(values)?)
        });
        by_value.chain(self.matching_patterns(None, facts))
    }
}

impl TargetOverrides {
    /// Sets a block or a bypass. Two may have the same target, since a key can be written in several ways. Then the
    /// one that expires last applies.
    fn set(&mut self, act: &OverrideAction, timed: OverrideRef) {
        let place = match act {
            OverrideAction::Block => &mut self.block,
            OverrideAction::Bypass => &mut self.bypass,
            OverrideAction::Limit(_) => return,
        };
        *place = latest_expiry(*place, Some(timed));
    }
}

/// The override that expires last. If both expire together, `other`.
pub(super) fn latest_expiry(
    one: Option<OverrideRef>,
    other: Option<OverrideRef>,
) -> Option<OverrideRef> {
    one.into_iter().chain(other).max_by_key(|timed| timed.until)
}

/// Checks that the policy decides by facts at all: trees decide by descriptors.
fn check_has_rules(rules: &CompiledPolicy) -> Result<(), OverrideError> {
    let has_trees = rules.trees.leaves().next().is_some();
    let has_rules = !rules.policy.rules.is_empty() || !rules.policy.tiers.is_empty();
    if has_trees && !has_rules {
        return Err(OverrideError::OnlyTrees);
    }
    Ok(())
}

/// The values joined in one text, which no other values give. `None` if one of them is missing.
fn join_values<'a>(values: impl Iterator<Item = Option<&'a str>>) -> Option<String> {
    let mut all = String::new();
    for value in values {
        let value = canonical(value?);
        // Writing to a `String` never fails.
        let _ = write!(all, "{} {value}", value.len());
    }
    Some(all)
}

/// The limits of a rule, some of them replaced, with the same counters.
fn replace_limits(
    rule: &str,
    limits: &[Limit],
    replacement: &ReplacementLimits,
) -> Result<Vec<Limit>, OverrideError> {
    let mut own = limits.to_vec();
    let mut replace = |place: usize, kind: LimitKind| {
        let limit = own[place].overridden_by(kind);
        own[place] = limit.map_err(|error| OverrideError::limit(rule, error))?;
        Ok(())
    };
    let lacks = |sort| OverrideError::NoSuchLimit {
        rule: rule.to_owned(),
        sort,
    };
    let mut raised = Vec::with_capacity(replacement.rates.len());
    for rate in replacement.rates.iter().copied() {
        if rate.is_unlimited() {
            let why = "to let everything pass, add a bypass";
            return Err(OverrideError::limit(rule, why));
        }
        let (place, algorithm) = find_replaced_rate(rule, limits, rate)?;
        if let LimitKind::Rate { rate: own, .. } = limits[place].kind()
            && counts_in_windows(algorithm)
            && is_of_another_period(*own, rate)
        {
            return Err(OverrideError::OtherPeriod {
                rule: rule.to_owned(),
                own: own.to_string(),
                asked: rate.to_string(),
            });
        }
        if raised.contains(&place) {
            let why = format!("two rates stand in for {}", limits[place].kind());
            return Err(OverrideError::limit(rule, why));
        }
        raised.push(place);
        replace(place, LimitKind::Rate { rate, algorithm })?;
    }
    if let Some(count) = replacement.quota {
        let quota = limits.iter().enumerate().find_map(|(place, limit)| {
            let LimitKind::Quota(quota) = limit.kind() else {
                return None;
            };
            Some((place, quota.with_count(count)))
        });
        let (place, quota) = quota.ok_or_else(|| lacks("quota"))?;
        replace(place, LimitKind::Quota(quota))?;
    }
    if let Some(slots) = replacement.concurrency {
        let is_slots = |limit: &Limit| matches!(limit.kind(), LimitKind::Concurrency(_));
        let place = limits.iter().position(is_slots);
        let place = place.ok_or_else(|| lacks("limit of how many concurrent requests"))?;
        replace(place, LimitKind::Concurrency(slots))?;
    }
    Ok(own)
}

/// Whether counts belong to one period. A bucket's tokens are worth the same at any rate.
const fn counts_in_windows(algorithm: Algorithm) -> bool {
    !matches!(
        algorithm,
        Algorithm::Gcra | Algorithm::TokenBucket | Algorithm::LeakyBucket
    )
}

/// Whether two rates count in different periods. A rate that counts nothing has no period.
fn is_of_another_period(own: Rate, other: Rate) -> bool {
    let is_counted = |rate: Rate| !rate.is_zero() && !rate.is_unlimited();
    is_counted(own) && is_counted(other) && own.period() != other.period()
}

/// The only rate, or the one with the same period.
fn find_replaced_rate(
    rule: &str,
    limits: &[Limit],
    rate: Rate,
) -> Result<(usize, Algorithm), OverrideError> {
    let rates: Vec<_> = limits
        .iter()
        .enumerate()
        .filter_map(|(place, limit)| match limit.kind() {
            LimitKind::Rate { rate, algorithm } => Some((place, *rate, *algorithm)),
            _ => None,
        })
        .collect();
    let same = rates
        .iter()
        .find(|(_, own, _)| own.period() == rate.period());
    match (same, rates.as_slice()) {
        (Some((place, _, algorithm)), _) | (None, [(place, _, algorithm)]) => {
            Ok((*place, *algorithm))
        }
        (None, []) => Err(OverrideError::NoSuchLimit {
            rule: rule.to_owned(),
            sort: "rate",
        }),
        (None, several) => Err(OverrideError::WhichRate {
            rule: rule.to_owned(),
            rates: several.iter().map(|(_, own, _)| own.to_string()).collect(),
        }),
    }
}

/// The use of one override.
#[derive(Debug, Default)]
pub(crate) struct OverrideStats {
    count: AtomicU64,
    /// In nanoseconds of the wall clock; zero if never.
    last: AtomicU64,
}

impl OverrideStats {
    pub(super) fn new(count: u64, last: Option<Timestamp>) -> Self {
        Self {
            count: AtomicU64::new(count),
            last: AtomicU64::new(last.map_or(0, Timestamp::as_nanos)),
        }
    }

    pub(super) fn note(&self, now: Timestamp) {
        self.count.fetch_add(1, Ordering::Relaxed);
        self.last
            .fetch_max(now.as_nanos().max(1), Ordering::Relaxed);
    }

    pub(super) fn read(&self) -> (u64, Option<Timestamp>) {
        let last = self.last.load(Ordering::Relaxed);
        let last = (last > 0).then(|| Timestamp::from_nanos(last));
        (self.count.load(Ordering::Relaxed), last)
    }
}
