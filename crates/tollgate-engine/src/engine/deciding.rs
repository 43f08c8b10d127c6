//! Deciding by a backend that may take its time.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::Guard;
use tollgate::stack::{Expire, Settled, Settlement, TimedEstimate};
use tollgate::{Decision, Timestamp};

use super::gather::Gathered;
use super::orders::Held;
use super::overload::{Beside, Entered};
use super::remembered::Remembered;
use super::rules::Rules;
use super::turns::{Demand, Spot, Standing, Turns};
use super::{Conditions, Engine, runs};
use crate::backend::Backend;
use crate::facts::Facts;
use crate::limits::{Answer, CheckResult, LimitKind, decisions};
use crate::policy::Mode;
use crate::verdict::{Findings, Said, Verdict};

mod unanswered;
mod wait;

pub(super) use unanswered::Unanswered;

/// What came of asking once.
pub(super) struct Attempt {
    rules: Arc<Rules>,
    said: Said,
    /// The limit that refused, if its rule lets requests wait, and for how long.
    over: Option<(Demand, Duration)>,
    /// How often something had come back before it was asked.
    pokes: u64,
    /// It wasn't asked: the rules in force want to know more.
    pub(super) is_outdated: bool,
}

/// Wakes those who wait for what an estimate gives back.
struct Poke(Arc<Turns>, Spot);

impl TimedEstimate for Poke {
    fn settle(&mut self, _: Settled) -> Settlement {
        self.0.poke(self.1);
        Settlement::InTime
    }

    fn time_left(&self) -> Option<Duration> {
        None
    }

    fn expire(&mut self, _: Expire) {
        self.0.poke(self.1);
    }

    fn renew(&mut self) {}
}

impl<B: Backend> Engine<B> {
    /// Decides a request by a backend that may take its time.
    ///
    /// Where a rule says `over: wait 200ms`, a request that is over it waits for its turn: first come, first
    /// served among those of this process, with nothing held meanwhile. At its turn the whole request is asked
    /// again. One that can't have its turn in time is refused at once, and dropping this future frees the place.
    /// The nodes of a fleet don't stand in one line: each has its own, and the one whose question reaches the store first
    /// when there is room again passes first. Of several rules that refuse, the one that takes longest says whether to wait.
    ///
    /// # Errors
    /// If the backend couldn't be asked about the rules in force. Those in shadow are left out then.
    ///
    /// ```
    /// # use tollgate::clock::Manual;
    /// # use tollgate_engine::backend::Memory;
    /// # use tollgate_engine::document::Format;
    /// # use tollgate_engine::{Engine, Facts, Policy};
    /// # let memory = Memory::builder().clock(Manual::new()).wall(Manual::new()).build();
    /// # let policy = Policy::from_text("limits: [{name: all, rate: 1/s}]", Format::Yaml)?.policy;
    /// let engine = Engine::new(policy, memory)?;
    /// let decide = async || {
    ///     let facts = Facts::new();
    ///     let passed = engine.decide_async(&facts).await?.passed();
    ///     Ok::<bool, std::convert::Infallible>(passed.is_some())
    /// };
    /// # use std::{pin::pin, task::{Context, Poll, Waker}};
    /// # let done = pin!(decide()).poll(&mut Context::from_waker(Waker::noop()));
    /// # assert_eq!(done, Poll::Ready(Ok(true)));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub async fn decide_async<'f>(&self, facts: &'f Facts<'f>) -> Result<Verdict<'f>, B::Error> {
        let started = self.started();
        let attempt = self.attempts(facts, Conditions::new()).await?;
        Ok(self.concluded(facts, attempt, started))
    }

    /// Asks until the request passes, or doesn't.
    pub(super) async fn attempts(
        &self,
        facts: &Facts<'_>,
        on: Conditions<'_>,
    ) -> Result<Attempt, B::Error> {
        let attempt = self.attempt(facts, on, None).await?;
        if attempt.over.is_some() && on.may_wait() {
            return Box::pin(self.wait_and_ask(facts, on, attempt)).await;
        }
        Ok(attempt)
    }

    /// What came of it, told to those who want to know.
    pub(super) fn concluded<'f>(
        &self,
        facts: &'f Facts<'f>,
        Attempt { rules, said, .. }: Attempt,
        started: Option<Timestamp>,
    ) -> Verdict<'f> {
        let rules = Guard::from_inner(rules);
        let verdict = Verdict::new(Findings { said, rules, facts });
        if !verdict.said.allowed
            && let Some(tallies) = &self.tallies
        {
            tallies.refused(&verdict.rules, &verdict.said);
        }
        self.tell(&verdict, started);
        verdict.settled()
    }

    /// Asks once, by the policy that is in force now.
    async fn attempt(
        &self,
        facts: &Facts<'_>,
        on: Conditions<'_>,
        standing: Option<&Standing<'_>>,
    ) -> Result<Attempt, B::Error> {
        // Before the policy is read, and any limit asked.
        let pokes = self.turns.pokes();
        let rules = self.rules.load_full();
        let mut said = Said::default();
        let mut over = None;
        let is_outdated = on.lacks_facts_of(&rules);
        if !is_outdated {
            let orders = self.ordered(&rules);
            let orders = orders.as_ref().map(Held::in_force);
            let mut gathered = Gathered::new();
            let bounds = (&self.hashers, &self.bounds);
            gathered.fill((&rules, orders), facts, bounds, &self.backend);
            // One that waits and asks again is the same request.
            if standing.is_none() {
                if let Some(ordered) = &gathered.ordered {
                    ordered.count();
                }
                self.note_lacks(&rules, &gathered, facts);
            }
            if !said.settle(&gathered) {
                let mut each = Vec::new();
                let mut answer = match self.queue_ahead(&rules, &gathered, standing) {
                    Some(answer) => answer,
                    None => {
                        let each = on.lists_limits().then_some(&mut each);
                        self.ask(&rules, &gathered, each).await?
                    }
                };
                if rules.waits {
                    self.tell_of_what_comes_back(&rules, &gathered, &mut answer);
                    over = Self::over(&rules, &gathered, &answer);
                }
                said.hear(&gathered, answer);
                said.list_limits(&gathered, &decisions(&each));
                if said.allowed {
                    if !gathered.shadow.checks.as_slice().is_empty() {
                        self.ask_shadow(&mut said, &rules, &gathered).await;
                    }
                    if gathered.gates.is_some() {
                        self.enter_alone(&mut said, &rules, &gathered);
                    }
                }
            }
            // One that is refused may still wait, and pass.
            if said.allowed
                && let Some(tallies) = &self.tallies
            {
                tallies.passed(&rules, &gathered, &said);
            }
        }
        Ok(Attempt {
            rules,
            said,
            over,
            pokes,
            is_outdated,
        })
    }

    /// Asks each rule in shadow by itself. One whose backend fails is left out.
    async fn ask_shadow(&self, said: &mut Said, rules: &Rules, gathered: &Gathered<'_>) {
        // What decided instead of a store has charged nothing there.
        let is_charged = said.unavailable.is_none();
        let mut unanswered = Unanswered::new(&self.backend, said);
        if is_charged {
            unanswered.is_charged(gathered.enforced.checks.as_slice());
        }
        for (number, checks) in runs(&gathered.shadow) {
            let Some(entered) = unanswered.held.enter_in_shadow(gathered, number) else {
                continue;
            };
            if let Ok(mut answer) = self.backend.ask(checks, None).await {
                entered.hold(Beside::Asking, &mut answer);
                self.count_in_shadow(rules, number, &answer);
                if answer.allowed && answer.unavailable.is_none() {
                    unanswered.is_charged(checks);
                }
                let said = &mut *unanswered.held;
                said.overhear((rules, gathered), (number, checks), answer);
            }
        }
        unanswered.answered();
    }

    /// What the rules in force say, or what is remembered of it.
    async fn ask(
        &self,
        rules: &Rules,
        gathered: &Gathered<'_>,
        each: Option<&mut Vec<CheckResult>>,
    ) -> Result<Answer, B::Error> {
        if gathered.gates.is_none() {
            return self.ask_backend(rules, gathered, each).await;
        }
        let entered = match Entered::all(gathered) {
            Ok(entered) => entered,
            Err((gate, decision)) => return Ok(Answer::new(Some(gate), decision)),
        };
        // With nothing to ask, it isn't asked whether it is there.
        let mut answer = match gathered.enforced.checks.as_slice() {
            [] => Answer::new(None, Decision::UNLIMITED),
            _ => self.ask_backend(rules, gathered, each).await?,
        };
        entered.join(&gathered.enforced, Beside::Asking, &mut answer);
        Ok(answer)
    }

    async fn ask_backend(
        &self,
        rules: &Rules,
        gathered: &Gathered<'_>,
        each: Option<&mut Vec<CheckResult>>,
    ) -> Result<Answer, B::Error> {
        let asking = match self.before_asking(rules, &gathered.enforced) {
            Remembered::Denied(answer) => return Ok(answer),
            Remembered::Asking(asking) => asking,
        };
        let checks = gathered.enforced.checks.as_slice();
        // Of one limit the answer tells all.
        let each = each.filter(|_| checks.len() > 1);
        match self.backend.ask(checks, each).await {
            Ok(answer) => Ok(self.after_asking(&gathered.enforced, answer, asking)),
            Err(error) => asking.without_backend().ok_or(error),
        }
    }

    /// Requests that wait for what this one holds are told when it comes back.
    #[inline(never)]
    pub(super) fn tell_of_what_comes_back(
        &self,
        rules: &Rules,
        gathered: &Gathered<'_>,
        answer: &mut Answer,
    ) {
        for (_, gate) in gathered.gates_in(Mode::Enforce) {
            if answer.allowed && rules.applied[gate.met.number as usize].waits.is_some() {
                let (turns, spot) = (Arc::clone(&self.turns), Spot::of(&gate.check()));
                answer.pass.hold(move |_| turns.poke(spot));
            }
        }
        let group = &gathered.enforced;
        let asked = group.checks.as_slice().iter().zip(group.askers.as_slice());
        for (check, asker) in asked.filter(|_| answer.allowed) {
            let rule = &rules.applied[*asker as usize];
            // Others that count in the same state may let requests wait for it.
            if !(rule.waits.is_some() || rule.shares || rule.is_tier) {
                continue;
            }
            let (turns, spot) = (Arc::clone(&self.turns), Spot::of(check));
            if let LimitKind::Concurrency(_) = check.limit.kind() {
                answer.pass.hold(move |_| turns.poke(spot));
            } else if check.limit.is_estimated {
                answer.pass.hold_timed_estimate(Poke(turns, spot));
            }
        }
    }
}
