//! A node that decides without the store starts from what the store had admitted through it before.

use super::bucket::{Bucket, units};
use super::{CheckedLimit, ReportedDecision};
use crate::world::scenario::{Amount, CountingChoice, Event, Failure, LimitSort};

impl CheckedLimit<'_> {
    /// Checks that each node's share of the limit has room for what the node admits locally, if all requests
    /// that passed through this node are charged, whoever admitted them; and that no request is denied for
    /// which it has room.
    pub(super) fn check_local_decisions(&self) -> Result<(), String> {
        let setting = self.case.setting();
        let is_judged = matches!(self.rule.failure, Failure::Local | Failure::Breaks)
            && self.rule.counted != CountingChoice::Local
            && matches!(self.rule.sort, LimitSort::Level(_))
            // What was recorded of those may come back, or not.
            && self.rule.estimated.is_none();
        // If a share changes, so do the records in it.
        let changes = setting.versions > 1 || setting.learns;
        let Some(whole) = self.rule.of_period(0, self.period) else {
            return Ok(());
        };
        if !is_judged || changes {
            return Ok(());
        }
        for node in 0..setting.nodes {
            let own: Vec<_> = self
                .answers()
                .filter(|told| told.ask.node == node)
                .collect();
            for life in own.chunk_by(|one, other| one.life == other.life) {
                self.check_process(life, self.local_part(whole))?;
            }
        }
        Ok(())
    }

    /// A node's share of a limit: twice the even share.
    pub(super) fn local_part(&self, whole: Amount) -> Amount {
        let nodes = u64::try_from(self.case.setting().nodes).unwrap_or(1);
        let part = |whole: u64| (2 * whole).div_ceil(nodes).min(whole);
        Amount {
            count: part(whole.count),
            burst: part(whole.burst),
            ..whole
        }
    }

    fn check_process(&self, answers: &[&ReportedDecision], part: Amount) -> Result<(), String> {
        // At least this much was recorded. A lease's spending may be recorded with the next report, in whole
        // tokens.
        let mut least = Bucket::default();
        let (token, is_leased) = (units(1, part), self.rule.counted == CountingChoice::Leased);
        for (place, told) in answers.iter().enumerate() {
            let is_own = self.is_local(told);
            if is_own && told.allowed {
                let fits = least.take(told.at, told.ask.cost, part);
                if !fits {
                    least.drain(told.at, part);
                    let over = least.debt + units(told.ask.cost, part) - units(part.burst, part);
                    if !is_leased || over > token {
                        return Err(format!(
                            "its part of {part:?} has no room left by what passed here: {told:?}"
                        ));
                    }
                    least.fill(told.at, told.ask.cost, part);
                }
            } else if told.allowed {
                least.fill(told.at, told.ask.cost, part);
            } else if is_own && self.is_decider(told) {
                self.check_denial(&answers[..place], told, part)?;
            }
        }
        Ok(())
    }

    /// Whether this limit is the only one that may have denied.
    fn is_decider(&self, told: &ReportedDecision) -> bool {
        told.rule == Some(self.number) && self.rule.versions[told.version].len() == 1
    }

    /// Checks that no node denies a request for which its share has room, with everything that may have been
    /// recorded.
    fn check_denial(
        &self,
        before: &[&ReportedDecision],
        told: &ReportedDecision,
        part: Amount,
    ) -> Result<(), String> {
        let case = self.case;
        let of_node = |event: &Event| match event {
            // A request that was cancelled may have been counted.
            Event::Ask(ask) => ask.node == told.ask.node && ask.patience.is_some(),
            _ => false,
        };
        let is_unsure = case.setting().rules.len() > 1
            || case
                .story
                .events
                .iter()
                .any(|(at, event)| *at <= told.at && of_node(event));
        if is_unsure {
            return Ok(());
        }
        // A lease's spending is recorded within its duration, and what remains counts as spent.
        let (late, held) = (self.lease_life(), self.leased_by_one());
        let mut most = Bucket::default();
        let mut recent = held;
        for passed in before.iter().filter(|other| other.allowed) {
            if passed.at + late <= told.at {
                most.charge(passed.at + late, passed.ask.cost, part)
            } else {
                recent += passed.ask.cost;
            }
            most.debt = most.debt.min(units(part.burst, part));
        }
        most.drain(told.at, part);
        // One token more, for rounding.
        let after = most.debt + units(recent + told.ask.cost + 1, part);
        if after <= units(part.burst, part) {
            Err(format!(
                "refused by a node whose part of {part:?} has room: {told:?}"
            ))
        } else {
            Ok(())
        }
    }
}
