//! A compiled policy: the matcher, and the limits of each rule.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use foldhash::fast::FixedState;
use tollgate::{Algorithm, LimitError, OnMissingKey, Timestamp};

use super::counters::{Counters, Sharing};
use super::descriptors::Trees;
use super::overload_control::RetiredGates;
use super::overrides::PolicyOverrides;
use super::presence::{FactPresence, FirstHundred};
use super::rollout::Rollout;
use super::warm_up::{NewWarmUp, WarmUp};
use crate::backend::{Backend, Clocks};
use crate::counters::{Tallies, UNCOUNTED};
use crate::envoy::CompiledLimit;
use crate::facts::{DOMAIN, Facts};
use crate::limits::{Estimates, KeyPlan, Limit, LimitKind};
use crate::matcher::{FactIndex, FactValues, Matcher};
use crate::policy::{
    Cost, Counting, FailureModes, Limits, MatchConditions, Mode, OverLimitAction, Pattern, Policy,
    Rule,
};

mod compiled_rule;
mod policy_error;
mod tiers;

pub(crate) use compiled_rule::{CompiledRule, RuleLimits};
pub use policy_error::PolicyError;
pub(crate) use tiers::{TIERS, TierMatch, Tiers};

/// A policy in force. Its only state is that of gates.
#[derive(Debug)]
pub(crate) struct CompiledPolicy {
    /// Matches block entries, then exempt entries, then the rules that aren't off: in this order they are numbered.
    pub(crate) matcher: Matcher,
    /// How many facts, from the first on, are used as values, in keys, costs, tiers and classes. The others are only
    /// compared.
    pub(crate) value_facts: usize,
    pub(crate) exempt_count: usize,
    pub(crate) block_count: usize,
    /// The rules that aren't off, then the tiers.
    pub(crate) rules: Box<[CompiledRule]>,
    pub(crate) tiers: Tiers,
    /// Envoy's domains.
    pub(crate) trees: Trees,
    /// The domains of rules.
    pub(crate) domains: RuleDomains,
    pub(crate) mode: Mode,
    pub(crate) near_limit_percent: u8,
    /// Whether any rule replaces others.
    pub(crate) has_replacements: bool,
    /// Whether any rule lets requests wait.
    pub(crate) has_waiting_rules: bool,
    /// Whether the backend's answer isn't the whole decision, because a rule lets requests wait, or has a gate.
    pub(crate) needs_engine_checks: bool,
    /// Whether any rule warms up, or did.
    pub(crate) has_warm_up: bool,
    /// The counter of each limit.
    pub(crate) counters: Counters,
    /// Gates of earlier policies' rules, kept in case a rule returns.
    pub(crate) retired_gates: RetiredGates,
    /// Counts requests that no rule matched, until one matches.
    pub(crate) unmatched_requests: FirstHundred,
    /// The number of this policy among the engine's.
    pub(crate) version: u64,
    /// When it came into force, by the wall clock.
    pub(crate) active_since: Timestamp,
    /// The overrides that apply to it.
    pub(crate) overrides: PolicyOverrides,
    pub(crate) policy: Arc<Policy>,
}

impl CompiledPolicy {
    /// Counts the decisions of its limiters from now on.
    pub(crate) fn assign_tallies(&mut self, tallies: &Tallies) {
        let names: Vec<_> = self.limiters().map(|(name, _)| name).collect();
        let mut rows = tallies.rows(&names).into_iter();
        for (rule, row) in self.rules.iter_mut().zip(rows.by_ref()) {
            rule.tally_row = row;
        }
        self.trees.assign_tallies(rows.collect());
    }

    /// The names of all limiters, with their limits: those of rules and tiers, then those of trees.
    fn limiters(&self) -> impl Iterator<Item = (String, &[Limit])> {
        let applied = self.rules.iter();
        let applied = applied.map(|rule| (rule.name.to_string(), rule.limits.as_slice()));
        let leaves = self.trees.leaves();
        applied.chain(leaves.map(|(leaf, limits)| (leaf.to_string(), limits)))
    }

    /// The values of the facts that the policy reads. A decision fills them in place instead, to avoid the move.
    pub(crate) fn look_up_facts<'a>(&'a self, facts: &'a Facts<'a>) -> FactValues<'a, 'a> {
        let mut known = FactValues::new(&self.matcher.slots, facts);
        known.look_up();
        known.read_addresses();
        known
    }

    /// Prepares the policy to follow another, if the backend supports all limits.
    pub(crate) fn activate(
        &mut self,
        before: Option<&Self>,
        backend: &impl Backend,
        clocks: &Clocks,
    ) -> Result<(), PolicyError> {
        self.check_backend_support(backend)?;
        self.open_gates(before, clocks);
        self.active_since = clocks.wall.now();
        Ok(())
    }

    /// Whether the backend supports all limits.
    fn check_backend_support(&self, backend: &impl Backend) -> Result<(), PolicyError> {
        for (rule, limits) in self.limiters() {
            for limit in limits {
                if let Err(why) = backend.supports(limit) {
                    return Err(PolicyError::Backend { rule, why });
                }
            }
        }
        Ok(())
    }
}

/// The counter of limits, and how a store keeps them.
struct LimitPlacement<'a> {
    counter: &'a str,
    sharing: Sharing,
    failure: FailureModes,
    counting: Counting,
    slot: Option<&'a str>,
    estimates: Estimates,
}

impl<'a> LimitPlacement<'a> {
    /// The placement of a rule's limits in this counter. `is_settled_elsewhere` states whether other rules that share
    /// the counter settle estimates.
    fn of(rule: &'a Rule, counter: &'a str, is_settled_elsewhere: bool) -> Self {
        Self {
            counter,
            sharing: Sharing::Alone,
            failure: rule.on_store_failure,
            counting: rule.counting,
            slot: rule.hash_tag.as_deref(),
            estimates: estimates(&rule.cost, is_settled_elsewhere),
        }
    }

    fn apply_to(&self, limit: Limit) -> Result<Limit, LimitError> {
        let counting = match (self.counting, limit.kind()) {
            // Only rates can be leased.
            (Counting::Leased, LimitKind::Quota(_) | LimitKind::Concurrency(_)) => Counting::Exact,
            (counting, _) => counting,
        };
        let failure = limit.kind().failure_in(&self.failure);
        let limit = limit.with_storage(failure, counting, self.slot);
        match self.estimates {
            Estimates::None => Ok(limit),
            estimates => limit.with_estimates(estimates),
        }
    }
}

/// The state that a policy continues from.
#[derive(Clone, Copy)]
pub(crate) enum PreviousState<'a> {
    /// A new engine: there is no state.
    Nothing,
    /// The previous policy of the engine.
    Rules(&'a CompiledPolicy),
    /// The counters of a previous process. Its policy isn't known, so rules warm up anew.
    Counters(&'a Counters),
}

/// The context in which the rules of a policy are compiled.
struct PolicyCompiler<'a> {
    /// The previous rules, and the time.
    before: Option<&'a CompiledPolicy>,
    now: Timestamp,
    /// Names of shared counters for which some rule settles estimates.
    settled: HashSet<String>,
    slots: FactIndex,
    keys: HashMap<String, KeyPlan, FixedState>,
    counters: Counters,
}

impl CompiledPolicy {
    /// Compiles a policy that follows another state.
    pub(crate) fn new(
        policy: Policy,
        follows: PreviousState<'_>,
        now: Timestamp,
    ) -> Result<Self, PolicyError> {
        let (before, counters) = match follows {
            PreviousState::Nothing => (None, None),
            PreviousState::Rules(rules) => (Some(rules), Some(&rules.counters)),
            PreviousState::Counters(counters) => (None, Some(counters)),
        };
        let settled = policy
            .rules
            .iter()
            .filter(|rule| rule.cost.settle.is_some());
        let mut draft = PolicyCompiler {
            before,
            now,
            settled: settled.filter_map(|rule| rule.shared.clone()).collect(),
            slots: FactIndex::default(),
            keys: HashMap::default(),
            counters: Counters::continue_from(counters),
        };
        let is_on = |rule: &&Rule| rule.mode.max(policy.mode) != Mode::Off;
        let on: Vec<&Rule> = policy.rules.iter().filter(is_on).collect();
        let numbers = numbers_by_name(&policy.rules, &on)?;
        let mut applied = Vec::with_capacity(on.len() + policy.tiers.len());
        for rule in &on {
            applied.push(draft.compile_rule(rule, policy.mode, &numbers)?);
        }
        let tiers = draft.compile_tiers(&policy, &mut applied)?;
        let trees = draft.compile_trees(&policy)?;
        let (exempt, block) = exempt_and_block_lists(&policy);
        let matches = on.iter().map(|rule| &rule.matches);
        let matches = block.iter().chain(exempt).chain(matches);
        // Facts of keys, costs, tiers and classes are numbered by now. The matcher appends those of conditions.
        let values = draft.slots.names().len();
        let matcher = Matcher::with_slots(matches, draft.slots)?;
        draft.counters.retire_unused();
        Ok(Self {
            matcher,
            value_facts: values,
            exempt_count: exempt.len(),
            block_count: block.len(),
            has_replacements: applied.iter().any(|rule| !rule.replaces.is_empty()),
            has_waiting_rules: applied.iter().any(|rule| rule.max_wait.is_some()),
            needs_engine_checks: applied.iter().any(CompiledRule::needs_engine_checks),
            has_warm_up: applied.iter().any(|rule| rule.warm_up.is_some()),
            rules: applied.into(),
            tiers,
            trees,
            domains: RuleDomains::of(&policy),
            mode: policy.mode,
            near_limit_percent: policy.near_limit_percent,
            counters: draft.counters,
            retired_gates: RetiredGates::default(),
            unmatched_requests: FirstHundred::default(),
            version: before.map_or(0, |rules| rules.version + 1),
            active_since: Timestamp::ZERO,
            overrides: PolicyOverrides::default(),
            policy: Arc::new(policy),
        })
    }
}

/// The number of each rule among those that are on, by name, and `None` for one that is off. Names must be unique.
fn numbers_by_name<'p>(
    all: &'p [Rule],
    on: &[&'p Rule],
) -> Result<HashMap<&'p str, Option<u32>, FixedState>, PolicyError> {
    let mut numbers: HashMap<&str, Option<u32>, FixedState> = HashMap::default();
    for rule in all {
        if numbers.insert(&rule.name, None).is_some() {
            return Err(PolicyError::SameName {
                name: rule.name.clone(),
            });
        }
    }
    for (number, rule) in (0..).zip(on) {
        numbers.insert(&rule.name, Some(number));
    }
    Ok(numbers)
}

/// The exempt and block lists. Empty if the policy is off.
fn exempt_and_block_lists(policy: &Policy) -> (&[MatchConditions], &[MatchConditions]) {
    match policy.mode {
        Mode::Off => (&[], &[]),
        _ => (&policy.exempt, &policy.block),
    }
}

/// Which estimates a rule's counter keeps: all rules that share it keep the same.
fn estimates(cost: &Cost, others: bool) -> Estimates {
    match cost.settle {
        Some(settle) => Estimates::Own(settle),
        None if others => Estimates::OfOthers,
        None => Estimates::None,
    }
}

/// Maps an error of a rule's rates.
fn rate_error(rule: &str) -> impl Fn(LimitError) -> PolicyError {
    move |error| PolicyError::Rate {
        rule: rule.to_owned(),
        error,
    }
}

impl PolicyCompiler<'_> {
    fn compile_rule(
        &mut self,
        rule: &Rule,
        mode: Mode,
        numbers: &HashMap<&str, Option<u32>, FixedState>,
    ) -> Result<CompiledRule, PolicyError> {
        let mut replaces = Vec::new();
        for name in &rule.replaces {
            match numbers.get(name.as_str()) {
                // A rule that is off needs no replacement.
                Some(number) => replaces.extend(*number),
                None => {
                    return Err(PolicyError::UnknownRule {
                        rule: rule.name.clone(),
                        replaces: name.clone(),
                    });
                }
            }
        }
        let (counter, sharing) = counter_of(rule);
        let shared = rule.shared.as_ref();
        let is_settled_elsewhere = shared.is_some_and(|name| self.settled.contains(name));
        let place = LimitPlacement {
            sharing,
            ..LimitPlacement::of(rule, &counter, is_settled_elsewhere)
        };
        let applied = self.compile_limits(rule, &place, mode)?;
        Ok(CompiledRule {
            replaces: replaces.into(),
            ..applied
        })
    }

    /// Compiles the limits and keys of a rule.
    fn compile_limits(
        &mut self,
        rule: &Rule,
        place: &LimitPlacement<'_>,
        mode: Mode,
    ) -> Result<CompiledRule, PolicyError> {
        let mode = rule.mode.max(mode);
        let limits = self.place_limits(&rule.limits, rule.algorithm, place, &rule.name)?;
        let Cost { fact, default, .. } = &rule.cost;
        let (warm, overload) = (
            self.compile_warm_up(rule)?,
            self.compile_overload(rule, &limits)?,
        );
        Ok(CompiledRule {
            name: rule.name.as_str().into(),
            key: KeyPlan::of(rule, &mut self.slots).shared(&mut self.keys),
            on_missing_key: rule.on_missing_key.unwrap_or(OnMissingKey::Pass),
            is_missing_expected: rule.on_missing_key == Some(OnMissingKey::Pass),
            key_presence: FactPresence::default(),
            cost_fact: fact.as_ref().map(|fact| self.slots.number(fact)),
            default_cost: *default,
            cost_presence: FactPresence::default(),
            limits: RuleLimits::new(limits),
            mode,
            max_wait: match rule.over {
                OverLimitAction::Deny => None,
                OverLimitAction::Wait(longest) => Some(longest),
            },
            replaces: Box::default(),
            holds_permits: rule.limits.concurrency.is_some()
                || rule.adaptive.is_some()
                || rule.cost.settle.is_some(),
            is_estimated: rule.cost.settle.is_some(),
            is_tier: false,
            is_shared: rule.shared.is_some(),
            rollout: Rollout::from_rule(rule, mode),
            has_gates: warm.is_some() || overload.is_some(),
            warm_up: warm,
            overload,
            tally_row: UNCOUNTED,
        })
    }

    /// The temporary limits of a rule that comes into force, or did recently. A rule that was in force before it got
    /// its `warm_up` is warm already.
    fn compile_warm_up(&mut self, rule: &Rule) -> Result<Option<Box<WarmUp>>, PolicyError> {
        // An unlimited rule has no rate to warm up.
        let Some(length) = rule.warm_up.filter(|_| !rule.limits.unlimited) else {
            return Ok(None);
        };
        let before = self.before.and_then(|before| {
            let mut applied = before.rules.iter();
            applied.find(|applied| !applied.is_tier && *applied.name == *rule.name)
        });
        let head = match before {
            None => Some(Duration::ZERO),
            Some(before) => {
                let warm = before.warm_up.as_ref();
                warm.and_then(|warm| warm.scaled_progress(length, self.now))
            }
        };
        let Some(head) = head else {
            return Ok(None);
        };
        let new = NewWarmUp {
            rule: &rule.name,
            limits: &rule.limits,
            estimates: estimates(&rule.cost, false),
            length,
            initial_progress: head,
            now: self.now,
        };
        let warm = WarmUp::new(new, &mut self.counters);
        Ok(Some(Box::new(warm.map_err(rate_error(&rule.name))?)))
    }

    fn compile_trees(&mut self, policy: &Policy) -> Result<Trees, PolicyError> {
        Trees::new(&policy.domains, |leaf| {
            let limit = &leaf.limit;
            let place = LimitPlacement {
                counter: &counter_of_leaf(leaf),
                sharing: Sharing::Alone,
                failure: limit.on_store_failure,
                counting: limit.counting,
                slot: None,
                estimates: Estimates::None,
            };
            self.place_limits(&limit.limits, limit.algorithm, &place, &leaf.to_string())
        })
    }

    /// All limits of a rule or a tier, each with its counter.
    fn place_limits(
        &mut self,
        limits: &Limits,
        algorithm: Algorithm,
        place: &LimitPlacement<'_>,
        rule: &str,
    ) -> Result<Vec<Limit>, PolicyError> {
        let kinds = limit_kinds(limits, algorithm);
        let placed = self
            .counters
            .assign_counters(place.counter, place.sharing, &kinds);
        let marked = placed.and_then(|limits| {
            let limits = limits.into_iter();
            limits.map(|limit| place.apply_to(limit)).collect()
        });
        marked.map_err(rate_error(rule))
    }
}

/// The name of a rule's counter, and how it is shared.
pub(crate) fn counter_of(rule: &Rule) -> (String, Sharing) {
    match &rule.shared {
        Some(shared) => (format!("shared/{shared}"), Sharing::Shared),
        None => (format!("rule/{}", rule.name), Sharing::Alone),
    }
}

/// The name of the counter of a limit for descriptors.
pub(crate) fn counter_of_leaf(leaf: &CompiledLimit) -> String {
    format!("descriptor/{}", leaf.counter_name())
}

/// The limits of a rule or a tier, in a fixed order.
pub(crate) fn limit_kinds(limits: &Limits, algorithm: Algorithm) -> Vec<LimitKind> {
    if limits.unlimited {
        return Vec::new();
    }
    let rates = limits.rates.iter().filter(|rate| !rate.is_unlimited());
    let rates = rates.map(|rate| LimitKind::Rate {
        rate: *rate,
        algorithm,
    });
    let quota = limits.quota.iter().filter(|quota| !quota.is_unlimited());
    rates
        .chain(quota.cloned().map(LimitKind::Quota))
        .chain(limits.concurrency.map(LimitKind::Concurrency))
        .collect()
}

/// The domains of rules.
#[derive(Debug, Default)]
pub(crate) struct RuleDomains {
    /// Whether a rule matches domains that it doesn't name one by one.
    any: bool,
    named: BTreeSet<Box<str>>,
}

impl RuleDomains {
    /// The domains of a policy's rules.
    pub(crate) fn of(policy: &Policy) -> Self {
        let is_on = |rule: &&Rule| rule.mode != Mode::Off;
        let has_none = policy.rules.is_empty() && policy.domains.is_empty();
        let mut domains = Self {
            any: has_none || !policy.tiers.is_empty(),
            named: BTreeSet::new(),
        };
        for rule in policy.rules.iter().filter(is_on) {
            let mut conditions = rule.matches.conditions.iter();
            let own = conditions.find(|(fact, _)| fact == DOMAIN);
            match own {
                Some((_, pattern)) => domains.add(pattern),
                None => domains.any = true,
            }
        }
        domains
    }

    fn add(&mut self, pattern: &Pattern) {
        match pattern {
            Pattern::Exact(domain) => drop(self.named.insert(domain.as_str().into())),
            Pattern::OneOf(patterns) => patterns.iter().for_each(|one| self.add(one)),
            Pattern::Absent => {}
            _ => self.any = true,
        }
    }

    /// Whether a rule may match requests of this domain.
    pub(crate) fn has(&self, domain: &str) -> bool {
        self.any || self.named.contains(domain)
    }
}
