//! Checks of a scenario's record: what may pass, and whether more did.
//!
//! They cover every window of every limit (the largest burst and the fastest rate in force in it, plus what a
//! stated fault allows), conservation, liveness, and what was reported to clients.

use std::fmt;

use tollgate_core::Outcome;
use tollgate_engine::policy::OnStoreFailure;

use super::scenario::{
    Amount, CountingChoice, Failure, LimitSort, Request, Rule, Scenario, ScenarioSettings,
};
use super::simulation::{Fault, Record, ReportedDecision};

mod admission_bound;
mod all_or_none;
mod avoidable_fallbacks;
mod bucket;
mod false_denials;
mod fault_spells;
mod local_decisions;
mod permits;
mod queue_order;
mod quiet_recovery;
mod settled_cost;
mod settlements;
mod tally_checks;
mod undisturbed_runs;

use fault_spells::FaultSpell;

/// Something that must not happen.
///
/// ```
/// use tollgate_testkit::world::Violation;
///
/// let violation = Violation { rule: Some(0), what: "two held one slot".to_owned() };
/// assert_eq!(violation.to_string(), "rule r0: two held one slot");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The rule, if it is about one.
    pub rule: Option<usize>,
    /// The description.
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.rule {
            Some(rule) => write!(f, "rule r{rule}: {}", self.what),
            None => f.write_str(&self.what),
        }
    }
}

/// Checks the record of a scenario.
///
/// # Errors
/// The first violation.
pub fn judge(story: &Scenario, record: &Record) -> Result<(), Violation> {
    let spells = &fault_spells::spells_of_scenario(story)[..];
    let case = CheckContext {
        story,
        record,
        spells,
    };
    for (number, rule) in story.setting.rules.iter().enumerate() {
        let of_rule = |what: String| Violation {
            rule: Some(number),
            what,
        };
        let keys = if rule.is_shared {
            1
        } else {
            story.setting.keys
        };
        let keys = 0..usize::try_from(keys).unwrap_or(1);
        for key in keys.filter(|key| rule.is_shared || rule.matches_request(*key)) {
            for period in rule.periods() {
                let limit = CheckedLimit {
                    case,
                    rule,
                    number,
                    period,
                    key,
                };
                limit.judge().map_err(of_rule)?;
            }
        }
    }
    let overall = |what: String| Violation { rule: None, what };
    case.failures().map_err(overall)?;
    avoidable_fallbacks::check_avoidable_fallbacks(case).map_err(overall)?;
    undisturbed_runs::check_undisturbed_runs(case).map_err(overall)?;
    queue_order::check_queue_order(case).map_err(overall)?;
    settlements::check_settlements(case).map_err(overall)?;
    all_or_none::check_all_or_none(case).map_err(overall)?;
    tally_checks::check_tallies(case).map_err(overall)?;
    quiet_recovery::check_quiet_recovery(case).map_err(overall)
}

/// A decision takes at most this many timeouts: for the store, and for the node itself.
const TIMEOUTS: u64 = 1;
/// Time advances by whole milliseconds, and several of them are rounded up.
const CLOCK_TOLERANCE: u64 = 4_000;

/// A scenario and its record.
#[derive(Clone, Copy)]
struct CheckContext<'a> {
    story: &'a Scenario,
    record: &'a Record,
    /// The faults with their times.
    spells: &'a [FaultSpell],
}

/// One rule's limit for one key.
#[derive(Clone, Copy)]
struct CheckedLimit<'a> {
    case: CheckContext<'a>,
    rule: &'a Rule,
    /// The rule's number.
    number: usize,
    /// Which of the rule's limits: each period is counted by itself.
    period: u64,
    key: usize,
}

impl<'a> CheckContext<'a> {
    fn setting(&self) -> &'a ScenarioSettings {
        &self.story.setting
    }

    /// Whether no fault occurs.
    fn is_calm(&self) -> bool {
        self.record.faults.is_empty() && self.record.gifts.is_empty()
    }

    /// How long an old version may still decide after a reload: for requests in flight.
    fn version_ends_at(&self) -> u64 {
        let latest = self
            .record
            .answers
            .iter()
            .map(|told| told.at - self.first_possible_attempt(told));
        latest.max().unwrap_or(0)
    }

    /// The earliest time of a request's last attempt. A waiting request is decided again and again.
    fn first_possible_attempt(&self, told: &ReportedDecision) -> u64 {
        let is_frozen = self.frozen_between(told.ask.node, told.asked_at, told.at) > 0;
        let longest = TIMEOUTS * self.setting().timeout * 1_000 + CLOCK_TOLERANCE;
        if self.setting().longest_wait() > 0 && !is_frozen {
            told.asked_at.max(told.at.saturating_sub(longest))
        } else {
            told.asked_at
        }
    }

    /// Whether it isn't known which version decided a request.
    fn is_of_two_versions(&self, told: &ReportedDecision) -> bool {
        self.setting().longest_wait() > 0 && told.version != told.last_version
    }

    /// Whether rules deny a request regardless of what remains.
    fn is_blocked(&self, ask: &Request) -> bool {
        ask.has_facts && self.setting().blocked == Some(ask.who)
    }

    /// How long the node was frozen within this time.
    fn frozen_between(&self, node: usize, from: u64, to: u64) -> u64 {
        let frozen = self.spells.iter().filter(|spell| spell.freezes(node));
        frozen
            .map(|spell| spell.to.min(to).saturating_sub(spell.from.max(from)))
            .sum()
    }

    /// A failure never looks like a denial, and a denial never like an admission. A denial means that too
    /// little remains and for how long, and "never" is only for requests that can never pass.
    fn failures(&self) -> Result<(), String> {
        for told in &self.record.answers {
            if self.is_blocked(&told.ask) {
                if told.allowed {
                    return Err(format!("it passed, though it is blocked: {told:?}"));
                }
                continue;
            }
            let decision = told.decision;
            let rule = told.rule.map(|rule| &self.setting().rules[rule]);
            let is_timed = rule.is_some_and(|rule| rule.sort != LimitSort::Slots);
            if decision.outcome == Outcome::Denied && is_timed && decision.wait_or_max().is_zero() {
                return Err(format!("refused, to come back at once: {told:?}"));
            }
            let is_counted = rule.is_some_and(|rule| rule.counted != CountingChoice::Leased);
            // A request behind others in the queue is denied whatever remains.
            let is_alone = self.setting().longest_wait() == 0;
            if decision.outcome == Outcome::Denied
                && is_counted
                && is_alone
                && decision.remaining >= told.ask.cost
            {
                return Err(format!("refused, with enough left: {told:?}"));
            }
            let is_refusal = !told.allowed && told.fallback.is_none();
            let was_reached = self
                .record
                .carried_out
                .iter()
                .any(|(at, node)| *at <= told.at && *node == told.ask.node);
            let is_local = |rule: &Rule| rule.counted == CountingChoice::Local;
            // The wait of a request behind others in the queue depends on them.
            if is_refusal && is_alone && !was_reached && !self.setting().rules.iter().any(is_local)
            {
                return Err(format!(
                    "a denial by a store that was never reached: {told:?}"
                ));
            }
            let is_closed = told.fallback == Some(OnStoreFailure::Closed);
            if told
                .status
                .is_some_and(|status| (status == 503) != is_closed)
            {
                return Err(format!(
                    "a failure that looks like a denial, or the other way round: {told:?}"
                ));
            }
            if is_closed && told.allowed {
                return Err(format!("it passed without a store, closed: {told:?}"));
            }
            let bursts = self.setting().rules.iter().flat_map(Rule::amounts);
            let least = bursts.map(|amount| amount.burst).min().unwrap_or(0);
            if told.decision.outcome == Outcome::Never
                && told.ask.cost <= least
                && self.setting().nodes == 1
            {
                return Err(format!("never, though it may pass: {told:?}"));
            }
        }
        Ok(())
    }
}

impl<'a> CheckedLimit<'a> {
    fn judge(&self) -> Result<(), String> {
        if self.rule.is_shadow() {
            // Which limits are charged while the store is unreachable isn't reported.
            let has_trouble = !self.case.record.faults.is_empty();
            return if has_trouble || self.rule.sort == LimitSort::Slots {
                Ok(())
            } else {
                self.check_bound()
            };
        }
        match self.rule.sort {
            LimitSort::Slots => self.check_permits()?,
            LimitSort::Level(_) | LimitSort::Window(_) | LimitSort::Quota(_) => {
                self.check_bound()?;
                self.check_local_decisions()?;
            }
        }
        self.check_denials()
    }

    /// The decisions about it, in their order.
    fn answers(&self) -> impl Iterator<Item = &'a ReportedDecision> {
        let answers = self.case.record.answers.iter();
        let own = *self;
        answers.filter(move |told| own.counts_request(&told.ask))
    }

    /// Whether it counts this request.
    fn counts_request(&self, ask: &Request) -> bool {
        self.rule.meets(self.number, ask) && (self.rule.is_shared || ask.who == self.key)
    }

    /// Whether it was charged a request's cost.
    fn is_charged(&self, told: &ReportedDecision) -> bool {
        match self.rule.leaf {
            None => told.allowed,
            Some(_) => (told.charged >> self.number) & 1 == 1,
        }
    }

    /// The requests that passed this limit, by the store or by a node itself.
    fn passed(&self) -> impl Iterator<Item = &'a ReportedDecision> {
        let own = *self;
        self.answers().filter(move |told| {
            own.is_charged(told) && own.rule.of_period(told.version, own.period).is_some()
        })
    }

    /// Whether it was counted nowhere: this rule let it pass because the store was unreachable.
    fn is_uncounted(&self, told: &ReportedDecision) -> bool {
        let is_open =
            self.rule.failure == Failure::Open && self.rule.counted != CountingChoice::Local;
        told.fallback.is_some() && is_open
    }

    /// Whether this node decided locally.
    fn is_local(&self, told: &ReportedDecision) -> bool {
        told.fallback.is_some() && !self.is_uncounted(told)
    }

    /// The versions that a node had between these times.
    fn versions_between(&self, from: u64, to: u64) -> impl Iterator<Item = usize> {
        let lingers = self.case.version_ends_at() + self.lease_life();
        let versions = &self.case.record.versions;
        let in_force = versions
            .iter()
            .enumerate()
            .filter(move |(number, (began, node, _))| {
                let next = versions[number + 1..]
                    .iter()
                    .find(|(_, other, _)| other == node);
                let ended = next.map_or(u64::MAX, |(at, _, _)| at.saturating_add(lingers));
                *began <= to && from <= ended
            });
        in_force.map(|(_, (_, _, version))| *version)
    }

    /// The largest burst and the highest count of those versions.
    fn allowed_between(&self, from: u64, to: u64) -> (u64, u64) {
        let versions = self.versions_between(from, to);
        let amounts = versions.filter_map(|version| self.rule.of_period(version, self.period));
        amounts.fold((0, 0), |(burst, count), amount| {
            (burst.max(amount.burst), count.max(amount.count))
        })
    }

    /// How long tokens that were leased under a version may be spent after another is in force.
    fn lease_life(&self) -> u64 {
        if self.rule.has_leases() {
            let longest = self.case.setting().lease_life.iter().max().copied();
            longest.unwrap_or(0) * 1000
        } else {
            0
        }
    }

    /// The most that a node holds of it in leases, whatever the version.
    fn leased_by_one(&self) -> u64 {
        let of = |amount: &Amount| (amount.burst / self.case.setting().lease_part).max(1);
        let amounts = self
            .rule
            .amounts()
            .filter(|amount| amount.period == self.period);
        // Of tokens that come back, a node keeps twice what it is likely to need.
        let twice = 1 + u64::from(self.rule.estimated.is_some());
        match self.rule.counted {
            CountingChoice::Leased => twice * amounts.map(of).sum::<u64>(),
            _ => 0,
        }
    }

    fn leased_by_all(&self) -> u64 {
        let nodes = u64::try_from(self.case.setting().nodes).unwrap_or(1);
        nodes * self.leased_by_one()
    }

    /// The most that operators may have refunded within a time. A reset counts as the whole burst.
    fn refunds_between(&self, from: u64, to: u64, all: u64) -> u64 {
        let gifts = self.case.record.gifts.iter().filter(|given| {
            let gift = given.gift;
            gift.rule == self.number
                && gift.who == self.key
                && given.from <= to
                && given.to.is_none_or(|at| from <= at)
        });
        gifts.map(|given| given.gift.units.unwrap_or(all)).sum()
    }

    fn faults_between(&self, from: u64, to: u64) -> impl Iterator<Item = &'a (u64, Fault)> {
        let faults = self.case.record.faults.iter();
        faults.filter(move |(at, _)| from <= *at && *at <= to)
    }
}
