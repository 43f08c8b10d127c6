//! A request from its creation until it releases what it held.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tollgate::stack::SettlementTiming;
use tollgate_core::Outcome;
use tollgate_engine::verdict::Permits;
use tollgate_http::guard::ExtraFacts;

use super::decisions::{DecisionOutcome, decide};
use super::{Record, ReportedDecision, UnansweredRequest};
use crate::world::http_guard::{Answer, EngineDecision, Guard, Passed};
use crate::world::network::SimulatedNetwork;
use crate::world::node::{Fleet, Node};
use crate::world::scenario::{FinalCost, Request, ScenarioSettings};

/// What an allowed request holds.
enum HeldResult {
    Permits(Permits),
    Ticket(Passed),
}

/// The answer to a request: the decision, the limits of trees that were charged, and what the request holds.
struct AnsweredRequest {
    said: EngineDecision,
    charged: u8,
    came: Result<HeldResult, Option<u16>>,
}

/// A request in flight.
pub(super) struct RequestTask {
    ask: Request,
    life: usize,
    asked_at: u64,
    universe: Arc<SimulatedNetwork>,
    record: Arc<Mutex<Record>>,
    setting: Arc<ScenarioSettings>,
    engine: Fleet,
    guard: Option<Arc<Guard>>,
    version: Arc<AtomicUsize>,
    returned: Option<usize>,
}

impl RequestTask {
    pub(super) fn new(
        mut ask: Request,
        life: usize,
        node: &Node,
        universe: &Arc<SimulatedNetwork>,
        record: &Arc<Mutex<Record>>,
    ) -> Self {
        if node.guard.is_some() && ask.ends == FinalCost::Cancelled {
            // The middleware has no interface for it.
            ask.ends = FinalCost::Unsaid;
        }
        Self {
            ask,
            life,
            asked_at: universe.now(),
            universe: Arc::clone(universe),
            record: Arc::clone(record),
            setting: Arc::clone(&node.setting),
            engine: node.engine.clone(),
            guard: node.guard.clone(),
            version: Arc::clone(&node.version),
            returned: None,
        }
    }

    pub(super) async fn run(mut self) {
        let mut wait = self.once().await;
        // A request with a reported wait comes back after it, once.
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

    /// Makes one attempt. If the request is to come back, returns the number of its answer and the wait.
    async fn once(&self) -> Option<(usize, Duration)> {
        let unanswered = UnansweredRequest {
            ask: self.ask,
            asked_at: self.asked_at,
        };
        self.note(|record| record.unanswered.push(unanswered));
        // The version of the policy that the engine uses now.
        let version = self.version.load(Ordering::Relaxed);
        let answered = match &self.guard {
            None => self.decide(version).await?,
            Some(guard) => {
                let (who, cost) = (self.ask.who.to_string(), self.ask.cost.to_string());
                let facts = ExtraFacts::default().with("key", &who);
                let facts = facts.with("cost", &cost).with("all", "all");
                let Answer { said, came } = self.in_time(guard.ask(facts)).await?;
                AnsweredRequest {
                    said,
                    charged: 0,
                    came: came.map(HeldResult::Ticket).map_err(Some),
                }
            }
        };
        let told = self.record_answer(&answered, version);
        let number = self.note(|record| {
            let mut waiting = record.unanswered.iter();
            if let Some(place) = waiting.position(|other| *other == unanswered) {
                record.unanswered.remove(place);
            }
            record.answers.push(told);
            record.answers.len() - 1
        });
        if let Ok(held) = answered.came {
            let settled = self.continue_holding(held).await;
            let ended_at = Some(self.universe.now());
            self.note(|record| {
                let told = &mut record.answers[number];
                (told.ended_at, told.settled) = (ended_at, settled);
            });
            return None;
        }
        let wait = told.decision.wait_or_max();
        let comes = self.ask.returns && told.decision.outcome == Outcome::Denied;
        (comes && wait < Duration::from_secs(120)).then_some((number, wait))
    }

    /// The engine's decision; `None` if the request is dropped before.
    async fn decide(&self, version: usize) -> Option<AnsweredRequest> {
        let (setting, ask) = (&*self.setting, &self.ask);
        let decided = match &self.engine {
            Fleet::Store(engine) => self.in_time(decide(engine, setting, version, ask)).await?,
            Fleet::Memory(engine) => self.in_time(decide(engine, setting, version, ask)).await?,
        };
        let DecisionOutcome {
            said,
            charged,
            passed,
        } = decided;
        Some(AnsweredRequest {
            said,
            charged,
            came: passed.map(HeldResult::Permits).ok_or(None),
        })
    }

    /// The result of a future within the client's timeout; `None` after that.
    async fn in_time<T>(&self, asking: impl Future<Output = T>) -> Option<T> {
        match self.ask.patience {
            None => Some(asking.await),
            Some(micros) => {
                let patience = Duration::from_micros(micros);
                tokio::time::timeout(patience, asking).await.ok()
            }
        }
    }

    /// The record of an answer by this version of the policy.
    fn record_answer(&self, answered: &AnsweredRequest, version: usize) -> ReportedDecision {
        let AnsweredRequest {
            said,
            charged,
            came,
        } = answered;
        ReportedDecision {
            ask: self.ask,
            life: self.life,
            asked_at: self.asked_at,
            at: self.universe.now(),
            version,
            last_version: self.version.load(Ordering::Relaxed),
            allowed: came.is_ok(),
            charged: *charged,
            fallback: said.fallback,
            decision: said.decision,
            rule: said.rule,
            status: came.as_ref().err().copied().flatten(),
            ended_at: None,
            settled: None,
            returned: self.returned,
        }
    }

    /// Runs for a while and releases what it holds. Returns the result of the settlement, if it reports its
    /// cost.
    async fn continue_holding(&self, held: HeldResult) -> Option<SettlementTiming> {
        let time = Duration::from_micros(self.ask.runs);
        match held {
            HeldResult::Ticket(passed) => passed.run(time, self.ask.ends).await,
            HeldResult::Permits(mut permits) => {
                tokio::time::sleep(time).await;
                match self.ask.ends {
                    FinalCost::Cost(cost) => return Some(permits.settle(cost)),
                    FinalCost::Unsaid => drop(permits),
                    FinalCost::Cancelled => permits.cancel(),
                }
            }
        }
        None
    }

    fn note<R>(&self, note: impl FnOnce(&mut Record) -> R) -> R {
        note(&mut self.record.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
