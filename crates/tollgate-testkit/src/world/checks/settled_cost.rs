//! What a request costs in the end, where that was an estimate: at least, at most, and when it was known.

use super::{CLOCK_TOLERANCE, CheckedLimit, ReportedDecision};
use crate::world::scenario::{EstimateSetting, FinalCost, LimitSort};

/// What is said to the store when a request ends has arrived by then, beside the time it takes on its way.
const MAX_ARRIVAL_DELAY: u64 = 50_000;

/// How a cost counts.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cost {
    /// In any case.
    pub(super) least: u64,
    /// Until it is settled, and if that was never heard of.
    pub(super) most: u64,
    /// What was said without trouble.
    pub(super) settled: Option<SettledCost>,
}

/// What was said of a cost.
#[derive(Clone, Copy, Debug)]
pub(super) struct SettledCost {
    /// What is charged in the end.
    pub(super) spent: u64,
    /// Until then its estimate is out.
    pub(super) out_until: u64,
    /// When it was said: what it cost beyond its estimate is owed from then on.
    pub(super) said_at: u64,
}

/// When a request said what it cost, by the time that its estimate had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Timing {
    InTime,
    Late,
    /// About when that time was over.
    Unsure,
}

impl CheckedLimit<'_> {
    pub(super) fn expected_cost(&self, told: &ReportedDecision) -> Cost {
        let held = told.ask.cost;
        let known = Cost {
            least: held,
            most: held,
            settled: None,
        };
        // A request whose node died said nothing.
        let (Some(estimated), Some(said_at)) = (self.rule.estimated, told.ended_at) else {
            return known;
        };
        let spent = match told.ask.ends {
            FinalCost::Cost(spent) => spent,
            FinalCost::Unsaid if estimated.refunds => 0,
            FinalCost::Unsaid => held,
            FinalCost::Cancelled => 0,
        };
        let late = self.case.setting().timeout * 1_000 + MAX_ARRIVAL_DELAY;
        let is_calm = !self.has_trouble_until(said_at + 2 * late) && told.fallback.is_none();
        let ends_at = self.case.first_possible_attempt(told) + estimated.within * 1_000;
        // What never ran may come back at any time.
        let is_spent_by_itself =
            !estimated.refunds && is_calm && told.ask.ends != FinalCost::Cancelled;
        let (spent, out_until) = match self.timing(told, late) {
            // Nothing comes back any more.
            Timing::Late if is_spent_by_itself => (spent.max(held), ends_at.max(told.at)),
            Timing::Late if is_calm && estimated.refunds => (spent, said_at),
            Timing::InTime => (spent, said_at),
            Timing::Late | Timing::Unsure => {
                return Cost {
                    least: held.min(spent),
                    most: held.max(spent),
                    settled: None,
                };
            }
        };
        let settled = SettledCost {
            spent,
            out_until,
            said_at,
        };
        Cost {
            least: held.min(spent),
            most: held.max(spent),
            settled: is_calm.then_some(settled),
        }
    }

    /// Whether a request said in time what it cost, for sure if that takes so long to arrive.
    pub(super) fn timing(&self, told: &ReportedDecision, late: u64) -> Timing {
        let (Some(EstimateSetting { within, .. }), Some(said_at)) =
            (self.rule.estimated, told.ended_at)
        else {
            return Timing::Unsure;
        };
        let within = within * 1_000;
        if said_at + late < self.case.first_possible_attempt(told) + within {
            Timing::InTime
        } else if said_at > told.at + within + CLOCK_TOLERANCE {
            Timing::Late
        } else {
            Timing::Unsure
        }
    }

    /// When the store has heard of what was said at a time, where each request is asked about.
    pub(super) fn reported_at(&self, said_at: u64) -> u64 {
        let calls = self.answers().filter(|other| {
            // One at a time asks.
            other.asked_at <= said_at + MAX_ARRIVAL_DELAY && said_at <= other.at + MAX_ARRIVAL_DELAY
        });
        let calls = u64::try_from(calls.count()).unwrap_or(u64::MAX);
        said_at + MAX_ARRIVAL_DELAY + (2 + calls) * 2 * self.case.setting().delay
    }

    /// Whether something was wrong until then.
    pub(super) fn has_trouble_until(&self, at: u64) -> bool {
        let record = self.case.record;
        let is_before = |fault: &u64| *fault <= at;
        record.faults.iter().any(|(fault, _)| is_before(fault))
            || record.gifts.iter().any(|given| is_before(&given.from))
            || record
                .answers
                .iter()
                .any(|told| told.fallback.is_some() && told.at <= at)
    }

    /// What requests held of it at a time.
    pub(super) fn held_at(&self, at: u64) -> u64 {
        if self.rule.estimated.is_none() || !matches!(self.rule.sort, LimitSort::Level(_)) {
            return 0;
        }
        let held = self.answers().filter(|told| {
            told.allowed
                && told.asked_at <= at
                && told
                    .ended_at
                    .is_none_or(|end| at <= end + self.lease_life())
        });
        held.map(|told| told.ask.cost.max(self.expected_cost(told).most))
            .sum()
    }
}
