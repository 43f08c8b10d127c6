//! Combines the checks of several descriptors: one check per counter, with the total cost of all descriptors that use
//! it.

use std::mem;
use std::time::Duration;

use tollgate::{Decision, Outcome};

use super::trees::{CounterId, DescriptorMatch};
use crate::backend::Backend;
use crate::engine::refund_guard::RefundGuard;
use crate::limits::{Answer, Check, Limit, LimitKind, decisions};
use crate::verdict::Permits;

/// The combined checks of several descriptors.
pub(super) struct CounterPool<'m, 'a> {
    matches: Vec<&'m DescriptorMatch<'a>>,
    checks: Vec<Check<'a>>,
    /// For each check, the total cost for its counter, and the number of the check that is charged with it.
    shares: Vec<CounterShare>,
    /// For each descriptor in turn, the numbers of its limits' checks.
    check_numbers: Vec<usize>,
}

/// The answer to the checks of descriptors, and of rules beside them.
pub(in crate::engine) struct PooledAnswer {
    /// The answer to all checks. Its decider is a check of the rules, if there are any.
    pub(in crate::engine) answer: Answer,
    /// Whether the limit with the longest wait is a rule's.
    pub(super) is_denied_by_rule: bool,
    /// The decision of each check of the rules. Empty if a cached denial answered for all.
    pub(in crate::engine) rule_decisions: Vec<Decision>,
    /// The decision of each descriptor's limits.
    pub(super) descriptor_decisions: Vec<Decision>,
}

#[derive(Clone, Copy)]
struct CounterShare {
    cost: u64,
    charged_check: usize,
}

impl<'m, 'a> CounterPool<'m, 'a> {
    /// Combines the matches of descriptors. Hits on one counter add up. If descriptors bring different limits for one
    /// counter, the strictest is charged, and the others are peeked.
    pub(super) fn from_matches(met: impl Iterator<Item = &'m DescriptorMatch<'a>>) -> Self
    where
        'a: 'm,
    {
        let mut pool = Self {
            matches: met.collect(),
            checks: Vec::new(),
            shares: Vec::new(),
            check_numbers: Vec::new(),
        };
        for met in &pool.matches {
            for check in met.checks(met.cost()) {
                let is_same = |other: &Check<'_>| {
                    counter_id(other) == counter_id(&check)
                        && other.limit.kind() == check.limit.kind()
                };
                // The number of descriptors is bounded, so a linear search is fast enough.
                let number = pool.checks.iter().position(is_same);
                let number = number.unwrap_or_else(|| {
                    let judge = pool.checks.len();
                    pool.checks.push(Check { cost: 0, ..check });
                    pool.shares.push(CounterShare {
                        cost: 0,
                        charged_check: judge,
                    });
                    judge
                });
                pool.check_numbers.push(number);
                let cost = &mut pool.shares[number].cost;
                *cost = match check.limit.kind() {
                    // A request takes one permit, however often the limit is named.
                    LimitKind::Concurrency(_) => 1,
                    _ => cost.saturating_add(check.cost),
                };
            }
        }
        for number in 0..pool.checks.len() {
            let mut before = pool.checks[..number].iter();
            if !before.any(|other| counter_id(other) == counter_id(&pool.checks[number])) {
                pool.charge_strictest(number);
            }
        }
        pool
    }

    /// The checks of all counters.
    pub(super) fn into_checks(self) -> Vec<Check<'a>> {
        self.checks
    }

    /// Charges the strictest check of one counter with the total cost. A check without a cost is chosen last.
    fn charge_strictest(&mut self, first: usize) {
        let own = counter_id(&self.checks[first]);
        let of_counter = || {
            let numbers = first..self.checks.len();
            numbers.filter(|number| counter_id(&self.checks[*number]) == own)
        };
        let cost = of_counter().map(|number| self.shares[number].cost);
        let cost = cost.fold(0, u64::saturating_add);
        let strictest = of_counter().min_by_key(|number| {
            let is_free = self.shares[*number].cost == 0;
            (is_free, burst_size(self.checks[*number].limit))
        });
        let judge = strictest.unwrap_or(first);
        for number in of_counter() {
            self.shares[number] = CounterShare {
                cost,
                charged_check: judge,
            };
        }
        self.checks[judge].cost = cost;
    }

    /// Charges all or none, together with these checks of rules.
    pub(super) async fn charge<B: Backend>(
        &self,
        backend: &B,
        rules: &[Check<'_>],
    ) -> Result<PooledAnswer, B::Error> {
        let joined: Vec<Check<'_>>;
        let checks = match rules {
            [] => self.checks.as_slice(),
            _ => {
                joined = rules.iter().chain(&self.checks).copied().collect();
                &joined
            }
        };
        let mut results = Vec::new();
        // With one limit, the answer is its decision.
        let listed = (checks.len() > 1).then_some(&mut results);
        let mut answer = match checks {
            [] => Answer::new(None, Decision::UNLIMITED),
            checks => backend.ask(checks, listed).await?,
        };
        let tree_decider = answer.decider.unwrap_or(0).checked_sub(rules.len());
        let is_denied_by_rule = !answer.allowed && tree_decider.is_none();
        let mut said = match checks {
            [] => Vec::new(),
            // With one limit, the answer is its decision, even if it was cached.
            [_] => vec![answer.decision],
            // A cached denial of a rule answered for all: the other checks have no decision.
            _ if results.is_empty() && is_denied_by_rule => {
                return Ok(PooledAnswer {
                    answer,
                    is_denied_by_rule,
                    rule_decisions: Vec::new(),
                    descriptor_decisions: Vec::new(),
                });
            }
            // Each descriptor needs a status of its own, even if a cached denial answered for all.
            _ if results.is_empty() => {
                let unanswered = guard(backend, &mut answer, checks);
                let peeked = backend.peek(checks).await?;
                answer.pass = unanswered.disarm().0;
                decisions(&peeked)
            }
            _ => decisions(&results),
        };
        said.resize(checks.len(), Decision::UNLIMITED);
        let mut own = said.split_off(rules.len());
        if answer.allowed {
            said.iter_mut().chain(&mut own).for_each(set_allowed);
            // The tightest limit may be a tree's. Rules report the tightest of their own.
            let of_rules = Answer::from_decisions(rules, &said);
            (answer.decider, answer.decision) = (of_rules.decider, of_rules.decision);
        } else {
            self.apply_denial(
                tree_decider.map(|decider| (decider, answer.decision)),
                &mut own,
            );
        }
        let each = self.decisions_by_descriptor(&own);
        Ok(PooledAnswer {
            answer,
            is_denied_by_rule,
            rule_decisions: said,
            descriptor_decisions: each,
        })
    }

    /// Charges all or none. The guard takes the permits, and refunds the charges unless it is disarmed.
    pub(super) async fn ask_guarded<'p, B: Backend>(
        &self,
        backend: &'p B,
    ) -> Result<(PooledAnswer, RefundGuard<'p, 'a, B>), B::Error> {
        let mut asked = self.charge(backend, &[]).await?;
        let unanswered = guard(backend, &mut asked.answer, &self.checks);
        Ok((asked, unanswered))
    }

    /// Peeks each check. Concurrency limits are left out: a backend can only peek them by taking a permit.
    pub(super) async fn peek<B: Backend>(&self, backend: &B) -> Result<Vec<Decision>, B::Error> {
        let mut said = Vec::with_capacity(self.checks.len());
        for (check, counted) in self.checks.iter().zip(&self.shares) {
            said.push(match check.limit.kind() {
                LimitKind::Concurrency(_) => Decision::UNLIMITED,
                _ => {
                    let look = [Check { cost: 0, ..*check }];
                    let left = backend.ask(&look, None).await?.decision;
                    // The wait for this cost isn't known, but it is at most the time until the limit is fully
                    // refilled.
                    decide_cost(left, counted.cost, left.reset_after)
                }
            });
        }
        Ok(self.decisions_by_descriptor(&said))
    }

    /// Makes the decision of each check agree with the denial of the request: if the decider is one of them, it
    /// denies.
    fn apply_denial(&self, decider: Option<(usize, Decision)>, said: &mut [Decision]) {
        let judge = decider.and_then(|(decider, _)| Some(self.shares.get(decider)?.charged_check));
        let judge = judge.and_then(|judge| said.get_mut(judge));
        if let (Some(said), Some((_, decision))) = (judge, decider) {
            *said = decision;
            if said.is_allowed() {
                said.outcome = Outcome::Denied;
            }
        }
        for number in 0..said.len() {
            let CounterShare {
                cost,
                charged_check: judge,
            } = self.shares[number];
            if number != judge {
                // This check was only peeked. Limits of one counter have the same wait.
                said[number] = decide_cost(said[number], cost, said[judge].wait_or_max());
            } else if !said[number].is_allowed() && cost > burst_size(self.checks[number].limit) {
                said[number].outcome = Outcome::Never;
                said[number].set_wait(Duration::MAX);
            }
        }
    }

    /// The decision of each descriptor, from the decisions of its checks.
    fn decisions_by_descriptor(&self, said: &[Decision]) -> Vec<Decision> {
        let mut own = self.check_numbers.iter();
        let mut one = |check: &Check<'_>| {
            let number = own.next().copied().unwrap_or_default();
            let mut decision = said.get(number).copied().unwrap_or(Decision::UNLIMITED);
            // A descriptor without a cost isn't denied because of the costs of others.
            let is_slots = matches!(check.limit.kind(), LimitKind::Concurrency(_));
            if check.cost == 0 && !is_slots && self.shares[number].cost > 0 {
                set_allowed(&mut decision);
            }
            decision
        };
        let each = self.matches.iter().map(|met| {
            let mut checks = met.checks(met.cost());
            if let ([_], Some(only)) = (met.limits, checks.next()) {
                return one(&only);
            }
            let checks: Vec<_> = met.checks(met.cost()).collect();
            let said: Vec<_> = checks.iter().map(&mut one).collect();
            Answer::from_decisions(&checks, &said).decision
        });
        each.collect()
    }
}

/// Guards the charges of an answer to these checks, and takes its permits.
fn guard<'p, 'c, B: Backend>(
    backend: &'p B,
    answer: &mut Answer,
    checks: &[Check<'c>],
) -> RefundGuard<'p, 'c, B> {
    let mut unanswered = RefundGuard::new(backend, Permits(mem::take(&mut answer.pass)));
    // If a fallback decided, the store was charged nothing.
    if answer.allowed && answer.unavailable.is_none() {
        unanswered.record_charge(checks);
    }
    unanswered
}

fn counter_id(check: &Check<'_>) -> CounterId {
    (check.limit.id, check.key.fingerprint())
}

/// The largest cost that the limit can allow in one request.
fn burst_size(limit: &Limit) -> u64 {
    match limit.kind() {
        LimitKind::Rate { rate, .. } => rate.burst_size(),
        LimitKind::Quota(quota) => quota.count(),
        LimitKind::Concurrency(most) => u64::from(*most),
        // Trees have no adaptive limits.
        LimitKind::Adaptive(own) => u64::from(own.max),
    }
}

fn set_allowed(decision: &mut Decision) {
    decision.outcome = Outcome::Allowed;
    decision.set_wait(Duration::ZERO);
}

/// The decision of a limit with this much remaining about a cost, which is allowed after `wait` if ever.
fn decide_cost(mut left: Decision, cost: u64, wait: Duration) -> Decision {
    if left.remaining < cost {
        let (outcome, wait) = if cost > left.limit {
            (Outcome::Never, Duration::MAX)
        } else {
            (Outcome::Denied, wait)
        };
        left.outcome = outcome;
        left.set_wait(wait);
    }
    left
}
