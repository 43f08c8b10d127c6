//! Every window: never more than the largest burst and the fastest rate in it, plus what a stated fault allows.

use std::cmp::Reverse;

use super::{Fault, Limit, Told};
use crate::world::story::{Counted, Failure, Sort};

/// Part of a burst that a node may hold of a leased limit: one of so many.
const LEASE_PART: u64 = 10;

impl Limit<'_> {
    pub(super) fn judge_bound(&self) -> Result<(), String> {
        let all: Vec<&Told> = self
            .passed()
            .filter(|told| !self.is_uncounted(told))
            .collect();
        match self.rule.counted {
            Counted::Local => {
                for node in 0..self.case.setting().nodes {
                    let own = |told: &&&Told| told.ask.node == node;
                    self.each_life(
                        all.iter().filter(own).copied().collect(),
                        "counted by a node",
                    )?;
                }
                return Ok(());
            }
            Counted::Exact | Counted::Leased => {}
        }
        let (own, stores): (Vec<&Told>, Vec<&Told>) =
            all.iter().partition(|told| self.is_local(told));
        self.windows(&stores, "admitted by the store", Who::Store)?;
        for node in 0..self.case.setting().nodes {
            let mine = |told: &&&Told| told.ask.node == node;
            let own = own.iter().filter(mine).copied().collect();
            self.each_life(own, "admitted by a node without the store")?;
        }
        if self.case.setting().nodes == 1 && self.rule.failure != Failure::Open {
            self.windows(&all, "admitted by the store and the only node", Who::Both)?;
        }
        Ok(())
    }

    /// A node that is started anew knows nothing.
    fn each_life(&self, told: Vec<&Told>, what: &str) -> Result<(), String> {
        for lives in told.chunk_by(|one, other| one.life == other.life) {
            self.windows(lives, what, Who::Node)?;
        }
        Ok(())
    }

    /// Looks at every window that begins and ends with something that passed.
    fn windows(&self, told: &[&Told], what: &str, who: Who) -> Result<(), String> {
        let mut told = told.to_vec();
        told.sort_by_key(|told| (told.at, Reverse(told.ask.cost)));
        for (place, first) in told.iter().enumerate() {
            let (mut sum, mut late) = (0, 0);
            for last in &told[place..] {
                sum += last.ask.cost;
                late = late.max(last.at - last.asked_at);
                let from = first.asked_at;
                let may = self.may_pass(from, last.at, late, who);
                if sum > may {
                    return Err(format!(
                        "{sum} {what} from {from} to {} µs, where {may} may be",
                        last.at
                    ));
                }
            }
        }
        Ok(())
    }

    /// How much may pass in a window, in which answers came so late.
    fn may_pass(&self, from: u64, to: u64, late: u64, who: Who) -> u64 {
        let (mut burst, mut count, period) = self.allowed_between(from, to);
        if who == Who::Node && self.rule.counted != Counted::Local && !self.case.setting().learns {
            // Each node has its part: one of so many, times two.
            let nodes = u64::try_from(self.case.setting().nodes).unwrap_or(1);
            let part = |whole: u64| (2 * whole).div_ceil(nodes).min(whole);
            (burst, count) = (part(burst), part(count));
        }
        // When it was counted is known as well as when it was asked and answered.
        let length = to - from + late + self.stepped(from, to, who);
        let limit = match self.rule.sort {
            Sort::Level(_) => burst + scaled(count, length, period),
            // Windows that begin anywhere: one more than fit.
            Sort::Window("sliding-log") => count * (1 + length / period),
            Sort::Window(_) => count * (2 + length / period),
            Sort::Quota("hour") => count * (2 + length / period),
            Sort::Quota(_) => count * (1 + length / period),
            Sort::Slots => 0,
        };
        limit + self.beside(from, to, who)
    }

    /// For how much longer a limit has given something, by a store's clock that stepped forward: no longer than
    /// it takes to fill.
    fn stepped(&self, from: u64, to: u64, who: Who) -> u64 {
        let fills = self.rule.drains();
        let steps = self.faults_between(from.saturating_sub(self.lease_life()), to);
        let steps = steps.map(|(_, fault)| match fault {
            Fault::Stepped(by) if *by > 0 && who != Who::Node => by.unsigned_abs().min(fills),
            _ => 0,
        });
        steps.sum()
    }

    /// What stated faults allow in a window.
    fn beside(&self, from: u64, to: u64, who: Who) -> u64 {
        let (burst, _, _) = self.allowed_between(from, to);
        let nodes = u64::try_from(self.case.setting().nodes).unwrap_or(1);
        let leased = match self.rule.counted {
            Counted::Leased => nodes * (burst / LEASE_PART).max(1),
            _ => 0,
        };
        let mut whole = 0;
        if who != Who::Node {
            for (at, fault) in self.faults_between(from.saturating_sub(self.lease_life()), to) {
                whole += match fault {
                    Fault::Forgot => burst + leased,
                    Fault::ForgotSince(since) => {
                        self.admitted_between(*since, *at).min(burst) + leased
                    }
                    // What is leased may be had twice.
                    Fault::Stepped(by) if *by > 0 => leased,
                    Fault::Stepped(_) | Fault::Other => 0,
                    Fault::Started => match who {
                        Who::Both => burst,
                        _ => 0,
                    },
                };
            }
        }
        if who == Who::Both {
            whole += self.in_flight(from, to) + burst * u64::from(self.is_windowed());
        }
        whole
    }

    /// Windows are noted by another clock than the store's: one count more.
    fn is_windowed(&self) -> bool {
        !matches!(self.rule.sort, Sort::Level(_))
    }

    fn admitted_between(&self, from: u64, to: u64) -> u64 {
        let within = self
            .passed()
            .filter(|told| from <= told.at && told.asked_at <= to);
        within.map(|told| told.ask.cost).sum()
    }

    /// The most that was asked for at once.
    fn in_flight(&self, from: u64, to: u64) -> u64 {
        let asked = |at: u64| -> u64 {
            let during = self
                .answers()
                .filter(|told| told.asked_at <= at && at <= told.at);
            during.map(|told| told.ask.cost).sum()
        };
        let begun = self
            .answers()
            .filter(|told| from <= told.at && told.asked_at <= to);
        begun.map(|told| asked(told.asked_at)).max().unwrap_or(0)
    }
}

/// Who admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Who {
    Store,
    Node,
    Both,
}

/// How much a rate gives in a time.
fn scaled(count: u64, length: u64, period: u64) -> u64 {
    let given = u128::from(count) * u128::from(length) / u128::from(period.max(1));
    u64::try_from(given).unwrap_or(u64::MAX / 4)
}
