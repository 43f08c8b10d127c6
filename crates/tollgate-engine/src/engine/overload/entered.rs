//! The gates that a request has to enter, and what it holds of them until the backend has answered.

use tollgate::concurrency::OwnedPermit;
use tollgate::{Decision, Outcome};
use tollgate_adaptive::shed::Criticality;

use super::{Adapting, Gate, Time};
use crate::engine::gather::{Gathered, Group, Met};
use crate::engine::recorder::Recorder;
use crate::engine::rules::Rules;
use crate::engine::turns::Demand;
use crate::limits::{Answer, Check, LimitKind};
use crate::policy::Mode;
use crate::verdict::{By, Said, Shadowed};

/// A gate that a rule has for a request.
#[derive(Debug)]
pub(crate) struct GateCheck<'a> {
    /// The rule, and its key.
    pub(crate) met: Met,
    pub(crate) mode: Mode,
    pub(crate) adapting: &'a Adapting,
    pub(crate) gate: &'a Gate,
    pub(crate) class: Criticality,
}

impl<'a> GateCheck<'a> {
    /// It as a question, to stand in line for it.
    pub(crate) fn check(&self) -> Check<'a> {
        self.adapting.check()
    }

    /// What the request asks for in line.
    pub(crate) fn demand(&self) -> Demand {
        Demand::of(&self.check()).of_class(self.class)
    }

    /// What the request would be told by it alone.
    pub(crate) fn look(&self) -> Decision {
        self.gate.look(self.class)
    }

    /// What it would have refused.
    fn shadowed(&self, decision: Decision) -> Shadowed {
        Shadowed {
            by: By::Applied(self.met.number),
            fingerprint: self.met.fingerprint,
            set: self.met.set,
            limit: self.adapting.limit.id,
            decision,
        }
    }

    /// Enters a rule that is by itself, as those in shadow are.
    pub(crate) fn enter(&self) -> Result<Entered, Decision> {
        let (permit, decision) = self.gate.enter(self.class).map_err(|(_, told)| told)?;
        Ok(Entered {
            permits: vec![permit],
            tightest: Some((0, decision)),
        })
    }
}

/// What is held of gates.
#[derive(Debug, Default)]
pub(crate) struct Entered {
    permits: Vec<OwnedPermit<Time>>,
    /// The gate that has the fewest places left, and what it said.
    tightest: Option<(usize, Decision)>,
}

/// What happened between entering and the answer, which is none of the time that the request takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Beside {
    /// Nothing that takes time.
    Nothing,
    /// A backend was asked that may be far.
    Asking,
}

impl Entered {
    /// Enters all gates of the rules in force, or none. The refusal counts gates after the checks.
    #[inline(never)]
    pub(crate) fn all(gathered: &Gathered<'_>) -> Result<Self, (usize, Decision)> {
        let mut entered = Self::default();
        for (number, gate) in gathered.gates_in(Mode::Enforce) {
            match gate.gate.enter(gate.class) {
                Ok((permit, decision)) => {
                    entered.permits.push(permit);
                    let least = entered.tightest.map(|(_, least)| least.remaining);
                    if least.is_none_or(|least| decision.remaining < least) {
                        entered.tightest = Some((number, decision));
                    }
                }
                Err((_, decision)) => {
                    entered.leave();
                    return Err((number, decision));
                }
            }
        }
        Ok(entered)
    }

    /// What looking at all of them says, of a request that the rest would answer like this.
    pub(crate) fn look(gathered: &Gathered<'_>, mut answer: Answer) -> Answer {
        let mut tightest: Option<(usize, Decision)> = None;
        for (number, gate) in gathered.gates_in(Mode::Enforce) {
            let decision = gate.look();
            if decision.outcome != Outcome::Allowed {
                return Answer::new(Some(number), decision);
            }
            if tightest.is_none_or(|(_, least)| decision.remaining < least.remaining) {
                tightest = Some((number, decision));
            }
        }
        decide(&gathered.enforced, tightest, &mut answer);
        answer
    }

    /// Goes on with what the backend said: the request runs and holds its places, or leaves them as if it had never come.
    /// If it runs, a gate decides if it has the fewest places left.
    pub(crate) fn join(self, group: &Group<'_>, beside: Beside, answer: &mut Answer) {
        let tightest = self.tightest;
        self.hold(beside, answer);
        decide(group, tightest, answer);
    }

    /// The same, whatever decides.
    pub(crate) fn hold(self, beside: Beside, answer: &mut Answer) {
        if !answer.allowed {
            return self.leave();
        }
        for mut permit in self.permits {
            if beside == Beside::Asking {
                permit.restart();
            }
            answer.pass.hold_permit(permit);
        }
    }

    /// The request never ran.
    pub(crate) fn leave(self) {
        for permit in self.permits {
            permit.cancel();
        }
    }
}

/// Of a request that passes, the limit decides that has the fewest such requests left.
fn decide(group: &Group<'_>, tightest: Option<(usize, Decision)>, answer: &mut Answer) {
    let Some((number, decision)) = tightest.filter(|_| answer.allowed) else {
        return;
    };
    let decider = answer
        .decider
        .and_then(|own| group.checks.as_slice().get(own));
    let left = decider.map(|check| match check.limit.kind() {
        LimitKind::Concurrency(_) => answer.decision.remaining,
        _ => answer.decision.remaining / check.cost.max(1),
    });
    if left.is_none_or(|left| decision.remaining < left) {
        (answer.decider, answer.decision) = (Some(number), decision);
    }
}

impl Gathered<'_> {
    /// Whether a rule in shadow has this gate and nothing else.
    fn is_alone(&self, gate: &GateCheck<'_>) -> bool {
        let askers = self.shadow.askers.as_slice();
        !askers.contains(&gate.met.number)
    }
}

impl Said {
    /// Enters the gate of a rule in shadow, if it has one. None if that would have refused.
    #[inline]
    pub(in crate::engine) fn enter_in_shadow(
        &mut self,
        gathered: &Gathered<'_>,
        number: u32,
    ) -> Option<Entered> {
        if gathered.gates.is_none() {
            return Some(Entered::default());
        }
        let mut gates = gathered.gates_in(Mode::Shadow);
        match gates.find(|(_, gate)| gate.met.number == number) {
            Some((_, gate)) => self.enter_or_note(gate),
            None => Some(Entered::default()),
        }
    }

    fn enter_or_note(&mut self, gate: &GateCheck<'_>) -> Option<Entered> {
        let entered = gate.enter();
        let noted = entered.map_err(|decision| self.shadows.push(gate.shadowed(decision)));
        noted.ok()
    }
}

impl Said {
    /// Whether the gate of a rule in shadow would let the request in, or there is none.
    pub(in crate::engine) fn look_in_shadow(
        &mut self,
        gathered: &Gathered<'_>,
        number: u32,
    ) -> bool {
        let mut gates = gathered.gates_in(Mode::Shadow);
        let gate = gates.find(|(_, gate)| gate.met.number == number);
        gate.is_none_or(|(_, gate)| self.look_or_note(gate))
    }

    /// Looks at the gates of rules in shadow that have nothing else.
    pub(in crate::engine) fn look_alone(&mut self, gathered: &Gathered<'_>) {
        for (_, gate) in gathered.gates_in(Mode::Shadow) {
            if gathered.is_alone(gate) {
                self.look_or_note(gate);
            }
        }
    }

    fn look_or_note(&mut self, gate: &GateCheck<'_>) -> bool {
        let decision = gate.look();
        if !decision.is_allowed() {
            self.shadows.push(gate.shadowed(decision));
        }
        decision.is_allowed()
    }
}

impl Said {
    /// Enters the gates of rules in shadow that have nothing else.
    #[cold]
    pub(in crate::engine) fn enter_alone(
        &mut self,
        rules: &Rules,
        gathered: &Gathered<'_>,
        recorder: &Recorder,
    ) {
        for (_, gate) in gathered.gates_in(Mode::Shadow) {
            let number = gate.met.number;
            if gathered.is_alone(gate)
                && let Some(entered) = self.enter_or_note(gate)
            {
                let mut answer = Answer::new(None, Decision::UNLIMITED);
                entered.hold(Beside::Nothing, &mut answer);
                self.hear_shadow((rules, gathered), (number, &[]), answer, recorder);
            }
        }
    }
}
