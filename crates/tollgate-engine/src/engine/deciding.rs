//! Deciding by a backend that may take its time, and waiting for a turn where a rule says so.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use arc_swap::Guard;
use tollgate::clock::{Clock, Wakeup, sleep_until};
use tollgate::{Decision, Outcome, Timestamp};

use super::gather::Gathered;
use super::orders::Held;
use super::overload::{Beside, Entered};
use super::rules::Rules;
use super::turns::{Coming, Demand, SOON, Spot, Stand, Standing};
use super::{Conditions, Engine, runs};
use crate::backend::Backend;
use crate::facts::Facts;
use crate::limits::{Answer, LimitKind};
use crate::policy::{Mode, OnStoreFailure};
use crate::verdict::{Findings, Said, Verdict};

/// If it isn't known when there is room, as of slots, it is looked for so often.
const POLL: Duration = Duration::from_millis(10);

/// The time of a backend, as a clock.
struct TimeOf<'a, B>(&'a B);

impl<B: Backend> Clock for TimeOf<'_, B> {
    fn now(&self) -> Timestamp {
        self.0.now()
    }

    fn wake_at(&self, at: Timestamp, waker: &Waker) -> Option<Wakeup> {
        self.0.wake_at(at, waker)
    }
}

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

/// What the request that asks has waited so far.
struct Waited<'a> {
    since: Timestamp,
    /// Where it stands.
    standing: Option<Standing<'a>>,
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
            if !said.settle(&gathered) {
                // A request that had its turn in one line passes other lines: else two would wait for each other.
                let is_new = rules.waits && standing.is_none();
                let behind = if is_new && self.turns.is_any() {
                    self.line_before(&rules, &gathered)
                } else {
                    None
                };
                let mut answer = match behind {
                    Some(answer) => answer,
                    None => self.ask(&rules, &gathered).await?,
                };
                if rules.waits {
                    self.tell_of_what_comes_back(&rules, &gathered, &mut answer);
                    over = Self::over(&rules, &gathered, &answer);
                }
                said.hear(&gathered, answer);
                if said.allowed {
                    for (number, checks) in runs(&gathered.shadow) {
                        let Some(entered) = said.enter_in_shadow(&gathered, number) else {
                            continue;
                        };
                        if let Ok(mut answer) = self.backend.check(checks).await {
                            entered.hold(Beside::Asking, &mut answer);
                            self.count_in_shadow(&rules, number, &answer);
                            said.overhear(&rules, (number, checks), answer);
                        }
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

    /// What the rules in force say, or what is remembered of it.
    async fn ask(&self, rules: &Rules, gathered: &Gathered<'_>) -> Result<Answer, B::Error> {
        if gathered.gates.is_none() {
            return self.ask_backend(rules, gathered).await;
        }
        let entered = match Entered::all(gathered) {
            Ok(entered) => entered,
            Err((gate, decision)) => return Ok(Answer::new(Some(gate), decision)),
        };
        // With nothing to ask, it isn't asked whether it is there.
        let mut answer = match gathered.enforced.checks.as_slice() {
            [] => Answer::new(None, Decision::UNLIMITED),
            _ => self.ask_backend(rules, gathered).await?,
        };
        entered.join(&gathered.enforced, Beside::Asking, &mut answer);
        Ok(answer)
    }

    async fn ask_backend(
        &self,
        rules: &Rules,
        gathered: &Gathered<'_>,
    ) -> Result<Answer, B::Error> {
        let asked = self.before_asking(rules, &gathered.enforced);
        if let Some(answer) = asked.known {
            return Ok(answer);
        }
        let answer = self
            .backend
            .check(gathered.enforced.checks.as_slice())
            .await?;
        self.after_asking(&gathered.enforced, &answer, (asked.at, asked.version));
        Ok(answer)
    }

    /// The refusal by a line of others that the request would pass.
    fn line_before(&self, rules: &Rules, gathered: &Gathered<'_>) -> Option<Answer> {
        let now = self.backend.now();
        let group = &gathered.enforced;
        let checks = group.checks.as_slice().iter().zip(group.askers.as_slice());
        let lines = checks.enumerate().filter_map(|(number, (check, asker))| {
            let demand = rules.applied[*asker as usize].demand(check, gathered.now);
            let behind = self.turns.behind_any(&demand, now)?;
            Some((number, behind))
        });
        let gates = gathered
            .gates_in(Mode::Enforce)
            .filter_map(|(number, gate)| {
                let behind = self.turns.behind_any(&gate.demand(), now)?;
                Some((number, behind))
            });
        let lines = lines.chain(gates);
        let longest = lines.max_by_key(|(_, behind)| behind.retry_after);
        longest.map(|(number, behind)| Answer::new(Some(number), behind))
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
                answer.pass.hold_estimate(move |_| turns.poke(spot));
            }
        }
    }

    /// The limit that refused, if its rule lets requests wait for it.
    fn over(rules: &Rules, gathered: &Gathered<'_>, answer: &Answer) -> Option<(Demand, Duration)> {
        if answer.allowed {
            return None;
        }
        let group = &gathered.enforced;
        let asked = || group.checks.as_slice().iter().zip(group.askers.as_slice());
        let is_limit = answer.fallback != Some(OnStoreFailure::Closed);
        let can_wait = is_limit && answer.decision.outcome == Outcome::Denied;
        let decider = answer.decider.filter(|_| can_wait)?;
        if let Some(gate) = gathered.gate(decider) {
            let rule = &rules.applied[gate.met.number as usize];
            return Some((gate.demand(), rule.waits?));
        }
        let (check, asker) = asked().nth(decider)?;
        let rule = &rules.applied[*asker as usize];
        Some((rule.demand(check, gathered.now), rule.waits?))
    }

    /// Waits and asks, until the request passes, or can't in time.
    async fn wait_and_ask(
        &self,
        facts: &Facts<'_>,
        on: Conditions<'_>,
        mut attempt: Attempt,
    ) -> Result<Attempt, B::Error> {
        let mut told_at = self.backend.now();
        let mut waited = Waited {
            since: told_at,
            standing: None,
        };
        while let Some((demand, longest)) = attempt.over {
            let deadline = waited.since + longest;
            let told = (attempt.said.decision, attempt.pokes);
            if !self.stand(&mut waited, demand, told, deadline) {
                break;
            }
            let Some(standing) = &waited.standing else {
                break;
            };
            if !self.is_its_turn(standing, deadline).await {
                break;
            }
            attempt = self.attempt(facts, on, Some(standing)).await?;
            if attempt.is_outdated {
                return Ok(attempt);
            }
            told_at = self.backend.now();
        }
        let (standing, now) = (waited.standing, self.backend.now());
        if let (Some(_), Some(tallies)) = (&standing, &self.tallies) {
            tallies.waits.add(now - waited.since);
        }
        match standing {
            Some(standing) if attempt.said.allowed => {
                // What another limit has left says nothing of this one.
                let said = &attempt.said;
                let left = if Spot::new(said.limit, said.fingerprint) == standing.spot() {
                    said.decision.remaining
                } else {
                    u64::MAX
                };
                standing.passed(left, now);
            }
            // It is told how long it had to wait if it came again.
            _ => {
                let turn = standing.map_or(Duration::ZERO, |standing| standing.turn_in(now));
                let line = attempt
                    .over
                    .and_then(|(demand, _)| self.turns.behind(&demand, now));
                let decision = &mut attempt.said.decision;
                let rest = decision.retry_after.saturating_sub(now - told_at);
                let least = match decision.retry_after {
                    Duration::ZERO => Duration::ZERO,
                    _ => SOON,
                };
                *decision = line.unwrap_or(*decision);
                let behind = line.map_or(Duration::ZERO, |line| line.retry_after);
                decision.retry_after = rest.max(turn).max(behind).max(least);
            }
        }
        Ok(attempt)
    }

    /// Stands in the line for what refused, or stays there: no if that can't end in time.
    fn stand<'a>(
        &'a self,
        waited: &mut Waited<'a>,
        demand: Demand,
        (said, pokes): (Decision, u64),
        deadline: Timestamp,
    ) -> bool {
        let now = self.backend.now();
        if now >= deadline {
            return false;
        }
        let asks_at = match said.retry_after {
            Duration::ZERO => (now + POLL).min(deadline),
            wait => now + wait,
        };
        let asks_at = demand.until.map_or(asks_at, |until| asks_at.min(until));
        let is_own = |standing: &&mut Standing<'_>| standing.spot() == demand.spot;
        match waited.standing.as_mut().filter(is_own) {
            Some(standing) => standing.asks_again(demand, said, asks_at),
            // What it stood in line for has room, and something else hasn't.
            None => {
                let most = self.bounds.waiting;
                waited.standing = None;
                let behind = self.turns.behind(&demand, now);
                let turn = behind.map_or(asks_at, |behind| now + behind.retry_after);
                if turn > deadline {
                    return false;
                }
                let coming = Coming {
                    said,
                    asks_at,
                    deadline,
                    pokes,
                };
                waited.standing = self.turns.join(demand, coming, most);
                return waited.standing.is_some();
            }
        }
        asks_at <= deadline
    }

    /// Whether it is the first in line and there may be room, before its time is over.
    async fn is_its_turn(&self, standing: &Standing<'_>, deadline: Timestamp) -> bool {
        let mut sleep = pin!(sleep_until(TimeOf(&self.backend), deadline));
        poll_fn(|context: &mut Context<'_>| {
            loop {
                let (at, is_turn) = match standing.look(context.waker(), self.backend.now()) {
                    Stand::First(asks_at) if asks_at <= deadline => (asks_at, Some(true)),
                    Stand::Behind(until) if until < deadline => (until.plus_nanos(1), None),
                    Stand::First(_) | Stand::Behind(_) => (deadline, Some(false)),
                    Stand::Lost => return Poll::Ready(false),
                };
                sleep.as_mut().reset(at);
                match (sleep.as_mut().poll(context), is_turn) {
                    (Poll::Pending, _) => return Poll::Pending,
                    (Poll::Ready(()), Some(is_turn)) => return Poll::Ready(is_turn),
                    // The one before it is lost: it looks where it stands now.
                    (Poll::Ready(()), None) => {}
                }
            }
        })
        .await
    }

    /// Whether a request that can't wait would pass others who do: it is refused then, and told how long it had
    /// to.
    #[cold]
    pub(super) fn stands_behind(
        &self,
        said: &mut Said,
        rules: &Rules,
        gathered: &Gathered<'_>,
    ) -> bool {
        let answer = self.line_before(rules, gathered);
        let is_behind = answer.is_some();
        if let Some(answer) = answer {
            said.hear(gathered, answer);
        }
        is_behind
    }
}
