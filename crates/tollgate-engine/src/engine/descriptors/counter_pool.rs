//! What several descriptors of a request ask of their counters together: one check a counter, at the cost of
//! all that meet it.

use std::mem;
use std::time::Duration;

use tollgate::{Decision, Outcome};

use super::trees::{CounterId, Met};
use crate::backend::Backend;
use crate::engine::refund_guard::RefundGuard;
use crate::limits::{Answer, Check, Limit, LimitKind, decisions};
use crate::verdict::Permits;

/// The checks of some descriptors.
pub(super) struct CounterPool<'m, 'a> {
    met: Vec<&'m Met<'a>>,
    checks: Vec<Check<'a>>,
    /// Of each check, what all descriptors ask of its counter, and the number of the check that does.
    counted: Vec<CounterShare>,
    /// Of each descriptor in turn, the numbers of its limits' checks.
    own: Vec<usize>,
}

/// The answer to the checks of some descriptors, and of rules beside them.
pub(in crate::engine) struct PooledAnswer {
    /// The answer to all checks; its decider is a rule's check, if there are any.
    pub(in crate::engine) answer: Answer,
    /// Whether the limit that takes longest to have room is a rule's.
    pub(super) is_denied_by_rule: bool,
    /// The decision of each check of the rules; none if a denial was known without a question.
    pub(in crate::engine) rules: Vec<Decision>,
    /// The decision of the limits of each descriptor.
    pub(super) each: Vec<Decision>,
}

#[derive(Clone, Copy)]
struct CounterShare {
    cost: u64,
    judge: usize,
}

impl<'m, 'a> CounterPool<'m, 'a> {
    /// Hits on one counter add up. Where descriptors bring different limits for it, the strictest is asked, and
    /// the others only look.
    pub(super) fn of(met: impl Iterator<Item = &'m Met<'a>>) -> Self
    where
        'a: 'm,
    {
        let mut pool = Self {
            met: met.collect(),
            checks: Vec::new(),
            counted: Vec::new(),
            own: Vec::new(),
        };
        for met in &pool.met {
            for check in met.checks(met.cost()) {
                let is_same = |other: &Check<'_>| {
                    counter(other) == counter(&check) && other.limit.kind() == check.limit.kind()
                };
                // As many as descriptors are taken at the most, so each is compared with all.
                let number = pool.checks.iter().position(is_same);
                let number = number.unwrap_or_else(|| {
                    let judge = pool.checks.len();
                    pool.checks.push(Check { cost: 0, ..check });
                    pool.counted.push(CounterShare { cost: 0, judge });
                    judge
                });
                pool.own.push(number);
                let cost = &mut pool.counted[number].cost;
                *cost = match check.limit.kind() {
                    // A request takes one slot, however often the limit is named.
                    LimitKind::Concurrency(_) => 1,
                    _ => cost.saturating_add(check.cost),
                };
            }
        }
        for number in 0..pool.checks.len() {
            let mut before = pool.checks[..number].iter();
            if !before.any(|other| counter(other) == counter(&pool.checks[number])) {
                pool.judge(number);
            }
        }
        pool
    }

    /// The checks of all counters.
    pub(super) fn into_checks(self) -> Vec<Check<'a>> {
        self.checks
    }

    /// Has the strictest of the checks of one counter ask for all of them, but for those that cost nothing.
    fn judge(&mut self, first: usize) {
        let own = counter(&self.checks[first]);
        let of_counter = || {
            let numbers = first..self.checks.len();
            numbers.filter(|number| counter(&self.checks[*number]) == own)
        };
        let cost = of_counter().map(|number| self.counted[number].cost);
        let cost = cost.fold(0, u64::saturating_add);
        let strictest = of_counter().min_by_key(|number| {
            let is_free = self.counted[*number].cost == 0;
            (is_free, most(self.checks[*number].limit))
        });
        let judge = strictest.unwrap_or(first);
        for number in of_counter() {
            self.counted[number] = CounterShare { cost, judge };
        }
        self.checks[judge].cost = cost;
    }

    /// Asks all or none, with these checks of rules.
    pub(super) async fn ask<B: Backend>(
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
        // Of one limit the answer tells all.
        let listed = (checks.len() > 1).then_some(&mut results);
        let mut answer = match checks {
            [] => Answer::new(None, Decision::UNLIMITED),
            checks => backend.ask(checks, listed).await?,
        };
        let tree_decider = answer.decider.unwrap_or(0).checked_sub(rules.len());
        let is_denied_by_rule = !answer.allowed && tree_decider.is_none();
        let mut said = match checks {
            [] => Vec::new(),
            // Of one limit the answer tells all, also if it was known.
            [_] => vec![answer.decision],
            // The denial was known without a question: nothing is known of the other checks.
            _ if results.is_empty() && is_denied_by_rule => {
                return Ok(PooledAnswer {
                    answer,
                    is_denied_by_rule,
                    rules: Vec::new(),
                    each: Vec::new(),
                });
            }
            // Each descriptor has a status of its own, also where the denial was known without a question.
            _ if results.is_empty() => {
                let unanswered = guard(backend, &mut answer, checks);
                let peeked = backend.peek(checks).await?;
                answer.pass = unanswered.answered().0;
                decisions(&peeked)
            }
            _ => decisions(&results),
        };
        said.resize(checks.len(), Decision::UNLIMITED);
        let mut own = said.split_off(rules.len());
        if answer.allowed {
            said.iter_mut().chain(&mut own).for_each(allow);
            // The tightest limit may be a tree's: rules report the tightest of their own.
            let of_rules = Answer::over(rules, &said);
            (answer.decider, answer.decision) = (of_rules.decider, of_rules.decision);
        } else {
            self.refuse(
                tree_decider.map(|decider| (decider, answer.decision)),
                &mut own,
            );
        }
        let each = self.each(&own);
        Ok(PooledAnswer {
            answer,
            is_denied_by_rule,
            rules: said,
            each,
        })
    }

    /// Asks all or none. Unless the request is answered, the guard gives back what was charged, and it has the permits.
    pub(super) async fn ask_guarded<'p, B: Backend>(
        &self,
        backend: &'p B,
    ) -> Result<(PooledAnswer, RefundGuard<'p, 'a, B>), B::Error> {
        let mut asked = self.ask(backend, &[]).await?;
        let unanswered = guard(backend, &mut asked.answer, &self.checks);
        Ok((asked, unanswered))
    }

    /// What each would say, without charging anything. Slots are left out: to look at them is to take one.
    pub(super) async fn look<B: Backend>(&self, backend: &B) -> Result<Vec<Decision>, B::Error> {
        let mut said = Vec::with_capacity(self.checks.len());
        for (check, counted) in self.checks.iter().zip(&self.counted) {
            said.push(match check.limit.kind() {
                LimitKind::Concurrency(_) => Decision::UNLIMITED,
                _ => {
                    let look = [Check { cost: 0, ..*check }];
                    let left = backend.ask(&look, None).await?.decision;
                    // At the latest when it is as if never used.
                    without(left, counted.cost, left.reset_after)
                }
            });
        }
        Ok(self.each(&said))
    }

    /// Makes what each check says of a request that is denied agree with that: the decider, if it is one of them, denies it.
    fn refuse(&self, decider: Option<(usize, Decision)>, said: &mut [Decision]) {
        let judge = decider.and_then(|(decider, _)| Some(self.counted.get(decider)?.judge));
        let judge = judge.and_then(|judge| said.get_mut(judge));
        if let (Some(said), Some((_, decision))) = (judge, decider) {
            *said = decision;
            if said.is_allowed() {
                said.outcome = Outcome::Denied;
            }
        }
        for number in 0..said.len() {
            let CounterShare { cost, judge } = self.counted[number];
            if number != judge {
                // It only looked. Limits of one counter wait for the same.
                said[number] = without(said[number], cost, said[judge].wait());
            } else if !said[number].is_allowed() && cost > most(self.checks[number].limit) {
                said[number].outcome = Outcome::Never;
                said[number].set_wait(Duration::MAX);
            }
        }
    }

    /// What the limits of each descriptor say together, from what each check said.
    fn each(&self, said: &[Decision]) -> Vec<Decision> {
        let mut own = self.own.iter();
        let mut one = |check: &Check<'_>| {
            let number = own.next().copied().unwrap_or_default();
            let mut decision = said.get(number).copied().unwrap_or(Decision::UNLIMITED);
            // A descriptor that takes nothing isn't refused for what others take.
            let is_slots = matches!(check.limit.kind(), LimitKind::Concurrency(_));
            if check.cost == 0 && !is_slots && self.counted[number].cost > 0 {
                allow(&mut decision);
            }
            decision
        };
        let each = self.met.iter().map(|met| {
            let mut checks = met.checks(met.cost());
            if let ([_], Some(only)) = (met.limits, checks.next()) {
                return one(&only);
            }
            let checks: Vec<_> = met.checks(met.cost()).collect();
            let said: Vec<_> = checks.iter().map(&mut one).collect();
            Answer::over(&checks, &said).decision
        });
        each.collect()
    }
}

/// Guards what was charged by an answer to these checks, and takes its permits.
fn guard<'p, 'c, B: Backend>(
    backend: &'p B,
    answer: &mut Answer,
    checks: &[Check<'c>],
) -> RefundGuard<'p, 'c, B> {
    let mut unanswered = RefundGuard::new(backend, Permits(mem::take(&mut answer.pass)));
    // What decided instead of a store has charged nothing there.
    if answer.allowed && answer.unavailable.is_none() {
        unanswered.is_charged(checks);
    }
    unanswered
}

fn counter(check: &Check<'_>) -> CounterId {
    (check.limit.id, check.key.fingerprint())
}

/// How much passes at once at the most.
fn most(limit: &Limit) -> u64 {
    match limit.kind() {
        LimitKind::Rate { rate, .. } => rate.burst_size(),
        LimitKind::Quota(quota) => quota.count(),
        LimitKind::Concurrency(most) => u64::from(*most),
        // Trees have none.
        LimitKind::Adaptive(own) => u64::from(own.max),
    }
}

fn allow(decision: &mut Decision) {
    decision.outcome = Outcome::Allowed;
    decision.set_wait(Duration::ZERO);
}

/// What a limit that has this much left says to a cost that passes after a wait, if it ever does.
fn without(mut left: Decision, cost: u64, wait: Duration) -> Decision {
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
