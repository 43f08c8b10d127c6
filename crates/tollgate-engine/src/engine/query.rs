//! Queries the limits of a matched request: the queues, gates, cached denials and the backend; first the enforced
//! limits, then each rule in shadow mode.

use std::mem;
use std::sync::Arc;
use std::time::Duration;

use tollgate::stack::{EstimateOutcome, ExpireScope, HeldEstimate, SettlementTiming};
use tollgate::{Decision, Outcome};

use super::descriptors::TreeCharge;
use super::recorder::Recorder;
use super::refund_guard::RefundGuard;
use super::request_match::RequestMatch;
use super::rules::CompiledPolicy;
use super::wait_queue::{QueueDemand, QueueKey, WaitQueues};
use crate::backend::Backend;
use crate::limits::{Answer, Check, DenyCache, LimitKind, decisions};
use crate::policy::Mode;
use crate::verdict::DecisionBasis;

mod deny_lookup;
mod gate_permits;

use deny_lookup::DenyLookup;
pub(super) use gate_permits::GatePermits;

/// A matched request, and the parts of the engine that check it.
#[derive(Clone, Copy)]
pub(super) struct BackendQuery<'r, 'a, B> {
    pub(super) backend: &'r B,
    pub(super) deny_cache: Option<&'r DenyCache>,
    pub(super) wait_queues: &'r Arc<WaitQueues>,
    pub(super) recorder: &'r Recorder,
    pub(super) rules: &'r CompiledPolicy,
    pub(super) request_match: &'r RequestMatch<'a>,
    /// Whether the caller may drop the request during the query. It can't if the backend answers immediately.
    pub(super) is_cancellable: bool,
}

/// Wakes the waiters for what a settled estimate refunds.
struct WakeOnSettle(Arc<WaitQueues>, QueueKey);

impl HeldEstimate for WakeOnSettle {
    fn settle(&mut self, _: EstimateOutcome) -> SettlementTiming {
        self.0.poke(self.1);
        SettlementTiming::InTime
    }

    fn time_left(&self) -> Option<Duration> {
        None
    }

    fn expire(&mut self, _: ExpireScope) {
        self.0.poke(self.1);
    }

    fn renew(&mut self) {}
}

impl<B: Backend> BackendQuery<'_, '_, B> {
    /// Denies a new request that would overtake a queue. A request that reached the head of one queue may overtake
    /// the other queues: otherwise two requests could wait for each other.
    #[inline]
    pub(super) fn queue_ahead(&self) -> Option<Answer> {
        if self.rules.has_waiting_rules && self.wait_queues.has_waiters() {
            self.longest_queue()
        } else {
            None
        }
    }

    /// The longest queue that the request would overtake, as a denial.
    #[cold]
    fn longest_queue(&self) -> Option<Answer> {
        let (rules, gathered, now) = (self.rules, self.request_match, self.backend.now());
        let checks = gathered.enforced.checks_with_rules().enumerate();
        let limits = checks.map(|(number, (check, rule))| {
            let demand = rules.rules[rule as usize].queue_demand(check, gathered.now);
            (number, demand)
        });
        let gates = gathered.gates_in(Mode::Enforce);
        let gates = gates.map(|(number, gate)| (number, gate.demand()));
        let queues = limits.chain(gates).filter_map(|(number, demand)| {
            let behind = self.wait_queues.longest_queue_denial(&demand, now)?;
            Some((number, behind))
        });
        let longest = queues.max_by_key(|(_, behind)| behind.wait_or_max());
        longest.map(|(number, behind)| Answer::new(Some(number), behind))
    }

    /// The limit that denied the request and the longest wait, if its rule lets requests wait.
    pub(super) fn wait_demand(&self, answer: &Answer) -> Option<(QueueDemand, Duration)> {
        let (rules, gathered) = (self.rules, self.request_match);
        let can_promise = !answer.allowed
            && !answer.is_unavailable()
            && answer.decision.outcome == Outcome::Denied;
        let decider = answer.decider.filter(|_| can_promise)?;
        if let Some(gate) = gathered.gate(decider) {
            let rule = &rules.rules[gate.rule_match.number as usize];
            return Some((gate.demand(), rule.max_wait?));
        }
        let (check, rule) = gathered.enforced.checks_with_rules().nth(decider)?;
        let rule = &rules.rules[rule as usize];
        Some((rule.queue_demand(check, gathered.now), rule.max_wait?))
    }

    /// Checks the enforced limits, with those of the trees if they are given. Returns `None` if the trees deny the
    /// request. If `each` is given and there are several limits, it gets the decision of each.
    pub(super) async fn check_enforced(
        &self,
        each: Option<&mut Vec<Decision>>,
        trees: Option<&mut TreeCharge<'_, '_>>,
    ) -> Result<Option<Answer>, B::Error> {
        let gathered = self.request_match;
        // Gates come first, because leaving one is free, while a charge would have to be refunded.
        let entered = match gathered
            .gates
            .is_some()
            .then(|| GatePermits::acquire_all(gathered))
        {
            Some(Err((gate, decision))) => return Ok(Some(Answer::new(Some(gate), decision))),
            entered => entered.and_then(Result::ok),
        };
        let group = &gathered.enforced;
        let checks = group.checks.as_slice();
        let mut answer = match DenyLookup::look_up(self) {
            DenyLookup::Denied(answer) => answer,
            // With no check beside the gates, the backend isn't queried, so it may be unreachable.
            DenyLookup::AskBackend(_)
                if checks.is_empty() && entered.is_some() && trees.is_none() =>
            {
                Answer::new(None, Decision::UNLIMITED)
            }
            DenyLookup::AskBackend(recheck) => match self.ask_backend(each, trees).await {
                Ok(Some(answer)) => recheck.record_answer(group, answer),
                Ok(None) => {
                    entered.into_iter().for_each(GatePermits::cancel);
                    return Ok(None);
                }
                Err(error) => recheck.cached_denial().ok_or(error)?,
            },
        };
        if let Some(entered) = entered {
            entered.apply_tightest(group, &mut answer);
            entered.attach_to(&mut answer);
        }
        if self.rules.has_waiting_rules {
            self.wake_waiters_on_release(&mut answer);
        }
        Ok(Some(answer))
    }

    /// Queries the backend.
    async fn ask_backend(
        &self,
        each: Option<&mut Vec<Decision>>,
        trees: Option<&mut TreeCharge<'_, '_>>,
    ) -> Result<Option<Answer>, B::Error> {
        let checks = self.request_match.enforced.checks.as_slice();
        let Some(trees) = trees else {
            let mut results = Vec::new();
            // With one limit, the answer is its decision.
            let listed = (each.is_some() && checks.len() > 1).then_some(&mut results);
            let answer = self.backend.ask(checks, listed).await?;
            if let Some(each) = each {
                *each = decisions(&results);
            }
            return Ok(Some(answer));
        };
        // Boxed, because few requests have both, and every connection's future has room for the largest step.
        let asked = Box::pin(trees.charge(self.backend, checks)).await?;
        Ok(asked.map(|asked| {
            if let Some(each) = each {
                *each = asked.rule_decisions;
            }
            asked.answer
        }))
    }

    /// Checks each rule in shadow mode for an allowed request. `charged_to_trees` are the checks that trees charged.
    pub(super) async fn check_shadow(
        &self,
        said: &mut DecisionBasis,
        charged_to_trees: &[Check<'_>],
    ) {
        let gathered = self.request_match;
        // If a fallback decided, the store was charged nothing.
        let is_charged = said.unavailable.is_none() && self.is_cancellable;
        // If the caller drops this future, the guard refunds every charge so far.
        let mut unanswered = RefundGuard::new(self.backend, mem::take(&mut said.permits));
        if !gathered.shadow.checks.as_slice().is_empty() {
            unanswered.record_charge(charged_to_trees);
            if is_charged {
                unanswered.record_charge(gathered.enforced.checks.as_slice());
            }
        }
        for run in gathered.shadow_queries() {
            let entered = match GatePermits::acquire_shadow(run.gate) {
                Ok(entered) => entered,
                Err(denied) => {
                    said.shadows.push(denied);
                    continue;
                }
            };
            let answer = match run.checks {
                [] => Ok(Answer::new(None, Decision::UNLIMITED)),
                checks => self.backend.ask(checks, None).await,
            };
            let Ok(mut answer) = answer else {
                continue;
            };
            if answer.allowed && answer.unavailable.is_none() && self.is_cancellable {
                unanswered.record_charge(run.checks);
            }
            entered.attach_to(&mut answer);
            (self.recorder).count_shadow_passed(self.rules, run.rule, &answer);
            match run.denial(gathered, &answer) {
                Some(denied) => said.shadows.push(denied),
                None if self.rules.rules[run.rule as usize].holds_permits => {
                    unanswered.held.hold(answer.pass);
                }
                None => {}
            }
        }
        said.permits = unanswered.disarm();
    }

    /// Peeks the enforced limits, and the rules in shadow mode if those would allow the request.
    pub(super) async fn peek(&self, said: &mut DecisionBasis) -> Result<(), B::Error> {
        let gathered = self.request_match;
        let answer = match self.queue_ahead() {
            Some(answer) => answer,
            None => {
                let checks = gathered.enforced.checks.as_slice();
                let each = self.backend.peek(checks).await?;
                GatePermits::peek_all(gathered, Answer::from_results(checks, &each))
            }
        };
        said.apply_answer(gathered, answer);
        if said.is_allowed {
            for run in gathered.shadow_queries() {
                let gate = run.gate.map(|gate| (gate, gate.peek()));
                let denied = gate.filter(|(_, decision)| !decision.is_allowed());
                let denied = match (denied, run.checks) {
                    (Some((gate, decision)), _) => Some(gate.decided(decision)),
                    (None, []) => None,
                    (None, checks) => self.backend.peek(checks).await.ok().and_then(|each| {
                        run.denial(gathered, &Answer::from_results(checks, &each))
                    }),
                };
                denied
                    .into_iter()
                    .for_each(|denied| said.shadows.push(denied));
            }
        }
        Ok(())
    }

    /// Wakes waiters when the request releases the permits or estimates that they wait for.
    #[inline(never)]
    fn wake_waiters_on_release(&self, answer: &mut Answer) {
        let (rules, gathered) = (self.rules, self.request_match);
        if !answer.allowed {
            return;
        }
        for (_, gate) in gathered.gates_in(Mode::Enforce) {
            if rules.rules[gate.rule_match.number as usize]
                .max_wait
                .is_some()
            {
                let (turns, spot) = (Arc::clone(self.wait_queues), QueueKey::of(&gate.check()));
                answer.pass.on_end(move |_| turns.poke(spot));
            }
        }
        for (check, rule) in gathered.enforced.checks_with_rules() {
            let rule = &rules.rules[rule as usize];
            // Other rules with the same counter may let requests wait for it.
            if !(rule.max_wait.is_some() || rule.is_shared || rule.is_tier) {
                continue;
            }
            let (turns, spot) = (Arc::clone(self.wait_queues), QueueKey::of(check));
            if let LimitKind::Concurrency(_) = check.limit.kind() {
                answer.pass.on_end(move |_| turns.poke(spot));
            } else if check.limit.is_estimated {
                answer.pass.hold_estimate(WakeOnSettle(turns, spot));
            }
        }
    }
}
