//! Decides Envoy's requests: by trees of descriptors, by rules, or by both.

use std::fmt;

use tollgate_engine::engine::{
    DescriptorDecision, DescriptorFindings, DescriptorRequest, DescriptorStatus, MixedDecision,
};
use tollgate_engine::facts::Descriptor;
use tollgate_engine::verdict::{DenyReason, Permits};
use tollgate_engine::{Facts, RequestDecision};
use tollgate_http::HeaderDialect;

use super::descriptor_facts::{FactSets, FactTexts};
use super::rls_outcome::{
    AnswerSettings, RlsOutcome, denied, outcome_of_rules, outcome_of_trees, unlimited,
};
use super::rls_request::{RlsRequest, Undecided};
use crate::decision_answer::{DecisionAnswer, outcome_of_peek, outcome_of_verdict};
use crate::decision_service::{CounterStore, conditions_for, request_key};
use crate::reservations::ReservedCapacity;
use crate::rls_failure_mode::RlsFailureMode;
use crate::service::Service;

impl RlsRequest<'_> {
    /// Holds the permits of an allowed request. If there is no capacity, the request can't run, and its charge is
    /// refunded: the capacity check came before the decision, and the policy may have changed in between.
    async fn hold_permits<B: CounterStore>(
        &self,
        service: &Service<B>,
        passed: AllowedRequest<'_, '_>,
        room: Option<ReservedCapacity<'_>>,
    ) -> Result<(), Undecided> {
        let Some(permits) = passed.permits.filter(|permits| !permits.is_empty()) else {
            return Ok(());
        };
        let by_trees = passed.by_trees.filter(|trees| trees.decider.is_some());
        let engine = &service.decider.engine;
        let name = match passed.facts {
            // Permits of trees belong to the descriptors, and the facts don't have all of those.
            Some(facts)
                if by_trees.is_none()
                    || !engine.would_hold_descriptors(&self.descriptor_request()) =>
            {
                request_key(facts)
            }
            _ => self.request_key(),
        };
        let Err(full) = service.decider.hold_permits(&name, permits, room) else {
            return Ok(());
        };
        if let Some(facts) = passed.facts {
            service.decider.refund_cancelled(facts).await;
        }
        if let Some(trees) = by_trees {
            self.refund_trees(service, &trees.statuses).await;
        }
        Err(Undecided::Full(full))
    }

    /// Refunds the charge of the trees, for a request that can't run.
    #[cold]
    async fn refund_trees<B: CounterStore>(
        &self,
        service: &Service<B>,
        statuses: &[DescriptorStatus],
    ) {
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

    /// Releases the permits of a request whose client has left. The oldest may belong to another request, but permits
    /// of one key are alike.
    #[cold]
    pub(crate) fn release<B: CounterStore>(&self, service: &Service<B>) {
        let (engine, holds) = (&service.decider.engine, &service.decider.reservations);
        if holds.count() == 0 || self.is_free() || holds.take_oldest(&self.request_key()).is_some()
        {
            return;
        }
        let texts = FactTexts::of(self, &engine.required_facts());
        if let Ok(FactSets { first, .. }) = texts.sets(self) {
            drop(holds.take_oldest(&request_key(&first)));
        }
    }
}

/// Decides a request. If it can't be decided, the configured failure mode says whether that is an error or a denial.
pub(crate) async fn decide_or_fail<B: CounterStore>(
    service: &Service<B>,
    question: &RlsRequest<'_>,
) -> Result<RlsOutcome, Undecided> {
    match decide_request(service, question, &service.settings.rls_headers).await {
        Err(why) => answer_undecided(service, question.descriptors.len(), why),
        Ok(mut decided) => {
            decided.add_retry_after(&service.settings.rls_headers);
            Ok(decided)
        }
    }
}

/// The answer to a request that can't be decided: the configured failure mode. It is counted by that mode.
#[cold]
pub(super) fn answer_undecided<B: CounterStore>(
    service: &Service<B>,
    descriptors: usize,
    why: Undecided,
) -> Result<RlsOutcome, Undecided> {
    let told = service.settings.rls_failure_mode;
    service.monitor.measured.record_undecided(told);
    let (reason, failure) = match why {
        why if told == RlsFailureMode::Error => return Err(why),
        Undecided::Unavailable(limit) => (Some(DenyReason::Store), ("store_failure", limit)),
        Undecided::Invalid(_) | Undecided::Full(_) => (None, ("failure", why.to_string())),
    };
    Ok(RlsOutcome {
        failure: Some(failure),
        ..denied(descriptors, reason)
    })
}

/// Counts a request of an unknown domain, and logs each such domain once.
#[cold]
fn log_unknown_domain<B: CounterStore>(service: &Service<B>, domain: &str) {
    let monitor = &service.monitor;
    if monitor.measured.is_new_unknown_domain(domain) {
        let help = "the policy has no limit for this domain, so its requests pass: add it, or send another domain";
        let fields: [(&str, &dyn fmt::Display); 2] = [("domain", &domain), ("help", &help)];
        monitor.log.warn("unknown_domain", &fields);
    }
}

/// Decides a request; the error says why it can't be decided. `dialects` are the dialects of the header fields.
pub(crate) async fn decide_request<B: CounterStore>(
    service: &Service<B>,
    question: &RlsRequest<'_>,
    dialects: &[HeaderDialect],
) -> Result<RlsOutcome, Undecided> {
    question.check(&service.decider.bounds)?;
    if !service.decider.engine.knows_domain(question.domain) {
        log_unknown_domain(service, question.domain);
    }
    let parts = question.divided_descriptors(service.decider.replicas);
    let question = &RlsRequest {
        descriptors: parts.as_deref().unwrap_or(question.descriptors),
        ..*question
    };
    let decider = &service.decider;
    // Only a pure refund releases permits: a request that also takes tokens may equal one that still runs.
    let gives_back = question.is_refund();
    let is_released = gives_back
        && decider
            .reservations
            .take_oldest(&question.request_key())
            .is_some();
    let texts = FactTexts::of(question, &decider.engine.required_facts());
    let FactSets { first, others } = texts.sets(question)?;
    let given_back = texts.refunded(question)?;
    let facts = first.with_other_sets(&others);
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
            shadow: service.settings.shadow_visibility,
        },
    };
    if question.is_free() {
        asked.peek().await
    } else {
        asked.charge().await
    }
}

/// A request, and whether rules, trees or both decide it.
struct DecisionContext<'a, B: CounterStore> {
    service: &'a Service<B>,
    question: &'a RlsRequest<'a>,
    /// The request's facts, if there are rules.
    facts: Option<&'a Facts<'a>>,
    by_trees: bool,
    shows: AnswerSettings<'a>,
}

/// The charge of an allowed request, and its permits.
struct AllowedRequest<'a, 'f> {
    facts: Option<&'a Facts<'f>>,
    by_trees: Option<&'a DescriptorFindings>,
    permits: Option<Permits>,
}

impl<B: CounterStore> DecisionContext<'_, B> {
    /// Decides a request that takes tokens: rules and trees together are charged, or none.
    async fn charge(&self) -> Result<RlsOutcome, Undecided> {
        let (question, decider) = (self.question, &self.service.decider);
        let request = self.by_trees.then(|| question.descriptor_request());
        let room = decider.reserve_capacity(self.facts, request.as_ref());
        let room = room.map_err(Undecided::Full)?;
        match (self.facts, request) {
            (None, None) => Ok(unlimited(question.descriptors.len())),
            (None, Some(_)) => {
                let verdict = self.decide_trees().await;
                let decided = self.by_trees(&verdict, verdict.denied().is_none())?;
                if let DescriptorDecision::Allowed(passed) = verdict {
                    let (findings, permits) = passed.into_parts();
                    let passed = AllowedRequest {
                        facts: None,
                        by_trees: Some(&findings),
                        permits: Some(permits),
                    };
                    question.hold_permits(self.service, passed, room).await?;
                }
                Ok(decided)
            }
            (Some(facts), None) => {
                let (decided, passed) = {
                    let dialects = self.shows.dialects;
                    let mut verdict = B::decide(&decider.engine, facts, dialects).await;
                    let permits = match &mut verdict {
                        RequestDecision::Allowed(passed) => passed.take_permits(),
                        RequestDecision::Denied(_) => None,
                    };
                    let passed = AllowedRequest {
                        facts: Some(facts),
                        by_trees: None,
                        permits,
                    };
                    (self.by_rules(&outcome_of_verdict(&verdict)), passed)
                };
                question.hold_permits(self.service, passed, room).await?;
                decided
            }
            (Some(facts), Some(request)) => {
                // Boxed: few policies have both, and every connection would have room for this large future.
                Box::pin(self.charge_both(facts, request, room)).await
            }
        }
    }

    /// Decides a request by rules and trees together.
    async fn charge_both(
        &self,
        facts: &Facts<'_>,
        request: DescriptorRequest<'_>,
        room: Option<ReservedCapacity<'_>>,
    ) -> Result<RlsOutcome, Undecided> {
        let (on, engine) = (
            conditions_for(self.shows.dialects),
            &self.service.decider.engine,
        );
        let (mut passed, by_trees) = match engine.decide_with_descriptors(on, facts, request).await
        {
            // The engine returns `None` only if the options restrict which facts are known.
            Ok(None) => {
                let why = "the policy changed while the request was decided: send it again";
                return Err(Undecided::Invalid(why.to_owned()));
            }
            Ok(Some(MixedDecision::DeniedByDescriptor(findings))) => {
                return self.by_trees(&findings, false);
            }
            Ok(Some(MixedDecision::DeniedByRule(denied))) => {
                return self.by_rules(&DecisionAnswer::of(&denied, false));
            }
            Ok(Some(MixedDecision::Passed(passed, by_trees))) => (passed, by_trees),
        };
        let kept = AllowedRequest {
            facts: Some(facts),
            by_trees: Some(&by_trees),
            permits: passed.take_permits(),
        };
        self.question.hold_permits(self.service, kept, room).await?;
        let by_rules = self.by_rules(&DecisionAnswer::of(&passed, true))?;
        Ok(self.by_trees(&by_trees, true)?.merge(by_rules))
    }

    /// Decides a request that takes nothing.
    async fn peek(&self) -> Result<RlsOutcome, Undecided> {
        let mut by_trees = None;
        if self.by_trees {
            let verdict = self.decide_trees().await;
            let decided = self.by_trees(&verdict, verdict.denied().is_none())?;
            if !decided.answer.is_allowed {
                return Ok(decided);
            }
            by_trees = Some(decided);
        }
        let facts = self.facts.filter(|_| !self.question.is_refund());
        let Some(facts) = facts else {
            let descriptors = self.question.descriptors.len();
            return Ok(by_trees.unwrap_or_else(|| unlimited(descriptors)));
        };
        let Ok(findings) = self.service.decider.engine.peek_async(facts).await;
        let by_rules = self.by_rules(&outcome_of_peek(&findings))?;
        Ok(match by_trees {
            Some(by_trees) if by_rules.answer.is_allowed => by_trees.merge(by_rules),
            _ => by_rules,
        })
    }

    async fn decide_trees(&self) -> DescriptorDecision {
        let (engine, question) = (&self.service.decider.engine, self.question);
        let (domain, descriptors) = (question.domain, question.descriptors);
        let asked = engine.decide_descriptors_async(domain, descriptors, question.hits_addend);
        let Ok(verdict) = asked.await;
        verdict
    }

    /// The decision of trees, as an RLS outcome.
    fn by_trees(
        &self,
        findings: &DescriptorFindings,
        is_allowed: bool,
    ) -> Result<RlsOutcome, Undecided> {
        outcome_of_trees(self.question, findings, is_allowed, self.shows)
    }

    /// The decision of rules, as an RLS outcome.
    fn by_rules(&self, answered: &DecisionAnswer<'_>) -> Result<RlsOutcome, Undecided> {
        outcome_of_rules(self.question.descriptors.len(), answered, self.shows)
    }
}
