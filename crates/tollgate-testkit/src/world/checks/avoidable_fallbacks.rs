//! No node decides locally while the store is reachable, even after the node was frozen; and after an outage
//! only for as long as its circuit stays open.

use super::fault_spells::{FaultKind, FaultSpell, GIVE_UP_TIME};
use super::{CheckContext, Fault, ReportedDecision};
use crate::world::scenario::{CountingChoice, Failure, LimitSort};

/// A circuit opens after this long without an answer.
const SILENT_FOR: u64 = 2_000_000;
/// Or after half of this many calls failed within the window.
const MIN_CALLS: usize = 20;
const CALLS_WITHIN: u64 = 5_000_000;
/// How long it stays open at first, and at most: the duration doubles each time the next call fails too.
const OPENS_FOR: u64 = 1_000_000;
const LONGEST_OPEN: u64 = 60_000_000;

pub(super) fn check_avoidable_fallbacks(case: CheckContext<'_>) -> Result<(), String> {
    let answers = case.record.answers.iter();
    for told in answers.filter(|told| told.fallback.is_some()) {
        if !is_excused(case, told) {
            return Err(format!(
                "decided without a store that could be asked: {told:?}"
            ));
        }
        if has_answer(case, told) {
            return Err(format!(
                "decided without the answer that was there: {told:?}"
            ));
        }
    }
    Ok(())
}

/// Whether all queries of a node had an answer when it decided locally: if one query is enough, and no
/// connection was being made.
fn has_answer(case: CheckContext<'_>, told: &ReportedDecision) -> bool {
    let [rule] = &case.setting().rules[..] else {
        return false;
    };
    let is_one = case.setting().shards == 1
        && rule.counted == CountingChoice::Exact
        && !rule.has_leases()
        && rule.waits.is_none()
        && rule.failure != Failure::Breaks
        && rule.sort != LimitSort::Quota("hour");
    let recent = told.asked_at.saturating_sub(GIVE_UP_TIME);
    let is_cut = spells_felt_by(case, told)
        .any(|spell| spell.ill != FaultKind::Stopped && spell.to >= recent);
    let mut exchanges = case.record.exchanges.iter().filter(|exchange| {
        exchange.node == told.ask.node && recent <= exchange.at && exchange.at <= told.at
    });
    let mut was_asked = false;
    let is_answered = exchanges.all(|exchange| {
        was_asked |= exchange.at >= told.asked_at;
        exchange.back.is_some_and(|back| back <= told.at)
    });
    is_one && !is_cut && was_asked && is_answered
}

/// Whether the store was unreachable, or its circuit may have been open.
fn is_excused(case: CheckContext<'_>, told: &ReportedDecision) -> bool {
    let stepped = case.record.faults.iter().any(|(at, fault)| {
        matches!(fault, Fault::Stepped(_))
            && case.first_possible_attempt(told) <= *at
            && *at <= told.at
    });
    if stepped || is_crowded(case, told) {
        // A calendar that is queried twice may be of another period twice.
        return true;
    }
    let mut outage: Option<(u64, u64)> = None;
    let is_probed = is_probed(case, told);
    for spell in spells_felt_by(case, told) {
        let until = spell.felt_until(case) + frozen(case, told, spell.from);
        outage = match outage {
            Some((from, to)) if spell.from <= to + stays_open(case, told, from, to) => {
                Some((from, to.max(until)))
            }
            _ => Some((spell.from, until)),
        };
    }
    outage.is_some_and(|(from, to)| {
        let stays_open = stays_open(case, told, from, to);
        case.first_possible_attempt(told) <= to + stays_open || (stays_open > 0 && is_probed)
    })
}

/// Whether another query was in flight: while a circuit is open, one request at a time probes whether it may
/// close, and that may take long.
fn is_probed(case: CheckContext<'_>, told: &ReportedDecision) -> bool {
    let mut answers = case.record.answers.iter();
    answers.any(|other| {
        other.ask.node == told.ask.node
            && (other.fallback.is_none() || other.asked_at < other.at)
            && other.asked_at <= told.at
            && told.asked_at <= other.at
    })
}

/// Whether so many requests came to a node that they may have waited for each other: only one at a time refills
/// a lease.
fn is_crowded(case: CheckContext<'_>, told: &ReportedDecision) -> bool {
    let at_once = case.record.answers.iter().filter(|other| {
        other.ask.node == told.ask.node && other.asked_at <= told.at && told.asked_at <= other.at
    });
    let at_once = u64::try_from(at_once.count()).unwrap_or(u64::MAX);
    let leased = case.setting().rules.iter();
    let mut leased = leased.filter(|rule| rule.has_leases());
    leased.next().is_some() && at_once * 2 * case.setting().delay >= case.setting().timeout * 400
}

/// The faults that kept a node from querying the store, until its answer.
fn spells_felt_by<'a>(
    case: CheckContext<'a>,
    told: &'a ReportedDecision,
) -> impl Iterator<Item = &'a FaultSpell> {
    let spells = case.spells.iter();
    spells.filter(|spell| {
        spell.ill != FaultKind::Frozen && spell.hits(told.ask.node) && spell.from <= told.at
    })
}

/// How long a node was frozen since then.
fn frozen(case: CheckContext<'_>, told: &ReportedDecision, since: u64) -> u64 {
    let spells = case.spells.iter().filter(|spell| {
        spell.ill == FaultKind::Frozen && spell.hits(told.ask.node) && spell.to >= since
    });
    spells.map(|spell| spell.to - spell.from).sum()
}

/// How long a circuit may stay open after an outage.
fn stays_open(case: CheckContext<'_>, told: &ReportedDecision, from: u64, to: u64) -> u64 {
    let rules = case.setting().rules.iter().enumerate();
    let mut rules =
        rules.filter(|(number, rule)| rule.meets(*number, &told.ask) && !rule.is_shadow());
    let breaks = rules
        .all(|(_, rule)| rule.counted == CountingChoice::Local || rule.failure == Failure::Breaks);
    let earlier = from.saturating_sub(CALLS_WITHIN);
    let answered = case
        .record
        .answers
        .iter()
        .map(|other| (other.ask, other.asked_at));
    let unanswered = case.record.unanswered.iter();
    let asked = answered.chain(unanswered.map(|other| (other.ask, other.asked_at)));
    let calls = asked
        .filter(|(ask, at)| ask.node == told.ask.node && earlier <= *at && *at <= to)
        .count();
    let may_open = breaks && (to - from >= SILENT_FOR || calls >= MIN_CALLS);
    if may_open {
        (to - from + OPENS_FOR).min(LONGEST_OPEN)
    } else {
        0
    }
}
