//! Every window has at most the largest burst and the fastest rate in it, plus what a stated fault allows.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use super::settled_cost::SettledCost;
use super::{CheckedLimit, Fault, ReportedDecision};
use crate::world::scenario::{Amount, CountingChoice, Event, Failure, LimitSort};

/// By then all nodes know of each other, unless a fault prevents it.
const NODE_COUNT_LEARNED_AFTER: u64 = 6_000_000;
/// A node without a renewal for this long counts as gone, less the time between two renewals.
const NODE_COUNT_FORGOTTEN_AFTER: u64 = 10_000_000;

impl CheckedLimit<'_> {
    pub(super) fn check_bound(&self) -> Result<(), String> {
        let all: Vec<&ReportedDecision> = self
            .passed()
            .filter(|told| !self.is_uncounted(told) && !self.case.is_of_two_versions(told))
            .collect();
        match self.rule.counted {
            CountingChoice::Local => {
                for node in 0..self.case.setting().nodes {
                    let own = |told: &&&ReportedDecision| told.ask.node == node;
                    self.each_life(
                        all.iter().filter(own).copied().collect(),
                        "counted by a node",
                    )?;
                }
                return Ok(());
            }
            CountingChoice::Exact | CountingChoice::Leased => {}
        }
        let (own, stores): (Vec<&ReportedDecision>, Vec<&ReportedDecision>) =
            all.iter().partition(|told| self.is_local(told));
        self.windows(&stores, "admitted by the store", ChargedBy::Store)?;
        for node in 0..self.case.setting().nodes {
            let mine = |told: &&&ReportedDecision| told.ask.node == node;
            let own = own.iter().filter(mine).copied().collect();
            self.each_life(own, "admitted by a node without the store")?;
        }
        if self.case.setting().nodes == 1 && self.rule.failure != Failure::Open {
            self.windows(
                &all,
                "admitted by the store and the only node",
                ChargedBy::Both,
            )?;
        }
        Ok(())
    }

    /// Checks each process by itself: a node that restarts knows nothing.
    fn each_life(&self, told: Vec<&ReportedDecision>, what: &str) -> Result<(), String> {
        for lives in told.chunk_by(|one, other| one.life == other.life) {
            self.windows(lives, what, ChargedBy::Node)?;
        }
        Ok(())
    }

    /// Checks every window that begins and ends with an admitted request. Held costs are counted in two ways,
    /// separately: at their admission, and at their settlement.
    fn windows(
        &self,
        told: &[&ReportedDecision],
        what: &str,
        who: ChargedBy,
    ) -> Result<(), String> {
        self.windows_of(&self.charges_by(told, ChargeTime::Admitted), what, who)?;
        // Windows are charged at the admission, and the limits in force are known for that time.
        let is_level = matches!(self.rule.sort, LimitSort::Level(_));
        let is_held = self.rule.estimated.is_some() && is_level;
        if is_held && self.case.setting().versions == 1 {
            self.windows_of(&self.charges_by(told, ChargeTime::Settled), what, who)
        } else {
            Ok(())
        }
    }

    fn charges_by(&self, told: &[&ReportedDecision], when: ChargeTime) -> Vec<Charge> {
        let of = |told: &&ReportedDecision| {
            let cost = self.expected_cost(told);
            match cost.settled.filter(|_| when == ChargeTime::Settled) {
                Some(SettledCost { out_until: at, .. }) => Charge {
                    from: at,
                    at,
                    cost: cost.least,
                },
                None => Charge {
                    from: self.counted_from(told),
                    at: told.at,
                    cost: cost.least,
                },
            }
        };
        let mut charges: Vec<_> = told.iter().map(of).collect();
        if when == ChargeTime::Settled {
            charges.extend(self.beyond_estimates(told));
        }
        charges.sort_by_key(|charge| (charge.at, Reverse(charge.cost)));
        charges
    }

    /// Costs beyond the estimates of requests are paid before their node admits anything else: up to a full
    /// bucket.
    fn beyond_estimates(&self, told: &[&ReportedDecision]) -> Vec<Charge> {
        let [amount] = self.rule.versions[0][..] else {
            return Vec::new();
        };
        if self.rule.counted == CountingChoice::Local {
            return Vec::new();
        }
        let mut paid: BTreeMap<(u64, usize), Charge> = BTreeMap::new();
        for one in told {
            let Some(settled) = self.expected_cost(one).settled else {
                continue;
            };
            let from = settled.said_at;
            let is_next = |next: &&&ReportedDecision| {
                next.ask.node == one.ask.node && self.case.first_possible_attempt(next) > from
            };
            let next = told.iter().filter(is_next).min_by_key(|next| next.at);
            let next = next.filter(|next| self.expected_cost(next).settled.is_some());
            let beyond = settled.spent.saturating_sub(one.ask.cost);
            if let Some(next) = next.filter(|_| beyond > 0) {
                let (at, cost) = (next.at, 0);
                let paid = paid.entry((at, next.ask.node));
                let paid = paid.or_insert(Charge { from, at, cost });
                paid.from = paid.from.min(from);
                paid.cost = (paid.cost + beyond).min(amount.burst);
            }
        }
        paid.into_values().collect()
    }

    fn windows_of(&self, charges: &[Charge], what: &str, who: ChargedBy) -> Result<(), String> {
        for (place, first) in charges.iter().enumerate() {
            let (mut sum, mut from, mut late) = (0, first.at, 0);
            for last in &charges[place..] {
                sum += last.cost;
                from = from.min(last.from);
                late = late.max(last.at - last.from);
                let may = self.may_pass((from, last.at), late, who);
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

    /// The earliest time at which a request may have been counted. A node without the store decides at the time
    /// of the answer. A local count comes before the query.
    fn counted_from(&self, told: &ReportedDecision) -> u64 {
        if self.is_local(told) && self.rule.counted != CountingChoice::Local {
            told.at
        } else {
            self.case.first_possible_attempt(told)
        }
    }

    /// How much may pass in a window, if answers were this late.
    fn may_pass(&self, (from, to): (u64, u64), late: u64, who: ChargedBy) -> u64 {
        let (burst, count) = self.allowed_between(from, to);
        let mut amount = Amount {
            count,
            period: self.period,
            burst,
        };
        if who == ChargedBy::Node
            && self.rule.counted != CountingChoice::Local
            && self.has_parts(from)
        {
            amount = self.local_part(amount);
        }
        let Amount {
            count,
            period,
            burst,
        } = amount;
        let mut length = to - from + self.stepped(from, to, who);
        if who == ChargedBy::Both {
            // What the store counts is recorded when its reply arrives.
            length += late;
        }
        let limit = match self.rule.sort {
            LimitSort::Level(_) if who != ChargedBy::Store && self.rule.is_moved() => {
                self.loosest_amount((from, to), length)
            }
            LimitSort::Level(_) => burst + scaled(count, length, period),
            // Windows that begin anywhere: one more than fit.
            LimitSort::Window("sliding-log") => count * (1 + length / period),
            LimitSort::Window(_) => count * (2 + length / period),
            LimitSort::Quota("hour") => count * (2 + length / period),
            LimitSort::Quota(_) => count * (1 + length / period),
            LimitSort::Slots => 0,
        };
        limit + self.allowed_by_faults(from, to, who)
    }

    /// What the loosest version admits. A node keeps its counts, whatever the period.
    fn loosest_amount(&self, (from, to): (u64, u64), length: u64) -> u64 {
        let versions = self.versions_between(from, to);
        let amounts = versions.flat_map(|version| &self.rule.versions[version]);
        let (burst, given) = amounts.fold((0, 0), |(burst, given), amount| {
            let gives = scaled(amount.count, length, amount.period);
            (burst.max(amount.burst), given.max(gives))
        });
        burst + given
    }

    /// Whether nodes know their number from a time on: it was configured or learned, and no node was silent for
    /// so long that it counted as gone.
    fn has_parts(&self, from: u64) -> bool {
        let case = self.case;
        if !case.setting().learns {
            return true;
        }
        let silent = case.spells.iter().map(|spell| spell.to - spell.from);
        let early = case
            .spells
            .iter()
            .any(|spell| spell.from <= NODE_COUNT_LEARNED_AFTER);
        let lost = |fault: &Fault| !matches!(fault, Fault::Other | Fault::Frozen(_));
        let is_known = !case.record.faults.iter().any(|(_, fault)| lost(fault));
        let deaths = case.story.events.iter();
        let mut deaths = deaths.filter(|(_, event)| matches!(event, Event::Restart { .. }));
        from >= NODE_COUNT_LEARNED_AFTER
            && !early
            && is_known
            && silent.sum::<u64>() < NODE_COUNT_FORGOTTEN_AFTER
            && deaths.next().is_none()
    }

    /// For how much longer a limit has refilled, by a store's clock that stepped forward: at most the time that
    /// it takes to fill.
    fn stepped(&self, from: u64, to: u64, who: ChargedBy) -> u64 {
        let fills = self.rule.drains();
        let steps = self.faults_between(from.saturating_sub(self.lease_life()), to);
        let steps = steps.map(|(_, fault)| match fault {
            Fault::Stepped(by) if *by > 0 && who != ChargedBy::Node => by.unsigned_abs().min(fills),
            _ => 0,
        });
        steps.sum()
    }

    /// What stated faults allow in a window.
    fn allowed_by_faults(&self, from: u64, to: u64, who: ChargedBy) -> u64 {
        let (burst, _) = self.allowed_between(from, to);
        let leased = |at: u64| self.leased_by_all() + self.held_at(at);
        let mut whole = 0;
        if who != ChargedBy::Node {
            // At a refund, tokens that are out and tokens in the bucket are at most the burst. A window that
            // begins later gets nothing of the refund.
            whole += self.refunds_between(from, to, burst);
            for (at, fault) in self.faults_between(from.saturating_sub(self.lease_life()), to) {
                whole += match fault {
                    Fault::Forgot => burst + leased(*at),
                    Fault::ForgotSince(since) => {
                        self.admitted_between(*since, *at).min(burst) + leased(*at)
                    }
                    // Leased tokens may be granted twice.
                    Fault::Stepped(by) if *by > 0 => leased(*at),
                    // A window by another clock may end sooner.
                    Fault::Stepped(_) if self.is_aligned() => burst,
                    Fault::Stepped(_) | Fault::Other | Fault::Frozen(_) => 0,
                    Fault::Started => match who {
                        ChargedBy::Both => burst,
                        _ => 0,
                    },
                };
            }
        }
        if who == ChargedBy::Both {
            // Neither what exceeds a bucket is recorded, nor a part of a token.
            whole += 1 + self.in_flight(from, to) + burst * u64::from(self.is_windowed());
        }
        whole
    }

    /// Whether windows begin by the clock, and not with their first hit.
    fn is_aligned(&self) -> bool {
        matches!(
            self.rule.sort,
            LimitSort::Window("fixed-window" | "sliding-window") | LimitSort::Quota("hour")
        )
    }

    /// Whether it has windows. They are recorded by another clock than the store's, which allows one more
    /// count.
    fn is_windowed(&self) -> bool {
        !matches!(self.rule.sort, LimitSort::Level(_))
    }

    fn admitted_between(&self, from: u64, to: u64) -> u64 {
        let within = self
            .passed()
            .filter(|told| from <= told.at && self.case.first_possible_attempt(told) <= to);
        within.map(|told| told.ask.cost).sum()
    }

    /// What the store admitted while the node decided locally: neither could know of the other.
    fn in_flight(&self, from: u64, to: u64) -> u64 {
        let within = |told: &&ReportedDecision| {
            from <= told.at && self.case.first_possible_attempt(told) <= to
        };
        let own = |told: &&ReportedDecision| self.is_local(told);
        let by_store = self.passed().filter(within).filter(|told| !own(told));
        let crossed = by_store.filter(|told| {
            let mut own = self.passed().filter(within).filter(own);
            own.any(|other| {
                self.case.first_possible_attempt(told) <= other.at && other.at <= told.at
            })
        });
        crossed.map(|told| told.ask.cost).sum()
    }
}

/// A cost that counts in a window, and since when it may.
#[derive(Clone, Copy, Debug)]
struct Charge {
    from: u64,
    at: u64,
    cost: u64,
}

/// When a held cost counts: at any time, until its settlement is reported to the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ChargeTime {
    Admitted,
    Settled,
}

/// Who admitted a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ChargedBy {
    Store,
    Node,
    Both,
}

/// How much a rate refills in a time.
fn scaled(count: u64, length: u64, period: u64) -> u64 {
    let given = u128::from(count) * u128::from(length) / u128::from(period.max(1));
    u64::try_from(given).unwrap_or(u64::MAX / 4)
}
