//! Decides requests of descriptors: by trees alone, together with the rules, or before them.

use std::time::Duration;

use super::conditions::DecideOptions;
use super::descriptors::{
    DescriptorDecision, DescriptorFindings, DescriptorRequest, ReportOptions, TreeCharge,
    TreeDecision, TreeInput, TreeLookups, TreeRequest,
};
use super::overrides::ActiveOverrides;
use super::pipeline::{
    ActivePolicy, AttemptInput, AttemptResult, MixedDecision, Pipeline, Request, TreeOutcome,
};
use super::refund_guard::RefundGuard;
use super::request_match::TreeMatch;
use super::rules::CompiledPolicy;
use crate::backend::{Backend, Refund};
use crate::bounds::BoundExceeded;
use crate::envoy::StatusCode;
use crate::facts::{Descriptor, Facts};
use crate::policy::{Charging, Mode};
use crate::verdict::{DenyReason, Permits, RequestDecision};

/// The reason why trees that decide alone always have an outcome.
const NO_RULE: &str = "no rule is asked that could deny it";

/// How trees report a request that the rules count.
fn before_rules(request: &Request<'_>) -> ReportOptions {
    ReportOptions {
        started_at: request.started_at,
        counts_request: false,
    }
}

impl<B: Backend> Pipeline<B> {
    /// Decides a request by its descriptors: alone, or in an attempt together with the rules. `None` if a rule denies
    /// it.
    pub(super) async fn decide_trees(
        &self,
        input: TreeInput<'_>,
        telling: ReportOptions,
        together: Option<(&AttemptInput<'_>, &mut AttemptResult)>,
    ) -> Result<Option<TreeOutcome>, B::Error> {
        let lookups = TreeLookups::new(&input);
        let keys = lookups.key_facts(&input);
        let met = lookups.match_limits(&input, &keys);
        let trees = TreeRequest {
            rules: input.rules,
            found: &lookups.lookups,
            met: &met,
        };
        let decided = self.decide_matched(trees, &input.request, telling, together);
        Ok(decided.await?.map(|(outcome, _)| outcome))
    }

    /// Decides a request that was matched, and also returns what its trees were charged.
    async fn decide_matched<'m, 'a>(
        &self,
        trees: TreeRequest<'m, 'a>,
        request: &DescriptorRequest<'_>,
        mut telling: ReportOptions,
        together: Option<(&AttemptInput<'_>, &mut AttemptResult)>,
    ) -> Result<Option<(TreeOutcome, TreeDecision<'m, 'a>)>, B::Error> {
        let TreeRequest { rules, met, .. } = trees;
        let is_first = together
            .as_ref()
            .is_none_or(|(trial, _)| trial.position.is_none());
        // A later attempt from a queue is the same request.
        if is_first {
            (self.recorder).record_tree_match(rules, request, met);
            for refund in met.iter().flatten().filter_map(|met| met.refund_checks()) {
                self.backend.refund(&refund, Refund::Cost).await?;
            }
        }
        let mut charge = TreeCharge::new(trees, request.domain);
        let mut permits = Permits::default();
        let is_alone = together.is_none();
        match together {
            None => {
                if let Some(asked) = charge.charge(&self.backend, &[]).await? {
                    permits = charge.take_permits();
                    permits.hold(asked.answer.pass);
                }
            }
            Some((trial, tried)) => {
                // A policy may have been reloaded to `charging: each` while the request waited. Then each further
                // attempt would charge it again.
                charge.charging = Charging::AllOrNone;
                self.decide_once(trial, tried, Some(&mut charge)).await?;
                if !tried.said.is_allowed {
                    // A rule denies the request, so the trees were charged nothing.
                    return Ok(None);
                }
            }
        }
        let is_denied = !charge.is_allowed && rules.mode == Mode::Enforce;
        if is_alone || is_denied {
            let settling = charge.charge_or_peek_shadows(&self.backend, &mut permits, &[]);
            settling.await;
        }
        telling.counts_request |= is_denied;
        let tree_match = charge.tree_match();
        let decided = charge.into_decision();
        let (code, findings) = decided.findings();
        let statuses = &findings.statuses;
        (self.recorder).report_descriptors(&decided, statuses, telling, &self.backend);
        let outcome = TreeOutcome {
            code,
            findings,
            permits,
            tree_match,
        };
        Ok(Some((outcome, decided)))
    }

    /// Decides a request by trees and rules: together, unless its domain charges each limit by itself, or it has too
    /// many descriptors.
    pub(super) async fn decide_combined<'f>(
        &self,
        on: DecideOptions<'_>,
        facts: &'f Facts<'f>,
        descriptors: DescriptorRequest<'_>,
    ) -> Result<Option<MixedDecision<'f>>, B::Error> {
        let mut request = self.start_request(facts);
        let mut by_trees = DescriptorFindings::default();
        let now = self.active_policy();
        let charging = now.rules.trees.compiled.charging(descriptors.domain);
        if let Some(what) = self.too_much(descriptors.descriptors) {
            let first = self.exceeded(now.rules.mode, what, before_rules(&request));
            if first.code == StatusCode::OverLimit {
                return Ok(Some(MixedDecision::DeniedByDescriptor(first.findings)));
            }
            (by_trees, request.trees) = (first.findings, first.tree_match);
        } else if charging == Charging::Each && !on.lacks_facts_for(&now.rules) {
            // Boxed, because few domains do this, and every connection's future has room for the largest step.
            let deciding = Box::pin(self.charge_trees_first(on, facts, request, descriptors, now));
            return deciding.await;
        } else {
            request.descriptors = Some(descriptors);
        }
        drop(now);
        self.decide_by_rules(on, facts, request, by_trees).await
    }

    /// Decides a request by its trees, and then by the rules. If the rules don't answer, the trees' charges are
    /// refunded. If a rule denies, they stay.
    async fn charge_trees_first<'f>(
        &self,
        on: DecideOptions<'_>,
        facts: &'f Facts<'f>,
        mut request: Request<'_>,
        descriptors: DescriptorRequest<'_>,
        now: ActivePolicy,
    ) -> Result<Option<MixedDecision<'f>>, B::Error> {
        let input = self.tree_input(&now.rules, now.orders.as_ref(), descriptors);
        let lookups = TreeLookups::new(&input);
        let keys = lookups.key_facts(&input);
        let met = lookups.match_limits(&input, &keys);
        let trees = TreeRequest {
            rules: input.rules,
            found: &lookups.lookups,
            met: &met,
        };
        let deciding = self.decide_matched(trees, &descriptors, before_rules(&request), None);
        let (first, decided) = deciding.await?.expect(NO_RULE);
        if first.code == StatusCode::OverLimit {
            return Ok(Some(MixedDecision::DeniedByDescriptor(first.findings)));
        }
        let mut unanswered = RefundGuard::new(&self.backend, first.permits);
        unanswered.record_charge(&decided.charged_checks());
        request.trees = first.tree_match;
        let deciding = self.decide_by_rules(on, facts, request, first.findings);
        let Some(mut verdict) = deciding.await? else {
            return Ok(None);
        };
        let held = unanswered.disarm();
        if let MixedDecision::Passed(passed, _) = &mut verdict {
            passed.hold_permits(held);
        }
        Ok(Some(verdict))
    }

    /// Decides a request by the rules, with the trees or after them.
    async fn decide_by_rules<'f>(
        &self,
        on: DecideOptions<'_>,
        facts: &'f Facts<'f>,
        request: Request<'_>,
        mut by_trees: DescriptorFindings,
    ) -> Result<Option<MixedDecision<'f>>, B::Error> {
        let mut attempt = self.decide_with_waiting(&request, on).await?;
        if attempt.is_outdated {
            return Ok(None);
        }
        if let Some(trees) = attempt.trees.take() {
            if trees.code == StatusCode::OverLimit {
                return Ok(Some(MixedDecision::DeniedByDescriptor(trees.findings)));
            }
            by_trees = trees.findings;
        }
        attempt.is_by_trees = by_trees.decider.is_some() || by_trees.too_much.is_some();
        Ok(Some(
            match self.finish_verdict(facts, attempt, request.started_at) {
                RequestDecision::Allowed(passed) => MixedDecision::Passed(passed, by_trees),
                RequestDecision::Denied(refused) => MixedDecision::DeniedByRule(refused),
            },
        ))
    }

    /// Decides a request by trees alone.
    pub(super) async fn decide_descriptors(
        &self,
        request: DescriptorRequest<'_>,
    ) -> Result<DescriptorDecision, B::Error> {
        let (started, counts_request) = (self.recorder.start_time(&self.backend), true);
        let telling = ReportOptions {
            started_at: started,
            counts_request,
        };
        let now = self.active_policy();
        let outcome = self.decide_by_trees_alone(&now, request, telling).await?;
        Ok(DescriptorDecision::new(
            outcome.code,
            outcome.findings,
            outcome.permits,
        ))
    }

    /// Decides a request by trees alone, and denies one that exceeds a bound.
    pub(super) async fn decide_by_trees_alone(
        &self,
        now: &ActivePolicy,
        request: DescriptorRequest<'_>,
        telling: ReportOptions,
    ) -> Result<TreeOutcome, B::Error> {
        if let Some(what) = self.too_much(request.descriptors) {
            return Ok(self.exceeded(now.rules.mode, what, telling));
        }
        let input = self.tree_input(&now.rules, now.orders.as_ref(), request);
        let outcome = self.decide_trees(input, telling, None).await?;
        Ok(outcome.expect(NO_RULE))
    }

    /// The input of the trees for a request.
    pub(super) fn tree_input<'a>(
        &'a self,
        rules: &'a CompiledPolicy,
        orders: Option<&'a ActiveOverrides>,
        request: DescriptorRequest<'a>,
    ) -> TreeInput<'a> {
        TreeInput {
            rules,
            hashers: &self.hashers,
            orders,
            request,
        }
    }

    pub(super) fn too_much(
        &self,
        descriptors: &[Descriptor<'_>],
    ) -> Option<BoundExceeded<'static>> {
        let (found, most) = (descriptors.len(), self.bounds.descriptors);
        if found > most {
            return Some(BoundExceeded::Descriptors { found, most });
        }
        let entries = descriptors.iter().flat_map(|one| one.entries);
        let lengths = entries.flat_map(|(key, value)| [key.len(), value.len()]);
        let most = self.bounds.fact_bytes;
        let bytes = lengths.max().filter(|bytes| *bytes > most)?;
        Some(BoundExceeded::Entry { bytes, most })
    }

    /// The outcome of a request that exceeds a bound.
    #[cold]
    pub(super) fn exceeded(
        &self,
        mode: Mode,
        what: BoundExceeded<'static>,
        mut telling: ReportOptions,
    ) -> TreeOutcome {
        telling.counts_request |= mode == Mode::Enforce;
        (self.recorder).report_excess(mode, what, telling, &self.backend);
        let (code, retry_after) = match mode {
            Mode::Enforce => (StatusCode::OverLimit, Duration::MAX),
            Mode::Shadow | Mode::Off => (StatusCode::Ok, Duration::ZERO),
        };
        let findings = DescriptorFindings {
            reason: (code == StatusCode::OverLimit).then_some(DenyReason::TooLarge),
            retry_after,
            too_much: Some(what),
            ..DescriptorFindings::default()
        };
        let (permits, tree_match) = (Permits::default(), TreeMatch::Some);
        TreeOutcome {
            code,
            findings,
            permits,
            tree_match,
        }
    }
}
