//! From facts to checks: which rules match a request, and what each rule checks.
//!
//! A match is a rule's number, its limits, a key and a cost. The code after this file knows nothing else about the
//! match's origin.

use std::num::{IntErrorKind, ParseIntError};

use tollgate::{Decision, Timestamp};
use tollgate_adaptive::shed::Criticality;

use super::overload_control::{AdaptiveGate, AdaptiveLimiter};
use super::overrides::ActiveOverrides;
use super::rules::{CompiledPolicy, CompiledRule, TierMatch};
use super::wait_queue::QueueDemand;
use super::warm_up::is_gate;
use crate::backend::Backend;
use crate::bounds::{Bounds, ExceededBound};
use crate::counters::UNCOUNTED;
use crate::facts::Facts;
use crate::limits::{Check, KeyHashers, Limit, LimitKind, RequestKey};
use crate::matcher::inline_vec::InlineVec;
use crate::matcher::{FactValues, Numbers};
use crate::policy::Mode;
use crate::verdict::{DecidedBy, RuleDecision};

mod fact_sets;
mod request_overrides;
mod rule_keys;

pub(crate) use request_overrides::{RequestOverrides, blocked_until};
use rule_keys::PrefetchedKeys;
pub(crate) use rule_keys::{MissingFacts, MissingKeyDenials};

/// How many checks need no allocation.
const INLINE: usize = 8;

/// The checks of a request, and what else its match found.
pub(crate) struct RequestMatch<'a> {
    /// The facts of the request, if it has several sets of them.
    all_facts: Option<&'a Facts<'a>>,
    /// The decision, if the request needs no check.
    pub(crate) early_decision: Option<DecidedBy>,
    /// The bound that the request exceeds, if the policy is in shadow mode.
    pub(crate) shadow_excess: Option<ExceededBound>,
    /// The block entry that matches, if the policy is in shadow mode.
    pub(crate) shadow_block: Option<usize>,
    pub(crate) enforced: CheckGroup<'a>,
    /// The checks of rules in shadow mode, where each rule is decided by itself.
    pub(crate) shadow: CheckGroup<'a>,
    /// The first rule that applies, to name it if no rule has a check.
    pub(crate) first_rule: Option<RuleMatch>,
    /// The time, if a rule of the policy warms up.
    pub(crate) now: Option<Timestamp>,
    /// The tally rows of the enforced rules, if decisions are counted.
    pub(crate) tally_rows: InlineVec<u32, INLINE>,
    /// The overrides that apply, if there are any overrides.
    pub(crate) overrides: Option<Box<RequestOverrides<'a>>>,
    /// Gates to enter before the backend is queried. They are numbered after the enforced checks.
    #[expect(
        clippy::box_collection,
        reason = "most requests meet none, and pay for one word"
    )]
    pub(crate) gates: Option<Box<Vec<GateCheck<'a>>>>,
    /// Facts that rules read and the request lacks.
    pub(crate) missing: MissingFacts,
    /// Rules that deny the request because it lacks a key.
    pub(crate) missing_key_denials: Option<Box<MissingKeyDenials>>,
    /// Whether trees limit the request, too.
    pub(crate) trees: TreeMatch,
}

/// Whether descriptor trees limit a request of facts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TreeMatch {
    /// No tree does.
    None,
    /// An override bypasses all trees that would limit it.
    Bypassed,
    /// At least one tree limits it.
    Some,
}

/// The facts of a request, with what they are matched against.
#[derive(Clone, Copy)]
pub(crate) struct MatchInput<'a, 'e> {
    pub(crate) rules: &'a CompiledPolicy,
    /// The overrides of operators, if there are any.
    pub(crate) orders: Option<&'a ActiveOverrides>,
    pub(crate) facts: &'a Facts<'a>,
    pub(crate) hashers: &'e KeyHashers,
    pub(crate) bounds: &'e Bounds,
}

/// A rule that applies to a request, by number, with the fingerprint of its key.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RuleMatch {
    pub(crate) number: u32,
    pub(crate) fingerprint: [u64; 2],
    /// Whether the request lacks the key, so that the fingerprint is the shared one of all such requests.
    pub(crate) is_keyless: bool,
    /// The set of facts that the rule applies to.
    pub(crate) facts_set: u32,
    /// The rule's mode for this key.
    pub(crate) mode: Mode,
}

/// The gate of an adaptive limit, for a request of its rule.
#[derive(Debug)]
pub(crate) struct GateCheck<'a> {
    /// The rule, and its key.
    pub(crate) rule_match: RuleMatch,
    pub(crate) limiter: &'a AdaptiveLimiter,
    pub(crate) gate: &'a AdaptiveGate,
    pub(crate) class: Criticality,
}

impl<'a> GateCheck<'a> {
    /// A check of the gate's limit, to join its queue.
    pub(crate) fn check(&self) -> Check<'a> {
        self.limiter.check()
    }

    /// The demand of the request in the gate's queue.
    pub(crate) fn demand(&self) -> QueueDemand {
        QueueDemand::of(&self.check()).of_class(self.class)
    }

    /// The decision that the gate alone would make.
    pub(crate) fn peek(&self) -> Decision {
        self.gate.peek(self.class)
    }

    /// A decision of the gate, as its rule's.
    pub(super) fn decided(&self, decision: Decision) -> RuleDecision {
        let limit = self.limiter.limit.id;
        let by = DecidedBy::Applied(self.rule_match.number);
        RuleDecision {
            limit,
            ..self.rule_match.decided(by, decision)
        }
    }
}

impl RuleMatch {
    /// A decision by the rule's key, and by no limit.
    fn decided(&self, by: DecidedBy, decision: Decision) -> RuleDecision {
        RuleDecision {
            fingerprint: self.fingerprint,
            facts_set: self.facts_set,
            ..RuleDecision::new(by, decision)
        }
    }
}

/// The checks of several rules.
pub(crate) struct CheckGroup<'a> {
    pub(crate) checks: InlineVec<Check<'a>, INLINE>,
    /// The number of the rule of each check.
    pub(crate) askers: InlineVec<u32, INLINE>,
}

/// The checks of one rule in shadow mode.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ShadowQuery<'g, 'a> {
    pub(crate) rule: u32,
    pub(crate) checks: &'g [Check<'a>],
    pub(crate) gate: Option<&'g GateCheck<'a>>,
}

impl<'a> CheckGroup<'a> {
    const fn new() -> Self {
        Self {
            checks: InlineVec::new(),
            askers: InlineVec::new(),
        }
    }

    /// Each check, with the number of its rule.
    pub(crate) fn checks_with_rules(&self) -> impl Iterator<Item = (&Check<'a>, u32)> {
        let askers = self.askers.as_slice().iter().copied();
        self.checks.as_slice().iter().zip(askers)
    }

    /// The index of a check with the same limit and key.
    fn find(&self, check: &Check<'_>) -> Option<usize> {
        self.checks.as_slice().iter().position(|other| {
            other.limit.id == check.limit.id
                && other.limit.kind() == check.limit.kind()
                && other.key.fingerprint() == check.key.fingerprint()
        })
    }

    fn remove(&mut self, place: usize) {
        let last = self.checks.as_slice().len() - 1;
        self.checks.as_mut_slice()[place..].rotate_left(1);
        self.askers.as_mut_slice()[place..].rotate_left(1);
        self.checks.truncate(last);
        self.askers.truncate(last);
    }
}

impl<'a> RequestMatch<'a> {
    pub(crate) const fn new() -> Self {
        Self {
            all_facts: None,
            early_decision: None,
            shadow_excess: None,
            shadow_block: None,
            enforced: CheckGroup::new(),
            shadow: CheckGroup::new(),
            first_rule: None,
            now: None,
            tally_rows: InlineVec::new(),
            overrides: None,
            gates: None,
            missing: MissingFacts::new(),
            missing_key_denials: None,
            trees: TreeMatch::None,
        }
    }

    /// Whether an override bypasses a rule for this request.
    pub(crate) fn is_bypassed(&self) -> bool {
        let ordered = self.overrides.as_ref();
        ordered.is_some_and(|ordered| ordered.is_bypassed)
    }

    /// Whether anything in shadow mode applies to the request, which then counts it.
    pub(crate) fn has_shadow_match(&self) -> bool {
        let ordered = self.overrides.as_ref();
        !self.shadow.checks.as_slice().is_empty()
            || self.shadow_block.is_some()
            || self.shadow_excess.is_some()
            || ordered.is_some_and(|ordered| !ordered.shadow_blocks.is_empty())
            || self.gates_in(Mode::Shadow).next().is_some()
    }

    /// The gates of rules in this mode, each with its number.
    pub(crate) fn gates_in(&self, mode: Mode) -> impl Iterator<Item = (usize, &GateCheck<'a>)> {
        let first = self.enforced.checks.as_slice().len();
        let gates = self.gates.as_deref().into_iter().flatten();
        let gates = gates
            .enumerate()
            .filter(move |(_, gate)| gate.rule_match.mode == mode);
        gates.map(move |(number, gate)| (first + number, gate))
    }

    /// Whether rules in shadow mode have checks or gates.
    pub(crate) fn has_shadows(&self) -> bool {
        self.gates.is_some() || !self.shadow.checks.as_slice().is_empty()
    }

    /// The checks of each rule in shadow mode: first the rules with limits, then those with only a gate.
    pub(crate) fn shadow_queries(&self) -> impl Iterator<Item = ShadowQuery<'_, 'a>> {
        let (checks, askers) = (self.shadow.checks.as_slice(), self.shadow.askers.as_slice());
        let gates = || self.gates_in(Mode::Shadow).map(|(_, gate)| gate);
        let mut start = 0;
        let runs = askers.chunk_by(|one, other| one == other).map(move |run| {
            let (rule, own) = (run[0], &checks[start..start + run.len()]);
            start += run.len();
            ShadowQuery {
                rule,
                checks: own,
                gate: gates().find(|gate| gate.rule_match.number == rule),
            }
        });
        let alone = gates().filter(|gate| !askers.contains(&gate.rule_match.number));
        runs.chain(alone.map(|gate| ShadowQuery {
            rule: gate.rule_match.number,
            checks: &[],
            gate: Some(gate),
        }))
    }

    /// The gate with this number.
    pub(crate) fn gate(&self, number: usize) -> Option<&GateCheck<'a>> {
        let number = number.checked_sub(self.enforced.checks.as_slice().len())?;
        self.gates.as_ref()?.get(number)
    }

    /// Finds the rules that match a request, and collects their checks.
    #[inline]
    pub(crate) fn match_rules(&mut self, input: MatchInput<'a, '_>, backend: &impl Backend) {
        let (rules, facts, bounds) = (input.rules, input.facts, input.bounds);
        if !facts.is_single() {
            return self.match_sets(input, backend);
        }
        if let Some(orders) = input.orders {
            self.match_overrides(rules, orders, facts, None);
        }
        let mut known = FactValues::new(&rules.matcher.slots, facts);
        known.look_up();
        let (slot, bytes) = known.longest;
        if bytes > bounds.fact_bytes {
            let most = bounds.fact_bytes;
            return self.deny_excess(rules, ExceededBound::Fact { slot, bytes, most });
        }
        known.read_addresses();
        let mut matching = Numbers::new();
        // Candidates pass the index only. Their keys are prefetched while the remaining conditions are compared, so
        // that memory latency overlaps with that work.
        rules.matcher.candidates(&known, &mut matching);
        let first = rules.block_count + rules.exempt_count;
        let early = PrefetchedKeys::prefetch(&input, matching.as_slice(), &known, backend);
        rules.matcher.keep_matching(&known, &mut matching);
        if let Some(tier) = self.match_tier(rules, &known) {
            matching.push(tier.saturating_add(to_u32(first)));
        }
        self.missing.is_unmatched = matching.as_slice().is_empty();
        if let Some(found) = too_many_rules(rules, matching.as_slice(), bounds) {
            return self.deny_excess_checks(rules, found, bounds);
        }
        if rules.has_warm_up {
            self.now = Some(backend.now());
        }
        let mut met = InlineVec::<RuleMatch, INLINE>::new();
        // In order: block entries have the lowest numbers, then exempt entries, so a block decides before an exemption.
        for number in matching.as_slice() {
            let Some(rule) = (*number as usize).checked_sub(first) else {
                if self.is_decided_by_list(rules, *number as usize) {
                    return;
                }
                continue;
            };
            let (applied, number) = (&rules.rules[rule], to_u32(rule));
            match early.match_key(number, applied, &known, input.hashers) {
                None => self.missing.keys.push(number),
                Some(own) if rules.has_replacements => met.push(own),
                Some(own) => self.add_rule(applied, own, &known, None),
            }
        }
        if rules.has_replacements {
            self.missing.forget_replaced(rules, met.as_slice());
            self.add_unreplaced_rules(rules, met.as_slice(), &known);
        }
        let found = self.enforced.checks.as_slice().len() + self.shadow.checks.as_slice().len();
        if found > bounds.max_checks {
            self.deny_excess_limits(rules, found, bounds);
        }
    }

    /// The tier of a request, if it has one.
    #[inline]
    fn match_tier(&mut self, rules: &CompiledPolicy, known: &FactValues<'_, '_>) -> Option<u32> {
        let tiers = &rules.tiers;
        let tiered = tiers.match_tier(|slot| known.text(slot));
        if let TierMatch::In(number) = tiered {
            tiers.tenant_presence.record_found();
            tiers.tier_presence.record_found();
            return Some(number);
        }
        self.missing.tier = tiered;
        match tiered {
            TierMatch::Unknown(default) => {
                tiers.tenant_presence.record_found();
                default
            }
            _ => None,
        }
    }

    /// Denies a request with too many checks. Those of gates don't count, because they aren't limits of the policy.
    #[cold]
    fn deny_excess_limits(&mut self, rules: &CompiledPolicy, found: usize, bounds: &Bounds) {
        let checks = [&self.enforced, &self.shadow].map(|group| group.checks.as_slice());
        let gates = checks.into_iter().flatten();
        let gates = gates.filter(|check| is_gate(check.limit)).count();
        if found - gates > bounds.max_checks {
            self.deny_excess_checks(rules, found - gates, bounds);
        }
    }

    #[cold]
    fn deny_excess_checks(&mut self, rules: &CompiledPolicy, found: usize, bounds: &Bounds) {
        let most = bounds.max_checks;
        self.deny_excess(rules, ExceededBound::Checks { found, most });
    }

    /// Drops all checks of a request that exceeds a bound.
    #[cold]
    fn deny_excess(&mut self, rules: &CompiledPolicy, excess: ExceededBound) {
        (self.enforced, self.shadow, self.gates) = (CheckGroup::new(), CheckGroup::new(), None);
        self.missing_key_denials = None;
        self.early_decision = Some(match rules.mode {
            Mode::Enforce => DecidedBy::Excess(excess),
            Mode::Shadow => {
                self.shadow_excess = Some(excess);
                DecidedBy::Nothing
            }
            Mode::Off => DecidedBy::Nothing,
        });
    }

    /// Whether a block or exempt entry decides the request.
    #[cold]
    fn is_decided_by_list(&mut self, rules: &CompiledPolicy, entry: usize) -> bool {
        self.early_decision = match entry.checked_sub(rules.block_count) {
            Some(entry) => Some(DecidedBy::Exempt(entry)),
            None if rules.mode == Mode::Enforce => Some(DecidedBy::Block(entry)),
            None => {
                self.shadow_block.get_or_insert(entry);
                None
            }
        };
        self.early_decision.is_some()
    }

    /// Adds the checks of the rules that no other rule replaces.
    #[inline(never)]
    fn add_unreplaced_rules(
        &mut self,
        rules: &'a CompiledPolicy,
        met: &[RuleMatch],
        known: &FactValues<'_, 'a>,
    ) {
        for own in met {
            if !is_replaced(rules, met, own.number, own.mode) {
                self.add_rule(&rules.rules[own.number as usize], *own, known, None);
            }
        }
    }

    /// Adds the checks of one rule, at `cost` if it is given, else at the cost of the facts.
    #[inline(always)]
    fn add_rule(
        &mut self,
        rule: &'a CompiledRule,
        met: RuleMatch,
        known: &FactValues<'_, 'a>,
        cost: Option<u64>,
    ) {
        if self.overrides.is_some() {
            self.add_rule_with_overrides(rule, met, known, cost);
        } else {
            let limits = rule.limits.as_slice();
            self.add_limits(RuleLimits { rule, limits }, met, known, cost);
        }
    }

    /// Adds the checks of some limits of a rule, at `cost` if it is given, else at the cost of the facts.
    #[inline(always)]
    fn add_limits(
        &mut self,
        asked: RuleLimits<'a>,
        met: RuleMatch,
        known: &FactValues<'_, 'a>,
        cost: Option<u64>,
    ) {
        let RuleLimits { rule, limits } = asked;
        if met.is_keyless && self.is_denied_for_missing_key(rule, met) {
            return;
        }
        self.first_rule.get_or_insert(met);
        if rule.tally_row != UNCOUNTED && met.mode == Mode::Enforce {
            self.tally_rows.push(rule.tally_row);
        }
        let said = stated_cost(rule, known);
        if rule.cost_fact.is_some() {
            self.record_cost(rule, met.number, said);
        }
        let cost = cost.unwrap_or_else(|| rule_cost(rule, said));
        let key = RequestKey::new(&rule.key, known.facts, met.fingerprint);
        for limit in limits {
            // The limit is likely in no CPU cache, so it isn't read here.
            let check = Check { limit, key, cost };
            if rule.is_shared && self.merge_shared_check(check, met) {
                continue;
            }
            self.add_check(check, met);
        }
        if rule.has_gates {
            self.add_gates(asked, met, known, cost);
        }
    }

    #[inline(always)]
    fn add_check(&mut self, check: Check<'a>, met: RuleMatch) {
        let group = match met.mode {
            Mode::Enforce => &mut self.enforced,
            Mode::Shadow => &mut self.shadow,
            Mode::Off => return,
        };
        group.checks.push(check);
        group.askers.push(met.number);
    }

    /// Adds the parts that few rules have beside their limits: the temporary limits of a rule that warms up, the
    /// share of permits for the request's class, and the gate.
    #[cold]
    fn add_gates(
        &mut self,
        asked: RuleLimits<'a>,
        met: RuleMatch,
        known: &FactValues<'_, 'a>,
        cost: u64,
    ) {
        let RuleLimits { rule, limits } = asked;
        // An override's limits replace the rule's own, and none of those warms up.
        let is_changed = !std::ptr::eq(limits, rule.limits.as_slice());
        let key = RequestKey::new(&rule.key, known.facts, met.fingerprint);
        if rule.warm_up.is_some() && !is_changed {
            for limit in rule.warm_up_limits(self.now) {
                // A request that costs more than the gate's burst takes all of it: only the rule itself decides which
                // costs can never be allowed.
                let cost = match limit.kind() {
                    LimitKind::Rate { rate, .. } => cost.min(rate.burst_size()),
                    _ => cost,
                };
                self.add_check(Check { limit, key, cost }, met);
            }
        }
        let Some(overload) = &rule.overload else {
            return;
        };
        let class = overload.class(|by| known.text(by));
        // An override's concurrency limit applies to all classes alike.
        if let Some(part) = overload.class_limit(class).filter(|_| !is_changed) {
            let group = match met.mode {
                Mode::Enforce => &mut self.enforced,
                Mode::Shadow | Mode::Off => &mut self.shadow,
            };
            let checks = group.checks.as_mut_slice().iter_mut();
            let whole = checks.rev().find(|check| check.limit.id == part.id);
            if let Some(check) = whole {
                check.limit = part;
            }
        }
        // A request takes one permit of a gate, however many keys of the rule it has.
        let has_entered = |adapting: &AdaptiveLimiter| {
            let mut gates = self.gates.iter().flat_map(|gates| gates.iter());
            gates.any(|own| std::ptr::eq(own.limiter, adapting) && own.rule_match.mode == met.mode)
        };
        if let Some(adapting) = &overload.adaptive
            && let Some(gate) = &adapting.gate
            && !has_entered(adapting)
        {
            self.gates.get_or_insert_default().push(GateCheck {
                rule_match: met,
                limiter: adapting,
                gate,
                class,
            });
        }
    }

    /// Whether another rule with the same counter already has this check. A request is charged to a counter once: at
    /// the highest cost of these rules, and by an enforced rule rather than one in shadow mode. If one of the costs
    /// is an estimate, the charge is settled as one.
    #[cold]
    fn merge_shared_check(&mut self, check: Check<'a>, met: RuleMatch) -> bool {
        let in_force = self.enforced.find(&check);
        let (group, place) = match (met.mode, in_force, self.shadow.find(&check)) {
            (Mode::Shadow, Some(_), _) => return true,
            (Mode::Shadow, None, in_shadow) => (&mut self.shadow, in_shadow),
            (_, _, in_shadow) => {
                if let Some(place) = in_shadow {
                    self.shadow.remove(place);
                }
                (&mut self.enforced, in_force)
            }
        };
        let Some(place) = place else { return false };
        let other = &mut group.checks.as_mut_slice()[place];
        other.cost = other.cost.max(check.cost);
        if check.limit.is_estimated && !other.limit.is_estimated {
            other.limit = check.limit;
            group.askers.as_mut_slice()[place] = met.number;
        }
        true
    }
}

/// The limits of a rule that are checked: its own, or those of an override.
#[derive(Clone, Copy)]
struct RuleLimits<'a> {
    rule: &'a CompiledRule,
    limits: &'a [Limit],
}

/// The number of matching rules, if it exceeds the bound. Block and exempt entries don't count.
#[inline]
fn too_many_rules(rules: &CompiledPolicy, matching: &[u32], bounds: &Bounds) -> Option<usize> {
    if matching.len() <= bounds.max_checks {
        return None;
    }
    let first = rules.block_count + rules.exempt_count;
    let numbers = matching.iter();
    let found = numbers.filter(|number| **number as usize >= first).count();
    (found > bounds.max_checks).then_some(found)
}

/// Whether another rule that applies replaces this one.
#[inline]
fn is_replaced(rules: &CompiledPolicy, met: &[RuleMatch], number: u32, mode: Mode) -> bool {
    let mut met = met.iter();
    met.any(|other| replaces(rules, other, number, mode))
}

/// Whether a rule that applies replaces this one. A rule in shadow mode replaces only rules in shadow mode.
fn replaces(rules: &CompiledPolicy, other: &RuleMatch, number: u32, mode: Mode) -> bool {
    let rule = &rules.rules[other.number as usize];
    other.mode <= mode && rule.replaces.contains(&number)
}

/// The cost that a request states for a rule. `None` if it states none that is a number. A number that is too large
/// counts as the largest, not as the default, so that a client can't get the default by exceeding the range.
#[inline(always)]
fn stated_cost(rule: &CompiledRule, known: &FactValues<'_, '_>) -> Option<u64> {
    let cost_of = |slot| match known.text(slot)?.parse() {
        Err(error) if *ParseIntError::kind(&error) != IntErrorKind::PosOverflow => None,
        cost => Some(cost.unwrap_or(u64::MAX)),
    };
    rule.cost_fact.and_then(cost_of).or(known.facts.cost())
}

/// The cost of a request for a rule. An estimate is at least 1, because a request that states 0 still has an actual
/// cost.
#[inline(always)]
fn rule_cost(rule: &CompiledRule, said: Option<u64>) -> u64 {
    let cost = said.unwrap_or(rule.default_cost);
    cost.max(u64::from(rule.is_estimated))
}

fn to_u32(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}
