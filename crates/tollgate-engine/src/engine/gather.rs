//! From facts to checks: which rules a request meets, and what each asks.
//!
//! A match is a rule's number, its limits, a key and a cost, wherever it came from: everything after
//! this file knows no more of it.

use std::hint::black_box;
use std::num::{IntErrorKind, ParseIntError};

use tollgate::Timestamp;

use super::bounds::{Bounds, Excess};
use super::orders::InForce;
use super::overload::GateCheck;
use super::rules::{Applied, Rules};
use super::warm::is_gate;
use crate::backend::Backend;
use crate::facts::Facts;
use crate::limits::{Check, KeyHashers, Limit, LimitKind, RequestKey};
use crate::matcher::few::Few;
use crate::matcher::{Known, Numbers};
use crate::policy::Mode;
use crate::tally::UNCOUNTED;
use crate::verdict::By;

mod more;
mod ordered;

pub(crate) use ordered::{Ordered, blocked_until};

/// Checks that need no memory.
const INLINE: usize = 8;

/// What is to be asked about a request.
pub(crate) struct Gathered<'a> {
    /// Decided without any check.
    pub(crate) settled: Option<By>,
    /// What the request has too much of, if the policy were enforced.
    pub(crate) shadow_excess: Option<Excess>,
    /// What would be blocked, if the policy were enforced.
    pub(crate) shadow_block: Option<usize>,
    pub(crate) enforced: Group<'a>,
    /// Each rule by itself.
    pub(crate) shadow: Group<'a>,
    /// The first rule that applies, if none asks anything.
    pub(crate) unasked: Option<Met>,
    /// The time, if a rule of the policy warms up.
    pub(crate) now: Option<Timestamp>,
    /// Where the rules in force are counted, if they are.
    pub(crate) counted: Few<u32, INLINE>,
    /// What operators have ordered, if there are any orders.
    pub(crate) ordered: Option<Box<Ordered<'a>>>,
    /// Gates that are to be entered before anything is asked. They are numbered after the checks in force.
    #[expect(
        clippy::box_collection,
        reason = "most requests meet none, and pay for one word"
    )]
    pub(crate) gates: Option<Box<Vec<GateCheck<'a>>>>,
}

/// A rule that applies to a request, by number, and the fingerprint of its key there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Met {
    pub(crate) number: u32,
    pub(crate) fingerprint: [u64; 2],
}

/// The checks of some rules.
pub(crate) struct Group<'a> {
    pub(crate) checks: Few<Check<'a>, INLINE>,
    /// Which rule asks each.
    pub(crate) askers: Few<u32, INLINE>,
}

impl Group<'_> {
    const fn new() -> Self {
        Self {
            checks: Few::new(),
            askers: Few::new(),
        }
    }

    /// The place of a check of the same limit and key.
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

impl<'a> Gathered<'a> {
    pub(crate) const fn new() -> Self {
        Self {
            settled: None,
            shadow_excess: None,
            shadow_block: None,
            enforced: Group::new(),
            shadow: Group::new(),
            unasked: None,
            now: None,
            counted: Few::new(),
            ordered: None,
            gates: None,
        }
    }

    /// The gates of rules in this mode, each with its number.
    pub(crate) fn gates_in(&self, mode: Mode) -> impl Iterator<Item = (usize, &GateCheck<'a>)> {
        let first = self.enforced.checks.as_slice().len();
        let gates = self.gates.as_deref().into_iter().flatten();
        let gates = gates.enumerate().filter(move |(_, gate)| gate.mode == mode);
        gates.map(move |(number, gate)| (first + number, gate))
    }

    /// The gate of this number.
    pub(crate) fn gate(&self, number: usize) -> Option<&GateCheck<'a>> {
        let number = number.checked_sub(self.enforced.checks.as_slice().len())?;
        self.gates.as_ref()?.get(number)
    }

    /// Finds out what is to be asked about a request.
    #[inline]
    pub(crate) fn fill(
        &mut self,
        (rules, orders): (&'a Rules, Option<InForce<'a>>),
        facts: &'a Facts<'a>,
        (hashers, bounds): (&KeyHashers, &Bounds),
        backend: &impl Backend,
    ) {
        if let Some(orders) = orders {
            self.heed(rules, orders, facts);
        }
        let mut known = Known::new(rules.matcher.slots(), facts);
        known.look_up();
        let (slot, bytes) = known.longest();
        if bytes > bounds.fact_bytes {
            let most = bounds.fact_bytes;
            return self.exceed(rules, Excess::Fact { slot, bytes, most });
        }
        known.read_addresses();
        let mut matching = Numbers::new();
        rules.matcher.candidates(&known, &mut matching);
        let first = rules.block + rules.exempt;
        let early = Early::of(rules, matching.as_slice(), &known, (hashers, backend));
        rules.matcher.keep_matching(&known, &mut matching);
        if let Some(tier) = tier(rules, &known) {
            matching.push(tier.saturating_add(u32::try_from(first).unwrap_or(u32::MAX)));
        }
        if matching.as_slice().len() > bounds.checks {
            let numbers = matching.as_slice().iter();
            let found = numbers.filter(|number| **number as usize >= first).count();
            if found > bounds.checks {
                return self.exceed_checks(rules, found, bounds);
            }
        }
        if rules.warms {
            self.now = Some(backend.now());
        }
        let mut met = Few::<(Met, Mode), INLINE>::new();
        for number in matching.as_slice() {
            let number = *number as usize;
            let Some(rule) = number.checked_sub(first) else {
                if self.is_settled(rules, number) {
                    return;
                }
                continue;
            };
            let applied = &rules.applied[rule];
            let Some(own) = meet(rule, applied, (&early, hashers), (&known, facts)) else {
                continue;
            };
            if rules.replacing {
                met.push(own);
            } else {
                self.ask(applied, own, &known, facts);
            }
        }
        if rules.replacing {
            self.ask_those_left(rules, met.as_slice(), &known, facts);
        }
        let found = self.enforced.checks.as_slice().len() + self.shadow.checks.as_slice().len();
        if found > bounds.checks {
            self.exceed_limits(rules, found, bounds);
        }
    }

    /// There are so many checks; gates are no limits of the request, and aren't counted.
    #[cold]
    fn exceed_limits(&mut self, rules: &Rules, found: usize, bounds: &Bounds) {
        let checks = [&self.enforced, &self.shadow].map(|group| group.checks.as_slice());
        let gates = checks.into_iter().flatten();
        let gates = gates.filter(|check| is_gate(check.limit)).count();
        if found - gates > bounds.checks {
            self.exceed_checks(rules, found - gates, bounds);
        }
    }

    #[cold]
    fn exceed_checks(&mut self, rules: &Rules, found: usize, bounds: &Bounds) {
        let most = bounds.checks;
        self.exceed(rules, Excess::Checks { found, most });
    }

    /// Asks nothing, as the request has too much of something.
    #[cold]
    fn exceed(&mut self, rules: &Rules, excess: Excess) {
        (self.enforced, self.shadow, self.gates) = (Group::new(), Group::new(), None);
        self.settled = Some(match rules.mode {
            Mode::Enforce => By::Excess(excess),
            Mode::Shadow => {
                self.shadow_excess = Some(excess);
                By::Nothing
            }
            Mode::Off => By::Nothing,
        });
    }

    /// Whether an entry of the lists of what is blocked and exempt decides.
    #[cold]
    fn is_settled(&mut self, rules: &Rules, entry: usize) -> bool {
        self.settled = match entry.checked_sub(rules.block) {
            Some(entry) => Some(By::Exempt(entry)),
            None if rules.mode == Mode::Enforce => Some(By::Block(entry)),
            None => {
                self.shadow_block.get_or_insert(entry);
                None
            }
        };
        self.settled.is_some()
    }

    /// Adds the checks of rules that no other takes the place of.
    #[inline(never)]
    fn ask_those_left(
        &mut self,
        rules: &'a Rules,
        met: &[(Met, Mode)],
        known: &Known<'_, '_>,
        facts: &'a Facts<'a>,
    ) {
        for (one, mode) in met {
            if !is_replaced(rules, met, (one.number, *mode)) {
                let applied = &rules.applied[one.number as usize];
                self.ask(applied, (*one, *mode), known, facts);
            }
        }
    }

    /// Adds the checks of one rule.
    #[inline(always)]
    fn ask(
        &mut self,
        rule: &'a Applied,
        own: (Met, Mode),
        known: &Known<'_, '_>,
        facts: &'a Facts<'a>,
    ) {
        if self.ordered.is_some() {
            self.ask_as_ordered(rule, own, known, facts);
        } else {
            self.ask_limits(rule, rule.limits.as_slice(), own, (known, facts));
        }
    }

    /// Adds the checks of some limits of a rule.
    #[inline(always)]
    fn ask_limits(
        &mut self,
        rule: &'a Applied,
        limits: &'a [Limit],
        (met, mode): (Met, Mode),
        (known, facts): (&Known<'_, '_>, &'a Facts<'a>),
    ) {
        self.unasked.get_or_insert(met);
        if rule.tally != UNCOUNTED && mode == Mode::Enforce {
            self.counted.push(rule.tally);
        }
        let cost = rule.cost.and_then(|slot| cost_of(known.text(slot)?));
        let cost = cost.or(facts.cost()).unwrap_or(rule.default_cost);
        let cost = cost.max(u64::from(rule.is_estimated));
        let key = RequestKey::new(&rule.key, facts, met.fingerprint);
        for limit in limits {
            // A limit is likely in no cache, so it isn't read here.
            let check = Check { limit, key, cost };
            if rule.shares && self.is_asked((met.number, check), mode) {
                continue;
            }
            self.add(check, met.number, mode);
        }
        if rule.has_more {
            self.ask_more(rule, (met, mode), (key, cost), known);
        }
    }

    #[inline(always)]
    fn add(&mut self, check: Check<'a>, number: u32, mode: Mode) {
        let group = match mode {
            Mode::Enforce => &mut self.enforced,
            Mode::Shadow => &mut self.shadow,
            Mode::Off => return,
        };
        group.checks.push(check);
        group.askers.push(number);
    }

    /// Adds what stands beside the rates of a rule that isn't warm yet. A request that costs more than is let through
    /// at once takes all of that: it is for the rule itself to say what never passes.
    #[cold]
    fn ask_gates(
        &mut self,
        rule: &'a Applied,
        (number, mode): (u32, Mode),
        (key, cost): (RequestKey<'a>, u64),
    ) {
        for limit in rule.gates(self.now) {
            let most = match limit.kind() {
                LimitKind::Rate { rate, .. } => rate.burst_size(),
                _ => cost,
            };
            let cost = cost.min(most);
            self.add(Check { limit, key, cost }, number, mode);
        }
    }
}

impl<'a> Gathered<'a> {
    /// Whether another rule that shares the counter asks the same already. A request is charged to it once, at
    /// the highest of their costs, and by a rule in force rather than one in shadow. If one of them has estimated
    /// it, it is settled.
    #[cold]
    fn is_asked(&mut self, (number, check): (u32, Check<'a>), mode: Mode) -> bool {
        let in_force = self.enforced.find(&check);
        let (group, place) = match (mode, in_force, self.shadow.find(&check)) {
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
            group.askers.as_mut_slice()[place] = number;
        }
        true
    }
}

/// Keys of rules that may match, found before it is known whether they do: what the backend needs for
/// them is on its way meanwhile, and in no cache if there are many keys.
struct Early(Few<Met, INLINE>);

impl Early {
    #[inline]
    fn of(
        rules: &Rules,
        candidates: &[u32],
        known: &Known<'_, '_>,
        (hashers, backend): (&KeyHashers, &impl Backend),
    ) -> Self {
        let mut early = Self(Few::new());
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

/// A rule whose match a request has, and how it applies to the request's key; none if the request lacks a part of that.
#[inline(always)]
fn meet<'a>(
    number: usize,
    rule: &'a Applied,
    (early, hashers): (&Early, &KeyHashers),
    (known, facts): (&Known<'_, '_>, &'a Facts<'a>),
) -> Option<(Met, Mode)> {
    let number = u32::try_from(number).unwrap_or(u32::MAX);
    let fingerprint = match early.find(number) {
        Some(fingerprint) => fingerprint,
        None => late(rule, known, hashers)?,
    };
    let mode = rule.mode_for(&RequestKey::new(&rule.key, facts, fingerprint));
    let met = Met {
        number,
        fingerprint,
    };
    Some((met, mode))
}

/// The key of a tier, of one rule of very many that may match, or of a request that might be exempt.
#[inline(never)]
fn late(rule: &Applied, known: &Known<'_, '_>, hashers: &KeyHashers) -> Option<[u64; 2]> {
    rule.key.fingerprint(known, hashers)
}

#[inline]
fn tier(rules: &Rules, known: &Known<'_, '_>) -> Option<u32> {
    let tenant = known.text(rules.tiers.tenant?)?;
    rules.tiers.number(tenant, |slot| known.text(slot))
}

/// Whether another rule that applies takes its place. A rule in shadow takes only the place of others
/// in shadow.
#[inline]
fn is_replaced(rules: &Rules, met: &[(Met, Mode)], (number, mode): (u32, Mode)) -> bool {
    met.iter().any(|(other, its_mode)| {
        let other = &rules.applied[other.number as usize];
        *its_mode <= mode && other.replaces.contains(&number)
    })
}

fn is_too_large(error: &ParseIntError) -> bool {
    *error.kind() == IntErrorKind::PosOverflow
}

/// What a fact says that a request costs. A number that is too large counts as the largest, not as the default.
fn cost_of(text: &str) -> Option<u64> {
    match text.parse() {
        Ok(cost) => Some(cost),
        Err(error) if is_too_large(&error) => Some(u64::MAX),
        Err(_) => None,
    }
}
