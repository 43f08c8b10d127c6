//! Requests with several sets of facts: each set is matched by itself, and all checks are made together.
//!
//! A proxy that sends two values of one fact means both, and rules with a condition on `descriptor` match each
//! descriptor by itself. Requests with a single set, which nearly all are, never get here.

use super::{
    MatchInput, PrefetchedKeys, RequestMatch, RuleMatch, replaces, rule_cost, stated_cost, to_u32,
};
use crate::backend::Backend;
use crate::bounds::ExceededBound;
use crate::engine::overrides::{LimitOverride, Limiter};
use crate::engine::rules::CompiledPolicy;
use crate::facts::{DESCRIPTOR, Facts, Scope};
use crate::limits::RequestKey;
use crate::matcher::Numbers;
use crate::policy::Mode;
use crate::verdict::DecidedBy;

/// The match of a set.
enum SetMatch {
    /// Rules may apply to the set.
    Rules,
    /// This entry exempts the set.
    Exempt(usize),
    /// The whole request is decided.
    Decided,
}

/// A rule that applies to sets of a request, with one key.
struct SetCheck {
    /// The match of the first set.
    met: RuleMatch,
    /// The override's limits in place of the rule's own, if there are any.
    limits: Option<*const LimitOverride>,
    cost: u64,
}

impl SetCheck {
    /// Whether another set is counted with the same key and limits.
    fn is_same(&self, other: &RuleMatch, limits: Option<*const LimitOverride>) -> bool {
        let own = (self.met.number, self.met.fingerprint, self.limits);
        own == (other.number, other.fingerprint, limits)
    }

    /// Adds the cost of a set. Hits of several descriptors on one counter add up. Among several values of the whole
    /// request, the highest cost applies.
    fn add_cost(&mut self, cost: u64, scope: Scope) {
        self.cost = match scope {
            Scope::Descriptor => self.cost.saturating_add(cost),
            Scope::Request | Scope::Joined => self.cost.max(cost),
        };
    }
}

impl<'a> RequestMatch<'a> {
    /// Collects the checks of a request with several sets of facts.
    #[cold]
    #[inline(never)]
    pub(super) fn match_sets(&mut self, input: MatchInput<'a, '_>, backend: &impl Backend) {
        let MatchInput {
            rules,
            facts,
            bounds,
            ..
        } = input;
        self.all_facts = Some(facts);
        if rules.has_warm_up {
            self.now = Some(backend.now());
        }
        self.missing.is_unmatched = true;
        let (mut met, mut exempt, mut is_limited) = (Vec::new(), None, false);
        for (set, facts) in (0..).zip(facts.sets()) {
            match self.match_set(&input, facts, set, &mut met) {
                SetMatch::Decided => return,
                SetMatch::Exempt(entry) if facts.scope == Scope::Request => {
                    exempt.get_or_insert(entry);
                }
                SetMatch::Exempt(_) => {}
                SetMatch::Rules => is_limited |= facts.scope == Scope::Request,
            }
        }
        // If the whole request is exempt, each of its descriptors is.
        if let (Some(entry), false) = (exempt, is_limited) {
            self.early_decision = Some(DecidedBy::Exempt(entry));
            return;
        }
        if met.len() > bounds.max_checks {
            return self.deny_excess_checks(rules, met.len(), bounds);
        }
        self.missing.forget_replaced(rules, &met);
        self.add_sets(&input, &met);
        let found = self.enforced.checks.as_slice().len() + self.shadow.checks.as_slice().len();
        if found > bounds.max_checks {
            self.deny_excess_limits(rules, found, bounds);
        }
    }

    /// Finds the rules that apply to one set.
    fn match_set(
        &mut self,
        input: &MatchInput<'a, '_>,
        facts: &'a Facts<'a>,
        set: u32,
        met: &mut Vec<RuleMatch>,
    ) -> SetMatch {
        let MatchInput { rules, bounds, .. } = *input;
        let known = rules.look_up_facts(facts);
        let (slot, bytes) = known.longest;
        if bytes > bounds.fact_bytes {
            let most = bounds.fact_bytes;
            self.deny_excess(rules, ExceededBound::Fact { slot, bytes, most });
            return SetMatch::Decided;
        }
        let mut matching = Numbers::new();
        rules.matcher.candidates(&known, &mut matching);
        rules.matcher.keep_matching(&known, &mut matching);
        let first = rules.block_count + rules.exempt_count;
        let is_whole = facts.scope != Scope::Descriptor;
        if is_whole && let Some(tier) = self.match_tier(rules, &known) {
            matching.push(tier.saturating_add(to_u32(first)));
        }
        self.missing.is_unmatched &= matching.as_slice().is_empty();
        for number in matching.as_slice() {
            let number = *number as usize;
            let Some(rule) = number.checked_sub(first) else {
                match number.checked_sub(rules.block_count) {
                    // Each value by itself has to be exempt. A text that joins several values exempts none.
                    Some(_) if facts.scope == Scope::Joined => continue,
                    Some(entry) => return SetMatch::Exempt(entry),
                    // The block list applies to the whole request, not to its parts.
                    None if is_whole && self.is_decided_by_list(rules, number) => {
                        return SetMatch::Decided;
                    }
                    None => continue,
                }
            };
            if !is_whole && !names_descriptor(rules, number) {
                continue;
            }
            let (applied, number) = (&rules.rules[rule], to_u32(rule));
            match PrefetchedKeys::none().match_key(number, applied, &known, input.hashers) {
                Some(own) => met.push(RuleMatch {
                    facts_set: set,
                    ..own
                }),
                None if self.missing.keys.as_slice().contains(&number) => {}
                None => self.missing.keys.push(number),
            }
        }
        SetMatch::Rules
    }

    /// Adds the checks of the rules that apply to the sets and that no other rule replaces.
    fn add_sets(&mut self, input: &MatchInput<'a, '_>, met: &[RuleMatch]) {
        let MatchInput {
            rules,
            orders,
            facts,
            ..
        } = *input;
        let mut whole = facts
            .sets()
            .filter(|set| set.scope == Scope::Request)
            .peekable();
        let bypass = orders.and_then(|orders| {
            let first = orders.for_request(whole.peek()?).bypass?;
            let is_all = whole.all(|set| orders.for_request(set).bypass.is_some());
            is_all.then_some(first)
        });
        let scopes: Vec<_> = facts.sets().map(|set| set.scope).collect();
        let mut asked: Vec<SetCheck> = Vec::new();
        for (number, set) in (0..).zip(facts.sets()) {
            if let Some(orders) = orders {
                self.match_overrides(rules, orders, set, bypass);
            }
            let known = rules.look_up_facts(set);
            for own in met {
                if own.facts_set != number || is_replaced_in_set(rules, met, &scopes, own) {
                    continue;
                }
                let applied = &rules.rules[own.number as usize];
                // A bypass of one set doesn't apply to any other set.
                let rulings = orders.map(|orders| {
                    orders.for_key(Limiter::Applied(own.number), own.fingerprint, set)
                });
                let ordered = self.overrides.as_ref().and_then(|ordered| ordered.bypass);
                if ordered.is_some() || rulings.as_ref().is_some_and(|own| own.bypass.is_some()) {
                    self.add_rule(applied, *own, &known, None);
                    continue;
                }
                let limits = rulings
                    .and_then(|own| own.limits)
                    .map(std::sync::Arc::as_ptr);
                let cost = rule_cost(applied, stated_cost(applied, &known));
                match asked.iter_mut().find(|other| other.is_same(own, limits)) {
                    Some(other) => other.add_cost(cost, set.scope),
                    None => asked.push(SetCheck {
                        met: *own,
                        limits,
                        cost,
                    }),
                }
            }
        }
        self.ask_once(rules, facts, asked);
    }

    /// Adds the checks of each rule and key once, at the total cost of all sets.
    fn ask_once(
        &mut self,
        rules: &'a CompiledPolicy,
        facts: &'a Facts<'a>,
        mut asked: Vec<SetCheck>,
    ) {
        if let Some(ordered) = &mut self.overrides {
            // The sets that a bypass applies to were handled before.
            ordered.bypass = None;
        }
        // Sorted, so that a rule in shadow mode checks all of its keys together.
        asked.sort_by_key(|own| match own.met.mode {
            Mode::Shadow => own.met.number.saturating_add(1),
            Mode::Enforce | Mode::Off => 0,
        });
        for (place, own) in asked.iter().enumerate() {
            let Some(set) = facts.sets().nth(own.met.facts_set as usize) else {
                continue;
            };
            let (applied, known) = (
                &rules.rules[own.met.number as usize],
                rules.look_up_facts(set),
            );
            let counted = self.tally_rows.as_slice().len();
            self.add_rule(applied, own.met, &known, Some(own.cost));
            // A request counts once, however many keys of a rule it has.
            let is_counted = |other: &SetCheck| other.met.number == own.met.number;
            if asked[..place].iter().any(is_counted) {
                self.tally_rows.truncate(counted);
            }
        }
    }

    /// The number of the set of facts that a key was made from.
    pub(crate) fn facts_set_of(&self, key: &RequestKey<'_>) -> u32 {
        let first = self.all_facts;
        let place = first.and_then(|first| first.sets().position(|set| key.has_facts(set)));
        place
            .and_then(|place| u32::try_from(place).ok())
            .unwrap_or(0)
    }
}

/// Whether a rule has a condition on the keys of a descriptor.
fn names_descriptor(rules: &CompiledPolicy, number: usize) -> bool {
    let slot = rules.matcher.slots.number_of(DESCRIPTOR);
    slot.is_some_and(|slot| rules.matcher.has_condition_on(number, slot))
}

/// Whether another rule that applies replaces this one. Several sets about the whole request are independent: a rule
/// that matches one value doesn't replace a rule that matches another value.
fn is_replaced_in_set(
    rules: &CompiledPolicy,
    met: &[RuleMatch],
    scopes: &[Scope],
    own: &RuleMatch,
) -> bool {
    let is_part = |met: &RuleMatch| scopes.get(met.facts_set as usize) == Some(&Scope::Descriptor);
    met.iter().any(|other| {
        (other.facts_set == own.facts_set || is_part(own) || is_part(other))
            && replaces(rules, other, own.number, own.mode)
    })
}
