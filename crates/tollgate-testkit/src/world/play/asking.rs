//! A request on its way, from when it is made to when it gives back what it held.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tollgate_core::Outcome;
use tollgate_engine::verdict::{Cause, Permits, Verdict};
use tollgate_engine::{Engine, Facts};
use tollgate_redis::Redis;

use super::{Record, Told, Unanswered};
use crate::world::network::Universe;
use crate::world::node::Node;
use crate::world::story::{Ends, Request};

/// A request on its way.
pub(super) struct Asking {
    ask: Request,
    life: usize,
    asked_at: u64,
    universe: Arc<Universe>,
    record: Arc<Mutex<Record>>,
    engine: Arc<Engine<Redis>>,
    version: Arc<AtomicUsize>,
    returned: Option<usize>,
}

impl Asking {
    pub(super) fn new(
        ask: Request,
        life: usize,
        node: &Node,
        universe: &Arc<Universe>,
        record: &Arc<Mutex<Record>>,
    ) -> Self {
        Self {
            ask,
            life,
            asked_at: universe.now(),
            universe: Arc::clone(universe),
            record: Arc::clone(record),
            engine: Arc::clone(&node.engine),
            version: Arc::clone(&node.version),
            returned: None,
        }
    }

    pub(super) async fn run(mut self) {
        let mut wait = self.once().await;
        // A request that was told when to come back does so, once.
        if let Some((number, after)) = wait.take() {
            tokio::time::sleep(after).await;
            if self.note(|record| record.quiet_at > 0) {
                return;
            }
            self.asked_at = self.universe.now();
            self.returned = Some(number);
            self.ask.returns = false;
            self.once().await;
        }
    }

    /// Asks once. Returns what it was told, if it is to come back: by which answer, and after how long.
    async fn once(&self) -> Option<(usize, Duration)> {
        let unanswered = Unanswered {
            ask: self.ask,
            asked_at: self.asked_at,
        };
        self.note(|record| record.unanswered.push(unanswered));
        // Of the policy that the engine takes up now.
        let version = self.version.load(Ordering::Relaxed);
        let (who, cost) = (self.ask.who.to_string(), self.ask.cost.to_string());
        let facts = Facts::new()
            .with("key", &who)
            .with("cost", &cost)
            .with("all", "all");
        let verdict = self.decide(&facts).await?;
        let told = self.told(&verdict, version);
        let number = self.note(|record| {
            let mut waiting = record.unanswered.iter();
            if let Some(place) = waiting.position(|other| *other == unanswered) {
                record.unanswered.remove(place);
            }
            record.answers.push(told);
            record.answers.len() - 1
        });
        if let Some(passed) = verdict.passed() {
            self.go_on(passed.into_permits()).await;
            let ended_at = self.universe.now();
            self.note(|record| record.answers[number].ended_at = Some(ended_at));
            return None;
        }
        let wait = told.decision.retry_after;
        let comes = self.ask.returns && told.decision.outcome == Outcome::Denied;
        (comes && wait < Duration::from_secs(120)).then_some((number, wait))
    }

    /// What the engine says; nothing if the request is dropped before it does.
    async fn decide<'f>(&self, facts: &'f Facts<'f>) -> Option<Verdict<'f>> {
        let deciding = self.engine.decide_async(facts);
        let verdict = match self.ask.patience {
            None => deciding.await,
            Some(micros) => {
                let patience = Duration::from_micros(micros);
                tokio::time::timeout(patience, deciding).await.ok()?
            }
        };
        match verdict {
            Ok(verdict) => Some(verdict),
            Err(never) => match never {},
        }
    }

    /// What is noted of a verdict by this version of the policy.
    fn told(&self, verdict: &Verdict<'_>, version: usize) -> Told {
        let rule = match verdict.cause() {
            Cause::Rule(name) | Cause::StoreFailure(name) => name[1..].parse().ok(),
            _ => None,
        };
        Told {
            ask: self.ask,
            life: self.life,
            asked_at: self.asked_at,
            at: self.universe.now(),
            version,
            last_version: self.version.load(Ordering::Relaxed),
            allowed: verdict.refused().is_none(),
            fallback: verdict.fallback(),
            decision: *verdict.decision(),
            rule,
            ended_at: None,
            returned: self.returned,
        }
    }

    /// Runs for a while and gives back what it holds.
    async fn go_on(&self, mut permits: Permits) {
        tokio::time::sleep(Duration::from_micros(self.ask.runs)).await;
        match self.ask.ends {
            Ends::Cost(cost) => permits.settle(cost),
            Ends::Unsaid => drop(permits),
            Ends::Cancelled => permits.cancel(),
        }
    }

    fn note<R>(&self, note: impl FnOnce(&mut Record) -> R) -> R {
        note(&mut self.record.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
