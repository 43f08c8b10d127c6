//! The gates that a request has to enter, and the permits that it holds of them until the backend has answered.

use tollgate::concurrency::OwnedPermit;
use tollgate::{Decision, Outcome};

use crate::engine::overload_control::BackendClock;
use crate::engine::request_match::{CheckGroup, GateCheck, RequestMatch};
use crate::limits::Answer;
use crate::policy::Mode;
use crate::verdict::RuleDecision;

/// The permits of gates.
#[derive(Debug, Default)]
pub(in crate::engine) struct GatePermits {
    permits: Vec<OwnedPermit<BackendClock>>,
    /// The gate with the fewest permits remaining, and its decision.
    tightest: Option<(usize, Decision)>,
}

impl GatePermits {
    /// Enters all gates of the enforced rules, or none. An error numbers gates after the checks.
    #[inline(never)]
    pub(in crate::engine) fn acquire_all(
        gathered: &RequestMatch<'_>,
    ) -> Result<Self, (usize, Decision)> {
        let mut entered = Self::default();
        for (number, gate) in gathered.gates_in(Mode::Enforce) {
            match gate.gate.try_acquire(gate.class) {
                Ok((permit, decision)) => {
                    entered.permits.push(permit);
                    entered.update_tightest(number, decision);
                }
                Err(decision) => {
                    entered.cancel();
                    return Err((number, decision));
                }
            }
        }
        Ok(entered)
    }

    /// Enters the gate of a rule in shadow mode, if it has one. The error is its denial.
    pub(in crate::engine) fn acquire_shadow(
        gate: Option<&GateCheck<'_>>,
    ) -> Result<Self, RuleDecision> {
        let mut entered = Self::default();
        if let Some(gate) = gate {
            let own = gate.gate.try_acquire(gate.class);
            let (permit, _) = own.map_err(|decision| gate.decided(decision))?;
            entered.permits.push(permit);
        }
        Ok(entered)
    }

    /// Peeks all gates, and combines them with the answer of the other limits.
    pub(in crate::engine) fn peek_all(gathered: &RequestMatch<'_>, mut answer: Answer) -> Answer {
        let mut looked = Self::default();
        for (number, gate) in gathered.gates_in(Mode::Enforce) {
            let decision = gate.peek();
            if decision.outcome != Outcome::Allowed {
                return Answer::new(Some(number), decision);
            }
            looked.update_tightest(number, decision);
        }
        looked.apply_tightest(&gathered.enforced, &mut answer);
        answer
    }

    fn update_tightest(&mut self, number: usize, decision: Decision) {
        let tightest = self.tightest;
        if tightest.is_none_or(|(_, least)| decision.remaining < least.remaining) {
            self.tightest = Some((number, decision));
        }
    }

    /// For an allowed request, the limit with the fewest such requests remaining decides.
    pub(in crate::engine) fn apply_tightest(&self, group: &CheckGroup<'_>, answer: &mut Answer) {
        let Some((number, decision)) = self.tightest.filter(|_| answer.allowed) else {
            return;
        };
        let decider = answer
            .decider
            .and_then(|own| group.checks.as_slice().get(own));
        let left = decider.map(|check| answer.decision.remaining / check.units().max(1));
        if left.is_none_or(|left| decision.remaining < left) {
            (answer.decider, answer.decision) = (Some(number), decision);
        }
    }

    /// Follows the backend's answer: attaches the permits to an allowed request, or cancels them.
    pub(in crate::engine) fn attach_to(self, answer: &mut Answer) {
        if !answer.allowed {
            return self.cancel();
        }
        for mut permit in self.permits {
            // The backend's latency doesn't count as the request's.
            permit.restart();
            answer.pass.hold_permit(permit);
        }
    }

    /// The request never ran, so adaptive limits get no sample.
    pub(in crate::engine) fn cancel(self) {
        for permit in self.permits {
            permit.cancel();
        }
    }
}
