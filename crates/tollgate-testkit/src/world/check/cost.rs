//! What a request costs in the end, where that was an estimate: at least, at most, and when it was known.

use super::{Limit, Told};
use crate::world::story::{Ends, Estimated, Sort};

/// What is said to the store when a request ends has arrived by then, beside the time it takes on its way.
const ARRIVES: u64 = 50_000;

/// How a cost counts.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cost {
    /// In any case.
    pub(super) least: u64,
    /// Until it is settled, and if that was never heard of.
    pub(super) most: u64,
    /// What was said in time and without trouble: how much, and when.
    pub(super) settled: Option<(u64, u64)>,
}

impl Limit<'_> {
    pub(super) fn cost(&self, told: &Told) -> Cost {
        let held = told.ask.cost;
        let Some(Estimated { within, refunds }) = self.rule.estimated else {
            let (least, most, settled) = (held, held, None);
            return Cost {
                least,
                most,
                settled,
            };
        };
        let spent = match told.ask.ends {
            Ends::Cost(spent) => spent,
            Ends::Unsaid if refunds => 0,
            Ends::Unsaid => held,
            Ends::Cancelled => 0,
        };
        // A request whose node died said nothing.
        let Some(ended_at) = told.ended_at else {
            let (least, most, settled) = (held, held, None);
            return Cost {
                least,
                most,
                settled,
            };
        };
        let late = self.case.setting().timeout * 1_000 + ARRIVES;
        let is_calm = !self.has_trouble_until(ended_at + 2 * late);
        let is_timely = ended_at + late < told.at + within * 1_000;
        Cost {
            least: held.min(spent),
            most: held.max(spent),
            settled: (is_calm && is_timely && told.fallback.is_none()).then_some((spent, ended_at)),
        }
    }

    /// When the store has heard of what was said at a time, where each request is asked about.
    pub(super) fn heard_at(&self, said_at: u64) -> u64 {
        let calls = self.answers().filter(|other| {
            // One at a time asks.
            other.asked_at <= said_at + ARRIVES && said_at <= other.at + ARRIVES
        });
        let calls = u64::try_from(calls.count()).unwrap_or(u64::MAX);
        said_at + ARRIVES + (2 + calls) * 2 * self.case.setting().delay
    }

    /// Whether something was wrong until then.
    fn has_trouble_until(&self, at: u64) -> bool {
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
        if self.rule.estimated.is_none() || !matches!(self.rule.sort, Sort::Level(_)) {
            return 0;
        }
        let held = self.answers().filter(|told| {
            told.allowed
                && told.asked_at <= at
                && told
                    .ended_at
                    .is_none_or(|end| at <= end + self.lease_life())
        });
        held.map(|told| told.ask.cost.max(self.cost(told).most))
            .sum()
    }
}
