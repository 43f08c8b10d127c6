//! No request is denied while the store has room: neither after a limit was raised or reset, nor because other
//! requests were denied.

use super::bucket::{Bucket, units};
use super::settled_cost::SettledCost;
use super::{CLOCK_TOLERANCE, CheckedLimit, Fault, ReportedDecision};
use crate::world::scenario::{Amount, CountingChoice, LimitSort, RefundEvent};

/// After a fault, whatever was in flight has arrived by then, or never will.
const MAX_ARRIVAL_DELAY: u64 = 2_000_000;
/// How long a denial is repeated before the store is queried again.
const DENIAL_REPEATED_FOR: u64 = 1_000_000;
/// A permit that was released is free by then.
const REFUND_DELAY: u64 = 50_000;

impl CheckedLimit<'_> {
    pub(super) fn check_denials(&self) -> Result<(), String> {
        if self.rule.counted == CountingChoice::Local {
            return Ok(());
        }
        let refused = self.answers().filter(|told| {
            !told.allowed
                && told.fallback.is_none()
                && told.rule == Some(self.number)
                && told.decision.outcome == tollgate_core::Outcome::Denied
                // Of several limits it isn't known which one decided.
                && self.rule.versions[told.version].len() == 1
                && !self.may_be_queued_behind(told)
                && !self.case.is_of_two_versions(told)
        });
        for told in refused {
            let Some(mut amount) = self.rule.of_period(told.version, self.period) else {
                continue;
            };
            if let Some((count, _)) = self.rule.adjusted_cost(told.version, told.ask.brings) {
                amount.count = count;
            }
            let has_room = match self.rule.sort {
                LimitSort::Level(_) => self.level_has_room(told, amount),
                LimitSort::Window(_) | LimitSort::Quota(_) => self.window_has_room(told, amount),
                LimitSort::Slots => self.slots_have_room(told, amount),
            };
            if has_room {
                return Err(format!("refused by a limit with room: {told:?}"));
            }
        }
        Ok(())
    }

    /// What may have been charged before this denial, and when at the latest.
    fn charges(&self, told: &ReportedDecision) -> Vec<(u64, u64)> {
        let setting = self.case.setting();
        let answered = self.answers().filter(|other| {
            other.asked_at <= told.at
                && !std::ptr::eq(*other, told)
                && (self.is_charged(other) || self.may_be_charged(other, told))
        });
        let answered = answered.flat_map(|other| self.charged_by(other, told));
        let unanswered = self
            .case
            .record
            .unanswered
            .iter()
            .filter(|other| other.asked_at <= told.at && self.counts_request(&other.ask));
        let late = 2 * setting.timeout * 1000;
        let unanswered = unanswered.map(|other| {
            let at = other.asked_at + other.ask.patience.unwrap_or(0) + late;
            (at, other.ask.cost)
        });
        let mut charges: Vec<_> = answered.chain(unanswered).collect();
        charges.extend(self.lost_by_freezes(told));
        if let Some(reset_at) = self.reset_before(told) {
            charges.retain(|(at, _)| *at >= reset_at);
        }
        charges
            .iter_mut()
            .for_each(|(at, _)| *at = (*at).min(told.asked_at));
        charges.sort_unstable();
        charges
    }

    /// Whether a charge that another limit denied may still count here at this denial. A lease is charged while
    /// the other limits are queried, and refunded later: until then, and for as long as a node remembers a
    /// denial that followed. Other limits are charged only if the limits of a request aren't on one node of the
    /// store.
    fn may_be_charged(&self, other: &ReportedDecision, told: &ReportedDecision) -> bool {
        let setting = self.case.setting();
        let alone = setting.rules.len() == 1 && self.rule.amounts().count() == setting.versions;
        if alone || other.decision.outcome == tollgate_core::Outcome::Never {
            return false;
        }
        if self.rule.has_leases() {
            let (known, back) = (self.lease_life(), 4 * setting.delay + CLOCK_TOLERANCE);
            return other.at + known + back >= told.asked_at;
        }
        // One part of the store is charged after the other, and refunded once a later one denies, unless a
        // fault prevents it.
        let back = 4 * setting.delay + CLOCK_TOLERANCE;
        setting.shards > 1 && (self.has_trouble_until(told.at) || other.at + back >= told.asked_at)
    }

    /// Whether others may have been before it in the queue.
    fn may_be_queued_behind(&self, told: &ReportedDecision) -> bool {
        let asked = self
            .case
            .record
            .answers
            .iter()
            .map(|other| (other.ask, other.asked_at, other.at));
        let unanswered = self.case.record.unanswered.iter();
        let unanswered = unanswered.map(|other| {
            let patience = other.ask.patience.unwrap_or(u64::MAX / 2);
            (other.ask, other.asked_at, other.asked_at + patience)
        });
        let mut others = asked.chain(unanswered).filter(|(ask, from, to)| {
            ask.node == told.ask.node && *from <= told.at && told.asked_at <= *to
        });
        // One of them is the request itself.
        self.case.setting().longest_wait() > 0 && others.nth(1).is_some()
    }

    /// What another request was charged before this denial. Held costs don't drain, and a cost that isn't known
    /// to be settled may be held.
    fn charged_by(&self, other: &ReportedDecision, told: &ReportedDecision) -> Vec<(u64, u64)> {
        let cost = self.expected_cost(other);
        if self.rule.estimated.is_none() || !other.allowed {
            return vec![(other.at, cost.most)];
        }
        let reported_at = other.ended_at.map(|at| self.reported_at(at));
        match (cost.settled, reported_at.filter(|at| *at <= told.asked_at)) {
            // Cost beyond the estimate is paid when there is room.
            (Some(SettledCost { spent, .. }), Some(reported_at)) => {
                let beyond = spent.saturating_sub(other.ask.cost);
                vec![(reported_at, spent - beyond), (u64::MAX, beyond)]
            }
            _ => vec![(u64::MAX, cost.most)],
        }
    }

    /// How much a lease may have held that expired while its node was frozen: the node's tokens, and those that
    /// it had requested.
    fn lost_by_freezes(&self, told: &ReportedDecision) -> Vec<(u64, u64)> {
        let mut lost = Vec::new();
        for (at, fault) in &self.case.record.faults {
            let Fault::Frozen(node) = fault else { continue };
            let asked = self.answers().filter(|other| {
                other.ask.node == *node && other.asked_at <= *at && *at <= other.at
            });
            let asked: u64 = asked.map(|other| other.ask.cost).sum();
            if self.rule.has_leases() && *at <= told.at {
                lost.push((*at, self.leased_by_one() + asked));
            }
        }
        lost
    }

    /// When everything was last reset, as far as this node must know: then nothing from before matters. A node
    /// learns of another node's reset once a remembered denial or a lease needs a query.
    fn reset_before(&self, told: &ReportedDecision) -> Option<u64> {
        let record = self.case.record;
        let mut answers = record.answers.iter();
        if answers.any(|other| other.fallback.is_some() && other.at <= told.at) {
            // What was decided without the store is reported to it at some time.
            return None;
        }
        let resets = record.gifts.iter().filter(|given| {
            let RefundEvent {
                node,
                rule,
                who,
                units,
            } = given.gift;
            let known_after = if node == told.ask.node {
                0
            } else {
                let asks = 2 * self.case.setting().timeout * 1_000 + CLOCK_TOLERANCE;
                self.lease_life().max(DENIAL_REPEATED_FOR) + asks
            };
            rule == self.number
                && who == self.key
                && units.is_none()
                && given.to.is_some_and(|to| to + known_after < told.asked_at)
        });
        resets.map(|given| given.from).max()
    }

    /// When a fault last occurred before a time, or a decision was made without the store.
    fn troubled_at(&self, told: &ReportedDecision) -> Option<u64> {
        let record = self.case.record;
        let is_slots = self.rule.sort == LimitSort::Slots;
        let faults = record.faults.iter().filter_map(|(at, fault)| match fault {
            // The next request notices it, however late that is.
            Fault::Stepped(by) if *by < 0 && *at <= told.at => Some(if is_slots {
                self.next_asked(*at).unwrap_or(told.at)
            } else {
                told.at
            }),
            // The state in the store stays there.
            Fault::Frozen(_) if !is_slots => None,
            _ => Some(*at),
        });
        let own = record
            .answers
            .iter()
            .filter(|other| other.fallback.is_some());
        let all = faults.chain(own.map(|other| other.at));
        let last = all.filter(|at| *at <= told.at).max();
        last.map(|at| at + MAX_ARRIVAL_DELAY)
    }

    /// When the store was first queried about it after a time.
    fn next_asked(&self, after: u64) -> Option<u64> {
        let mut asked = self
            .answers()
            .filter(|other| other.fallback.is_none() && other.asked_at > after);
        asked.next().map(|other| other.at)
    }

    fn level_has_room(&self, told: &ReportedDecision, amount: Amount) -> bool {
        let late = match self.rule.counted {
            CountingChoice::Leased => self.lease_life(),
            _ => 0,
        };
        // A lease is charged once the cost is known, and a node may remember a denial for as long again.
        let Some(now) = told.asked_at.checked_sub(late) else {
            return false;
        };
        let same = |other: &Amount| other.period == self.period;
        let slowest = self
            .rule
            .amounts()
            .filter(|other| same(other))
            .map(|other| other.count);
        let slowest = Amount {
            count: slowest.min().unwrap_or(0),
            ..amount
        };
        let mut trouble = self.troubled_at(told).map(|at| at + late);
        if trouble.is_some_and(|at| at > now) {
            return false;
        }
        let (mut owed, mut recent, mut last) = (Bucket::default(), 0, 0);
        for (at, cost) in self.charges(told) {
            if at + late > now {
                recent += cost;
                continue;
            }
            if let Some(trouble) = trouble.take_if(|trouble| *trouble <= at + late) {
                owed.forget(trouble, MAX_AMOUNT);
            }
            owed.charge(at + late, cost, slowest);
            last = at + late;
        }
        if let Some(trouble) = trouble {
            owed.forget(trouble, MAX_AMOUNT);
            last = last.max(trouble);
        }
        // A limit decides by its own bucket, and drains it by its own rate: since the last report to the store,
        // which nodes with leases make by themselves.
        let capacity = units(amount.burst, amount);
        let judged = match self.rule.counted {
            CountingChoice::Leased => {
                owed.drain(now, slowest);
                owed.debt.min(capacity)
            }
            _ => {
                let drained = u128::from(now - last) * u128::from(amount.count);
                owed.debt.min(capacity).saturating_sub(drained)
            }
        };
        // A node spends or returns its own tokens before a denial.
        let own = match self.case.setting().versions {
            1 => self.leased_by_one(),
            _ => 0,
        };
        let beside = recent + self.leased_by_all() - own + told.ask.cost;
        judged + units(beside, amount) <= capacity
    }

    fn window_has_room(&self, told: &ReportedDecision, amount: Amount) -> bool {
        let from = told.asked_at.saturating_sub(2 * amount.period);
        if self.troubled_at(told).is_some_and(|at| at >= from) {
            return false;
        }
        let charges = self.charges(told).into_iter();
        let counted = charges.filter(|(at, _)| *at >= from);
        counted.map(|(_, cost)| cost).sum::<u64>() + told.ask.cost <= amount.count
    }

    fn slots_have_room(&self, told: &ReportedDecision, amount: Amount) -> bool {
        let (record, slot_life) = (self.case.record, self.case.setting().slot_life * 1000);
        let from = told.asked_at.saturating_sub(2 * slot_life);
        if self.troubled_at(told).is_some_and(|at| at >= from)
            || self.case.setting().rules.len() > 1
        {
            return false;
        }
        let held = self.passed().filter(|other| {
            other.asked_at <= told.at
                && other
                    .ended_at
                    .is_none_or(|at| at + REFUND_DELAY >= told.asked_at)
        });
        let unanswered = record
            .unanswered
            .iter()
            .filter(|other| other.asked_at <= told.at && other.asked_at >= from);
        let held = held.count() + unanswered.count();
        u64::try_from(held).unwrap_or(u64::MAX) < amount.count
    }
}

/// More than any bucket holds.
const MAX_AMOUNT: Amount = Amount {
    count: 1,
    period: 1 << 40,
    burst: 1 << 40,
};
