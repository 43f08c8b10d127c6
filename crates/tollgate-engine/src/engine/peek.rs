//! Looking without charging: what a request would be told.

use arc_swap::Guard;
use tollgate::{Clock, Decision};

use super::overload::Entered;
use super::warm::is_gate;
use super::{Engine, ready, runs};
use crate::backend::{Backend, Memory};
use crate::facts::Facts;
use crate::limits::{Answer, LimitKind};
use crate::policy::Mode;
use crate::verdict::{Findings, Said};

impl<B: Backend> Engine<B> {
    /// Whether a request with these facts would hold something if it passed: a permit of a concurrency limit, or a cost that is
    /// an estimate. Nothing is decided or asked of the backend. Whoever has little room for what requests hold knows before it
    /// decides which of them need some.
    ///
    /// ```
    /// # use tollgate_engine::backend::Memory;
    /// # use tollgate_engine::document::Format;
    /// # use tollgate_engine::{Engine, Facts, Policy};
    /// let text = "limits: [{name: all, rate: 5/h}, {name: jobs, match: {path: /job}, concurrency: 2}]";
    /// let engine = Engine::new(Policy::from_text(text, Format::Yaml)?.policy, Memory::new())?;
    /// assert!(engine.would_hold(&Facts::new().with("path", "/job")));
    /// assert!(!engine.would_hold(&Facts::new().with("path", "/other")));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn would_hold(&self, facts: &Facts<'_>) -> bool {
        let rules = self.rules.load_full();
        let orders = self.ordered(&rules);
        let gathered = self.gather(self.match_input(&rules, orders.as_ref(), facts));
        if Said::default().settle(&gathered) {
            return false;
        }
        let enforced = gathered.enforced.askers.as_slice().iter();
        let mut askers = enforced.chain(gathered.shadow.askers.as_slice());
        gathered.gates.is_some() || askers.any(|asker| rules.applied[*asker as usize].holds)
    }

    /// What [`decide_async`](Self::decide_async) would say to this request now, if it didn't wait. Nothing is charged, held
    /// or told to the observer. Where others wait for a limit, it tells how long one more would.
    ///
    /// # Errors
    /// If the backend couldn't be asked about the rules in force. Those in shadow are left out then.
    ///
    /// ```
    /// # use std::{pin::pin, task::{Context, Poll, Waker}};
    /// # use tollgate::clock::Manual;
    /// # use tollgate_engine::backend::Memory;
    /// # use tollgate_engine::document::Format;
    /// # use tollgate_engine::{Engine, Facts, Policy};
    /// # let memory = Memory::builder().clock(Manual::new()).wall(Manual::new()).build();
    /// # let policy = Policy::from_text("limits: [{name: all, rate: 5/h}]", Format::Yaml)?.policy;
    /// let engine = Engine::new(policy, memory)?;
    /// let left = async || {
    ///     let facts = Facts::new();
    ///     let findings = engine.peek_async(&facts).await?;
    ///     Ok::<u64, std::convert::Infallible>(findings.decision().remaining)
    /// };
    /// # let done = pin!(left()).poll(&mut Context::from_waker(Waker::noop()));
    /// # assert_eq!(done, Poll::Ready(Ok(5)));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub async fn peek_async<'f>(&self, facts: &'f Facts<'f>) -> Result<Findings<'f>, B::Error> {
        let rules = self.rules.load_full();
        let mut said = Said::default();
        {
            let orders = self.ordered(&rules);
            let gathered = self.gather(self.match_input(&rules, orders.as_ref(), facts));
            if !said.settle(&gathered) {
                let in_line = rules.waits && self.turns.is_any();
                if !in_line || !self.stands_behind(&mut said, &rules, &gathered) {
                    let checks = gathered.enforced.checks.as_slice();
                    let each = self.backend.peek(checks).await?;
                    let answer = Answer::over_results(checks, &each);
                    said.hear(&gathered, Entered::look(&gathered, answer));
                }
                if said.allowed {
                    for (number, checks) in runs(&gathered.shadow) {
                        if said.look_in_shadow(&gathered, number)
                            && let Ok(each) = self.backend.peek(checks).await
                        {
                            said.overhear(
                                (&rules, &gathered),
                                (number, checks),
                                Answer::over_results(checks, &each),
                            );
                        }
                    }
                    said.look_alone(&gathered);
                }
            }
        }
        let rules = Guard::from_inner(rules);
        Ok(Findings { said, rules, facts })
    }

    /// What is left of each limit that a request meets, by a backend that may take its time. Nothing is charged.
    ///
    /// # Errors
    /// If the backend couldn't be asked.
    pub async fn left_async(&self, facts: &Facts<'_>) -> Result<Vec<Left>, B::Error> {
        let rules = self.rules.load_full();
        let orders = self.ordered(&rules);
        let gathered = self.gather(self.match_input(&rules, orders.as_ref(), facts));
        let mut left = Vec::new();
        let groups = [
            (&gathered.enforced, Mode::Enforce),
            (&gathered.shadow, Mode::Shadow),
        ];
        for (group, mode) in groups {
            let checks = group.checks.as_slice();
            let each = self.backend.peek(checks).await?;
            for ((check, asker), said) in checks.iter().zip(group.askers.as_slice()).zip(each) {
                let rule = &rules.applied[*asker as usize];
                left.push(Left {
                    rule: rule.name.to_string(),
                    mode,
                    kind: check.limit.kind().clone(),
                    is_warm_up: is_gate(check.limit),
                    is_known: said.is_ok(),
                    decision: said.unwrap_or_else(|store| store.decision()),
                });
            }
        }
        for gate in gathered.gates.iter().flat_map(|gates| gates.iter()) {
            left.push(Left {
                rule: rules.applied[gate.met.number as usize].name.to_string(),
                mode: gate.mode,
                kind: gate.adapting.limit.kind().clone(),
                is_warm_up: false,
                is_known: true,
                decision: gate.look(),
            });
        }
        Ok(left)
    }
}

/// What is left of one limit that a request meets.
///
/// ```
/// # use tollgate::clock::Manual;
/// # use tollgate_engine::backend::Memory;
/// # use tollgate_engine::document::Format;
/// # use tollgate_engine::{Engine, Facts, Policy};
/// # let memory = Memory::builder().clock(Manual::new()).wall(Manual::new()).build();
/// let text = "limits: [{name: search, rate: [5/s, 100/min]}]";
/// let engine = Engine::new(Policy::from_text(text, Format::Yaml)?.policy, memory)?;
/// let facts = Facts::new();
/// assert!(engine.decide(&facts).passed().is_some());
/// let left = engine.left(&facts);
/// assert_eq!((left[0].rule.as_str(), left[0].decision.remaining), ("search", 4));
/// assert_eq!((left[1].kind.to_string().as_str(), left[1].decision.remaining), ("100/m", 99));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Left {
    /// The rule or tier.
    pub rule: String,
    /// Whether it only counts.
    pub mode: Mode,
    /// Which of its limits.
    pub kind: LimitKind,
    /// Whether it stands beside a rate only until the rule is warm.
    pub is_warm_up: bool,
    /// Whether somebody could be asked: else a limit that is closed then refuses everything.
    pub is_known: bool,
    /// What the request would be told by it alone.
    pub decision: Decision,
}

impl<C: Clock + 'static, W: Clock + 'static> Engine<Memory<C, W>> {
    /// What is left of each limit that a request meets, for a page that shows it. Nothing is charged.
    pub fn left(&self, facts: &Facts<'_>) -> Vec<Left> {
        ready(self.left_async(facts))
    }

    /// What [`decide`](Self::decide) would say to this request now. Nothing is charged, held or told to the
    /// observer.
    ///
    /// ```
    /// # use tollgate::clock::Manual;
    /// # use tollgate_engine::backend::Memory;
    /// # use tollgate_engine::document::Format;
    /// # use tollgate_engine::{Engine, Facts, Policy};
    /// # let memory = Memory::builder().clock(Manual::new()).wall(Manual::new()).build();
    /// # let policy = Policy::from_text("limits: [{name: per-user, key: user, rate: 1/h}]", Format::Yaml)?.policy;
    /// let engine = Engine::new(policy, memory)?;
    /// let facts = Facts::new().with("user", "42");
    /// assert_eq!(engine.peek(&facts).decision().remaining, 1);
    /// assert!(engine.decide(&facts).passed().is_some());
    /// let findings = engine.peek(&facts);
    /// assert!(!findings.decision().is_allowed());
    /// assert_eq!(findings.decision().retry_after_secs(), Some(3_600));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn peek<'f>(&self, facts: &'f Facts<'f>) -> Findings<'f> {
        ready(self.peek_async(facts))
    }
}
