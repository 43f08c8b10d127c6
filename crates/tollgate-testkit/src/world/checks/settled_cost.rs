//! The final cost of a request whose cost was estimated: at least, at most, and when it was known.

use super::{CLOCK_TOLERANCE, CheckedLimit, ReportedDecision};
use crate::world::scenario::{EstimateSetting, FinalCost, LimitSort};

/// A report at a request's end has arrived by then, in addition to its time in the network.
const MAX_ARRIVAL_DELAY: u64 = 50_000;

/// The bounds of a cost.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cost {
    /// The least that counts in any case.
    pub(super) least: u64,
    /// The most that counts until it is settled, or if the settlement never arrived.
    pub(super) most: u64,
    /// The settlement, if no fault interfered.
    pub(super) settled: Option<SettledCost>,
}

/// The settlement of a cost.
#[derive(Clone, Copy, Debug)]
pub(super) struct SettledCost {
    /// The final charge.
    pub(super) spent: u64,
    /// The estimate is held until then.
    pub(super) out_until: u64,
    /// When it was reported: cost beyond the estimate is owed from then on.
    pub(super) said_at: u64,
}

/// When a request reported its cost, relative to its estimate's deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Timing {
    InTime,
    Late,
    /// Close to the deadline.
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
        // A request whose node died reported nothing.
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
        // A request that never ran may be refunded at any time.
        let is_spent_by_itself =
            !estimated.refunds && is_calm && told.ask.ends != FinalCost::Cancelled;
        let (spent, out_until) = match self.timing(told, late) {
            // Nothing is refunded any more.
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

    /// Whether a request reported its cost in time, for sure if reports take this long.
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

    /// When the store has received a report from a time, if each request queries it.
    pub(super) fn reported_at(&self, said_at: u64) -> u64 {
        let calls = self.answers().filter(|other| {
            // One query at a time.
            other.asked_at <= said_at + MAX_ARRIVAL_DELAY && said_at <= other.at + MAX_ARRIVAL_DELAY
        });
        let calls = u64::try_from(calls.count()).unwrap_or(u64::MAX);
        said_at + MAX_ARRIVAL_DELAY + (2 + calls) * 2 * self.case.setting().delay
    }

    /// Whether a fault lasted until then.
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
