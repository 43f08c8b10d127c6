//! Deciding by a backend that may take its time.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::Guard;
use tollgate::stack::{Expire, Settled, Settlement, TimedEstimate};
use tollgate::{Decision, Timestamp};

use super::descriptors::{DescriptorFindings, DescriptorRequest, TreeCharge};
use super::gather::{Gathered, TreeMatch};
use super::orders::Held;
use super::overload::{Beside, Entered};
use super::remembered::Remembered;
use super::rules::Rules;
use super::turns::{Demand, Spot, Standing, Turns};
use super::unanswered::Unanswered;
use super::{Conditions, Engine, runs};
use crate::backend::Backend;
use crate::envoy::StatusCode;
use crate::facts::Facts;
use crate::limits::{Answer, Check, LimitKind, decisions};
use crate::policy::Mode;
use crate::verdict::{Findings, Said, Verdict};

mod combined;
mod wait;

pub use combined::CombinedVerdict;

/// A future whose type nobody has to know.
type Boxed<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A request: its facts, and the descriptors by which trees decide it together with the rules.
#[derive(Clone, Copy)]
pub(super) struct CombinedRequest<'r> {
    facts: &'r Facts<'r>,
    /// Those that trees decide together with the rules.
    descriptors: Option<DescriptorRequest<'r>>,
    /// Whether trees have decided it before.
    trees: TreeMatch,
    /// When its decision began, if somebody is to know how long it took.
    started: Option<Timestamp>,
}

impl<'r> CombinedRequest<'r> {
    /// A request of facts alone.
    pub(super) const fn of_facts(facts: &'r Facts<'r>) -> Self {
        Self {
            facts,
            descriptors: None,
            trees: TreeMatch::None,
            started: None,
        }
    }
}

/// One attempt to decide a request: the policy and the overrides that are in force, and where the request waits.
#[derive(Clone, Copy)]
struct Trial<'t> {
    rules: &'t Rules,
    orders: Option<&'t Held>,
    facts: &'t Facts<'t>,
    on: Conditions<'t>,
    standing: Option<&'t Standing<'t>>,
    trees: TreeMatch,
}

/// What a trial came to.
#[derive(Default)]
pub(super) struct Tried {
    pub(super) said: Said,
    /// What denied it, if its rule lets requests wait for that, and for how long.
    over: Option<(Demand, Duration)>,
    /// Whether the trees deny the request, and not the rules.
    is_denied_by_trees: bool,
}

/// What came of asking once.
pub(super) struct Attempt {
    rules: Arc<Rules>,
    tried: Tried,
    /// How often something had come back before it was asked.
    pokes: u64,
    /// It wasn't asked: the rules in force want to know more.
    pub(super) is_outdated: bool,
    /// The statuses of the descriptors of a request that passes, or that the trees deny.
    trees: Option<Box<(StatusCode, DescriptorFindings)>>,
    /// Whether trees limit it, and have reported it.
    is_by_trees: bool,
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
        let started = self.recorder.started(&self.backend);
        let attempt = self
            .attempts(CombinedRequest::of_facts(facts), Conditions::new())
            .await?;
        Ok(self.concluded(facts, attempt, started))
    }

    /// Decides a request as [`decide_async`](Self::decide_async), on these conditions. None if the policy in force asks for
    /// [more](Conditions::knowing) than was looked for: then nothing was charged, and nothing is held. Look for the facts that are
    /// asked now, and decide again.
    ///
    /// # Errors
    /// As `decide_async`.
    ///
    /// ```
    /// # use tollgate::clock::Manual;
    /// # use tollgate_engine::backend::Memory;
    /// # use tollgate_engine::document::Format;
    /// # use tollgate_engine::{Conditions, Engine, Facts, Policy};
    /// # fn read(text: &str) -> Result<Policy, Box<dyn std::error::Error>> {
    /// #     Ok(Policy::from_text(text, Format::Yaml)?.policy)
    /// # }
    /// # let memory = Memory::builder().clock(Manual::new()).wall(Manual::new()).build();
    /// let engine = Engine::new(read("limits: [{name: all, rate: 1/s, over: wait 9s}]")?, memory)?;
    /// let decide = async || {
    ///     let (asked, facts) = (engine.facts_asked().kept(), Facts::new());
    ///     let on = Conditions::new().knowing(&asked).at_once();
    ///     assert!(engine.decide_on(on, &facts).await?.is_some_and(|verdict| verdict.passed().is_some()));
    ///     // It isn't kept for its turn.
    ///     assert!(engine.decide_on(on, &facts).await?.is_some_and(|verdict| verdict.refused().is_some()));
    ///
    ///     engine.reload(read("limits: [{name: per-user, key: user, rate: 1/s}]")?)?;
    ///     assert!(engine.decide_on(on, &facts).await?.is_none(), "nobody has looked for a user");
    ///     Ok::<(), Box<dyn std::error::Error>>(())
    /// };
    /// # use std::{pin::pin, task::{Context, Poll, Waker}};
    /// # let done = pin!(decide()).poll(&mut Context::from_waker(Waker::noop()));
    /// # assert!(matches!(done, Poll::Ready(Ok(()))));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub async fn decide_on<'f>(
        &self,
        on: Conditions<'_>,
        facts: &'f Facts<'f>,
    ) -> Result<Option<Verdict<'f>>, B::Error> {
        let started = self.recorder.started(&self.backend);
        let attempt = self.attempts(CombinedRequest::of_facts(facts), on).await?;
        if attempt.is_outdated {
            return Ok(None);
        }
        Ok(Some(self.concluded(facts, attempt, started)))
    }

    /// Asks until the request passes, or doesn't.
    pub(super) async fn attempts(
        &self,
        request: CombinedRequest<'_>,
        on: Conditions<'_>,
    ) -> Result<Attempt, B::Error> {
        let attempt = self.attempt(request, on, None).await?;
        if attempt.tried.over.is_some() && on.may_wait() {
            return Box::pin(self.wait_and_ask(request, on, attempt)).await;
        }
        Ok(attempt)
    }

    /// What came of it, told to those who want to know.
    pub(super) fn concluded<'f>(
        &self,
        facts: &'f Facts<'f>,
        attempt: Attempt,
        started: Option<Timestamp>,
    ) -> Verdict<'f> {
        let rules = Guard::from_inner(attempt.rules);
        let said = attempt.tried.said;
        let verdict = Verdict::new(Findings { said, rules, facts });
        // Where only trees limit it, they have reported it.
        if !attempt.is_by_trees || !verdict.is_unmatched() {
            (self.recorder).report(&verdict, started, &self.backend);
        }
        verdict.settled()
    }

    /// Asks once, by the policy that is in force now.
    async fn attempt(
        &self,
        request: CombinedRequest<'_>,
        on: Conditions<'_>,
        standing: Option<&Standing<'_>>,
    ) -> Result<Attempt, B::Error> {
        // Before the policy is read, and any limit asked.
        let pokes = self.turns.pokes();
        let rules = self.rules.load_full();
        let mut attempt = Attempt {
            is_outdated: on.lacks_facts_of(&rules),
            rules,
            tried: Tried::default(),
            pokes,
            trees: None,
            is_by_trees: false,
        };
        if attempt.is_outdated {
            return Ok(attempt);
        }
        let orders = self.ordered(&attempt.rules);
        let trial = Trial {
            rules: &attempt.rules,
            orders: orders.as_ref(),
            facts: request.facts,
            on,
            standing,
            trees: request.trees,
        };
        let (tried, trees) = (&mut attempt.tried, &mut attempt.trees);
        if request.descriptors.is_none() {
            self.try_once(trial, tried, None).await?;
        } else {
            // In a box: few requests have both, and every connection has room for the largest step.
            let trying: Boxed<'_, _> = Box::pin(self.try_with_trees(trial, &request, tried, trees));
            trying.await?;
        }
        Ok(attempt)
    }

    /// Asks the limits of all rules that match, and those of the trees with them.
    async fn try_once(
        &self,
        trial: Trial<'_>,
        tried: &mut Tried,
        mut trees: Option<&mut TreeCharge<'_, '_>>,
    ) -> Result<(), B::Error> {
        let rules = trial.rules;
        let mut gathered = Gathered::new();
        let input = self.match_input(rules, trial.orders, trial.facts);
        let is_settled = if trial.standing.is_none() {
            self.prepare(input, &mut gathered, &mut tried.said)
        } else {
            // One that waits and asks again is the same request, and what it lacks is noted.
            gathered.fill(input, &self.backend);
            tried.said.settle(&gathered)
        };
        gathered.trees = match &trees {
            Some(trees) => trees.tree_match(rules),
            None => trial.trees,
        };
        if !is_settled || (tried.said.allowed && trees.is_some()) {
            let mut each = Vec::new();
            let answer = match self.queue_ahead(rules, &gathered, trial.standing) {
                Some(answer) => Some(answer),
                None => {
                    let each = trial.on.lists_limits().then_some(&mut each);
                    let trees = trees.as_deref_mut();
                    self.ask(rules, &gathered, each, trees).await?
                }
            };
            let mut answer = match answer {
                Some(answer) => answer,
                // A policy that isn't enforced lets it pass.
                None if rules.mode != Mode::Enforce => Answer::new(None, Decision::UNLIMITED),
                None => {
                    tried.is_denied_by_trees = true;
                    return Ok(());
                }
            };
            if rules.waits {
                self.tell_of_what_comes_back(rules, &gathered, &mut answer);
                tried.over = Self::over(rules, &gathered, &answer);
            }
            let said = &mut tried.said;
            said.hear(&gathered, answer);
            said.list_limits(&gathered, &each);
            if said.allowed {
                let charged = match trees {
                    Some(trees) => self.settle_trees(said, &gathered, trees).await,
                    None => Vec::new(),
                };
                if !gathered.shadow.checks.as_slice().is_empty() {
                    self.ask_shadow(said, rules, &gathered, &charged).await;
                }
                if gathered.gates.is_some() {
                    said.enter_alone(rules, &gathered, &self.recorder);
                }
            }
        }
        // One that is denied may still wait, and pass.
        if tried.said.allowed {
            self.recorder.passed(rules, &gathered, &tried.said);
        }
        Ok(())
    }

    /// Charges the limits of trees that are in shadow, of a request that passes; all checks that its trees were charged.
    fn settle_trees<'r, 'a>(
        &'r self,
        said: &'r mut Said,
        gathered: &'r Gathered<'_>,
        trees: &'r mut TreeCharge<'_, 'a>,
    ) -> Boxed<'r, Vec<Check<'a>>> {
        Box::pin(async move {
            said.permits.shadows.extend(trees.take_permits());
            // What decided instead of a store has charged nothing there.
            let checks = match said.unavailable {
                None => gathered.enforced.checks.as_slice(),
                Some(_) => &[],
            };
            (trees.settle_shadows(&self.backend, &mut said.permits, checks)).await;
            trees.charged_checks()
        })
    }

    /// Asks each rule in shadow by itself. One whose backend fails is left out.
    async fn ask_shadow(
        &self,
        said: &mut Said,
        rules: &Rules,
        gathered: &Gathered<'_>,
        charged_to_trees: &[Check<'_>],
    ) {
        // What decided instead of a store has charged nothing there.
        let is_charged = said.unavailable.is_none();
        let mut unanswered = Unanswered::new(&self.backend, said);
        unanswered.is_charged(charged_to_trees);
        if is_charged {
            unanswered.is_charged(gathered.enforced.checks.as_slice());
        }
        for (number, checks) in runs(&gathered.shadow) {
            let Some(entered) = unanswered.held.enter_in_shadow(gathered, number) else {
                continue;
            };
            if let Ok(mut answer) = self.backend.ask(checks, None).await {
                if answer.allowed && answer.unavailable.is_none() {
                    unanswered.is_charged(checks);
                }
                entered.hold(Beside::Asking, &mut answer);
                let (said, by) = (&mut *unanswered.held, (rules, gathered));
                said.hear_shadow(by, (number, checks), answer, &self.recorder);
            }
        }
        unanswered.answered();
    }

    /// The answer to the rules in force, asked or remembered; none if the trees deny the request.
    async fn ask(
        &self,
        rules: &Rules,
        gathered: &Gathered<'_>,
        each: Option<&mut Vec<Decision>>,
        trees: Option<&mut TreeCharge<'_, '_>>,
    ) -> Result<Option<Answer>, B::Error> {
        let entered = match gathered.gates.is_some().then(|| Entered::all(gathered)) {
            Some(Err((gate, decision))) => return Ok(Some(Answer::new(Some(gate), decision))),
            entered => entered.and_then(Result::ok),
        };
        let checks = gathered.enforced.checks.as_slice();
        let mut answer =
            match Remembered::look_up(self.deny.as_ref(), &self.backend, rules, &gathered.enforced)
            {
                Remembered::Denied(answer) => answer,
                // With nothing to ask beside its gates, the backend isn't asked whether it is there.
                Remembered::Asking(_)
                    if checks.is_empty() && entered.is_some() && trees.is_none() =>
                {
                    Answer::new(None, Decision::UNLIMITED)
                }
                Remembered::Asking(asking) => {
                    let asked = match trees {
                        Some(trees) => {
                            let charging: Boxed<'_, _> =
                                Box::pin(trees.charge(&self.backend, checks));
                            charging.await.map(|asked| {
                                let asked = asked?;
                                if let Some(each) = each {
                                    *each = asked.rules;
                                }
                                Some(asked.answer)
                            })
                        }
                        None => {
                            let mut results = Vec::new();
                            // Of one limit the answer tells all.
                            let listed =
                                (each.is_some() && checks.len() > 1).then_some(&mut results);
                            let asked = self.backend.ask(checks, listed).await;
                            if let Some(each) = each {
                                *each = decisions(&results);
                            }
                            asked.map(Some)
                        }
                    };
                    match asked {
                        Ok(Some(answer)) => asking.answered(&gathered.enforced, answer),
                        Ok(None) => {
                            entered.into_iter().for_each(Entered::leave);
                            return Ok(None);
                        }
                        Err(error) => asking.without_backend().ok_or(error)?,
                    }
                }
            };
        if let Some(entered) = entered {
            entered.join(&gathered.enforced, Beside::Asking, &mut answer);
        }
        Ok(Some(answer))
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
