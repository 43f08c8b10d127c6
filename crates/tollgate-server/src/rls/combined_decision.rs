//! What Envoy asks, decided: by trees of descriptors, by rules, or by both.

use std::fmt;

use tollgate_engine::engine::{
    CombinedVerdict, DescriptorFindings, DescriptorRequest, DescriptorStatus, DescriptorVerdict,
};
use tollgate_engine::facts::Descriptor;
use tollgate_engine::verdict::{DenyReason, Permits};
use tollgate_engine::{Facts, Verdict};
use tollgate_http::Dialect;

use super::descriptor_facts::{FactSets, FactTexts};
use super::rls_outcome::{
    AnswerSettings, RlsOutcome, denied, outcome_of_rules, outcome_of_trees, unlimited,
};
use super::rls_request::{RlsRequest, Undecided};
use crate::decision_answer::{Answered, answered, looked_at};
use crate::decision_service::{Store, conditions, name_of};
use crate::reservations::Room;
use crate::rls_failure_mode::RlsClosed;
use crate::service::Service;

impl RlsRequest<'_> {
    /// Keeps the permits of a request that passed. If no more may be held, it can't run, and what it was charged comes back:
    /// it was decided while there was room, and by a policy that has changed since.
    async fn keep<B: Store>(
        &self,
        service: &Service<B>,
        passed: Passed<'_, '_>,
        room: Option<Room<'_>>,
    ) -> Result<(), Undecided> {
        let Some(permits) = passed.permits.filter(|permits| !permits.is_empty()) else {
            return Ok(());
        };
        let by_trees = passed.by_trees.filter(|trees| trees.decider.is_some());
        let engine = &service.decider.engine;
        let name = match passed.facts {
            // Permits of trees are for the descriptors, of which the facts don't have all.
            Some(facts)
                if by_trees.is_none()
                    || !engine.would_hold_descriptors(&self.descriptor_request()) =>
            {
                name_of(facts)
            }
            _ => self.name(),
        };
        let Err(full) = service.decider.lend(&name, permits, room) else {
            return Ok(());
        };
        if let Some(facts) = passed.facts {
            service.decider.take_back(facts).await;
        }
        if let Some(trees) = by_trees {
            self.refund_trees(service, &trees.statuses).await;
        }
        Err(Undecided::Full(full))
    }

    /// Gives back what the trees were charged, of a request that can't run.
    #[cold]
    async fn refund_trees<B: Store>(&self, service: &Service<B>, statuses: &[DescriptorStatus]) {
        let taken = self.descriptors.iter().zip(statuses);
        let taken = taken.filter(|(_, status)| status.charged > 0);
        let back = taken.map(|(one, status)| Descriptor {
            refund: true,
            cost: Some(status.charged),
            ..*one
        });
        let back: Vec<_> = back.collect();
        if !back.is_empty() {
            let (engine, hits) = (&service.decider.engine, self.hits_addend);
            let Ok(_) = engine
                .decide_descriptors_async(self.domain, &back, hits)
                .await;
        }
    }

    /// Frees what a request holds whose client has left: it doesn't run. The oldest may be another's, but permits of one
    /// name are alike.
    #[cold]
    pub(crate) fn release<B: Store>(&self, service: &Service<B>) {
        let (engine, holds) = (&service.decider.engine, &service.decider.holds);
        if holds.count() == 0 || self.takes_nothing() || holds.take(&self.name()).is_some() {
            return;
        }
        let texts = FactTexts::of(self, &engine.required_facts());
        if let Ok(FactSets { first, .. }) = texts.sets(self) {
            drop(holds.take(&name_of(&first)));
        }
    }
}

/// Decides about a request. Where it can't, the settings say whether that is an answer.
pub(crate) async fn decide<B: Store>(
    service: &Service<B>,
    question: &RlsRequest<'_>,
) -> Result<RlsOutcome, Undecided> {
    match ask(service, question, &service.settings.rls_headers).await {
        Err(why) => could_not_decide(service, question.descriptors.len(), why),
        Ok(mut decided) => {
            decided.tell_wait(&service.settings.rls_headers);
            Ok(decided)
        }
    }
}

/// What is told of a request of so many descriptors that can't be decided: what the operator has chosen. It is counted as that.
#[cold]
pub(super) fn could_not_decide<B: Store>(
    service: &Service<B>,
    descriptors: usize,
    why: Undecided,
) -> Result<RlsOutcome, Undecided> {
    let told = service.settings.rls_closed;
    service.monitor.measured.could_not_decide(told);
    let (reason, failure) = match why {
        why if told == RlsClosed::Error => return Err(why),
        Undecided::Unavailable(limit) => (Some(DenyReason::Store), ("store_failure", limit)),
        Undecided::Invalid(_) | Undecided::Full(_) => (None, ("failure", why.to_string())),
    };
    Ok(RlsOutcome {
        failure: Some(failure),
        ..denied(descriptors, reason)
    })
}

/// Counts a request of a domain that the policy doesn't know, and says so once.
#[cold]
fn log_unknown_domain<B: Store>(service: &Service<B>, domain: &str) {
    let monitor = &service.monitor;
    if monitor.measured.is_new_unknown_domain(domain) {
        let help = "the policy has no limit for this domain, so its requests pass: add it, or send another domain";
        let fields: [(&str, &dyn fmt::Display); 2] = [("domain", &domain), ("help", &help)];
        monitor.log.warn("unknown_domain", &fields);
    }
}

/// Decides about a request, or says why it can't. The header fields are in these dialects.
pub(crate) async fn ask<B: Store>(
    service: &Service<B>,
    question: &RlsRequest<'_>,
    dialects: &[Dialect],
) -> Result<RlsOutcome, Undecided> {
    question.check(&service.decider.bounds)?;
    if !service.decider.engine.knows_domain(question.domain) {
        log_unknown_domain(service, question.domain);
    }
    let parts = question.parts(service.decider.replicas);
    let question = &RlsRequest {
        descriptors: parts.as_deref().unwrap_or(question.descriptors),
        ..*question
    };
    let decider = &service.decider;
    // One that also takes may be alike a request that still runs, and whose permits stay.
    let gives_back = question.gives_back();
    let is_released = gives_back && decider.holds.take(&question.name()).is_some();
    let texts = FactTexts::of(question, &decider.engine.required_facts());
    let FactSets { first, others } = texts.sets(question)?;
    let given_back = texts.given_back(question)?;
    let facts = first.also(&others);
    let by_rules = decider.engine.decides_by_facts();
    if by_rules {
        let whole = gives_back.then_some(&facts);
        for part in given_back.iter().chain(whole) {
            if is_released {
                decider.refund_charge(part, true).await;
            } else {
                decider.refund(part).await;
            }
        }
    }
    let asked = DecisionContext {
        service,
        question,
        facts: by_rules.then_some(&facts),
        by_trees: decider.engine.decides_by_descriptors() || question.brings_limit(),
        shows: AnswerSettings {
            dialects,
            shadow: service.settings.shadow_answers,
        },
    };
    if question.takes_nothing() {
        asked.look().await
    } else {
        asked.charge().await
    }
}

/// A question, and by what it is decided: rules, trees or both.
struct DecisionContext<'a, B: Store> {
    service: &'a Service<B>,
    question: &'a RlsRequest<'a>,
    /// What rules know of it, if there are any.
    facts: Option<&'a Facts<'a>>,
    by_trees: bool,
    shows: AnswerSettings<'a>,
}

/// What a request was charged that passed, and the permits that it holds.
struct Passed<'a, 'f> {
    facts: Option<&'a Facts<'f>>,
    by_trees: Option<&'a DescriptorFindings>,
    permits: Option<Permits>,
}

impl<B: Store> DecisionContext<'_, B> {
    /// Decides a request that takes something: by rules and trees together, all or none.
    async fn charge(&self) -> Result<RlsOutcome, Undecided> {
        let (question, decider) = (self.question, &self.service.decider);
        let request = self.by_trees.then(|| question.descriptor_request());
        let room = decider.room_for(self.facts, request.as_ref());
        let room = room.map_err(Undecided::Full)?;
        match (self.facts, request) {
            (None, None) => Ok(unlimited(question.descriptors.len())),
            (None, Some(_)) => {
                let verdict = self.ask_trees().await;
                let decided = self.by_trees(&verdict, verdict.refused().is_none())?;
                if let DescriptorVerdict::Passed(passed) = verdict {
                    let (findings, permits) = passed.into_parts();
                    let passed = Passed {
                        facts: None,
                        by_trees: Some(&findings),
                        permits: Some(permits),
                    };
                    question.keep(self.service, passed, room).await?;
                }
                Ok(decided)
            }
            (Some(facts), None) => {
                let (decided, passed) = {
                    let dialects = self.shows.dialects;
                    let mut verdict = B::decide(&decider.engine, facts, dialects).await;
                    let permits = match &mut verdict {
                        Verdict::Passed(passed) => passed.take_permits(),
                        Verdict::Refused(_) => None,
                    };
                    let passed = Passed {
                        facts: Some(facts),
                        by_trees: None,
                        permits,
                    };
                    (self.by_rules(&answered(&verdict)), passed)
                };
                question.keep(self.service, passed, room).await?;
                decided
            }
            (Some(facts), Some(request)) => {
                // In a box: few policies have both, and every connection has room for the largest step.
                Box::pin(self.charge_both(facts, request, room)).await
            }
        }
    }

    /// Decides a request by rules and trees together.
    async fn charge_both(
        &self,
        facts: &Facts<'_>,
        request: DescriptorRequest<'_>,
        room: Option<Room<'_>>,
    ) -> Result<RlsOutcome, Undecided> {
        let (on, engine) = (
            conditions(self.shows.dialects),
            &self.service.decider.engine,
        );
        let (mut passed, by_trees) = match engine.decide_with_descriptors(on, facts, request).await
        {
            // Only said on the condition that some facts alone are known.
            Ok(None) => {
                let why = "the policy changed while the request was decided: send it again";
                return Err(Undecided::Invalid(why.to_owned()));
            }
            Ok(Some(CombinedVerdict::DeniedByDescriptor(findings))) => {
                return self.by_trees(&findings, false);
            }
            Ok(Some(CombinedVerdict::DeniedByRule(denied))) => {
                return self.by_rules(&Answered::of(&denied, false));
            }
            Ok(Some(CombinedVerdict::Passed(passed, by_trees))) => (passed, by_trees),
        };
        let kept = Passed {
            facts: Some(facts),
            by_trees: Some(&by_trees),
            permits: passed.take_permits(),
        };
        self.question.keep(self.service, kept, room).await?;
        let by_rules = self.by_rules(&Answered::of(&passed, true))?;
        Ok(self.by_trees(&by_trees, true)?.joined(by_rules))
    }

    /// What a request would be told that takes nothing.
    async fn look(&self) -> Result<RlsOutcome, Undecided> {
        let mut by_trees = None;
        if self.by_trees {
            let verdict = self.ask_trees().await;
            let decided = self.by_trees(&verdict, verdict.refused().is_none())?;
            if !decided.told.is_allowed {
                return Ok(decided);
            }
            by_trees = Some(decided);
        }
        let facts = self.facts.filter(|_| !self.question.gives_back());
        let Some(facts) = facts else {
            let descriptors = self.question.descriptors.len();
            return Ok(by_trees.unwrap_or_else(|| unlimited(descriptors)));
        };
        let Ok(findings) = self.service.decider.engine.peek_async(facts).await;
        let by_rules = self.by_rules(&looked_at(&findings))?;
        Ok(match by_trees {
            Some(by_trees) if by_rules.told.is_allowed => by_trees.joined(by_rules),
            _ => by_rules,
        })
    }

    async fn ask_trees(&self) -> DescriptorVerdict {
        let (engine, question) = (&self.service.decider.engine, self.question);
        let (domain, descriptors) = (question.domain, question.descriptors);
        let asked = engine.decide_descriptors_async(domain, descriptors, question.hits_addend);
        let Ok(verdict) = asked.await;
        verdict
    }

    /// What trees decide, as Envoy is told of it.
    fn by_trees(
        &self,
        findings: &DescriptorFindings,
        is_allowed: bool,
    ) -> Result<RlsOutcome, Undecided> {
        outcome_of_trees(self.question, findings, is_allowed, self.shows)
    }

    /// What rules decide, as Envoy is told of it.
    fn by_rules(&self, answered: &Answered<'_>) -> Result<RlsOutcome, Undecided> {
        outcome_of_rules(self.question.descriptors.len(), answered, self.shows)
    }
}
