//! Counts and reports a request of descriptors.

use std::time::Duration;

use tollgate::{Decision, Timestamp};

use super::tree_charge::TreeDecision;
use super::trees::{DescriptorMatch, LeafKey};
use super::{BoundExceeded, CurrentLimit, DescriptorFindings, DescriptorRequest, DescriptorStatus};
use crate::backend::Backend;
use crate::engine::recorder::Recorder;
use crate::engine::rules::CompiledPolicy;
use crate::engine::tally_counting::DescriptorOutcome;
use crate::envoy::{self, CompiledLimit, LimitStatus, LookupResult, StatusCode};
use crate::facts::Unit;
use crate::limits::{Limit, LimitKind};
use crate::observer::{Event, Observer, ObserverInterest};
use crate::policy::Mode;
use crate::top_keys::{DeniedKey, TopDenials};
use crate::verdict::{BLOCKED, Cause, DenyReason, deny_reason, is_near_limit, percent_of};

/// A request of descriptors, with the limits that they match.
#[derive(Clone, Copy)]
pub(in crate::engine) struct TreeRequest<'r, 'a> {
    pub(in crate::engine) rules: &'r CompiledPolicy,
    pub(in crate::engine) found: &'r [LookupResult<'a>],
    pub(in crate::engine) met: &'r [Option<DescriptorMatch<'a>>],
}

/// How a request of descriptors is reported.
#[derive(Clone, Copy)]
pub(in crate::engine) struct ReportOptions {
    /// When the decision began, if its duration is reported.
    pub(in crate::engine) started_at: Option<Timestamp>,
    /// Whether the request is counted here, because the trees alone decide it, or deny it. Otherwise the rules count
    /// it.
    pub(in crate::engine) counts_request: bool,
}

impl Recorder {
    /// Records whether any descriptor has a limit.
    pub(in crate::engine) fn record_tree_match(
        &self,
        rules: &CompiledPolicy,
        request: &DescriptorRequest<'_>,
        met: &[Option<DescriptorMatch<'_>>],
    ) {
        if met.iter().any(Option::is_some) {
            rules.trees.presence.record_found();
        } else {
            self.record_unmatched_descriptors(rules, request.domain, request.descriptors);
        }
    }

    /// Counts a request, and reports it.
    #[cold]
    pub(in crate::engine) fn report_descriptors(
        &self,
        decided: &TreeDecision<'_, '_>,
        told: &[DescriptorStatus],
        telling: ReportOptions,
        backend: &impl Backend,
    ) {
        let request = decided.request;
        if let Some(tallies) = &self.tallies {
            match decided.is_allowed || request.rules.mode != Mode::Enforce {
                _ if !telling.counts_request => {}
                true => tallies.add_passed(),
                false => tallies.add_refused(),
            }
            for (number, said) in decided.outcomes() {
                tallies.count_descriptor(request.rules, &request.found[number], said);
            }
            if telling.counts_request && request.met.iter().all(Option::is_none) {
                tallies.count_unmatched(request.rules, request.found);
            }
        }
        if let Some(top) = &self.top {
            decided.record_top_denials(top);
        }
        if let Some(observer) = &self.observer {
            let started = telling.started_at;
            let took = started.map_or(Duration::ZERO, |started| backend.now() - started);
            let is_any = decided.notify_observer(&**observer, told, took);
            if !is_any && telling.counts_request && observer.wants() == ObserverInterest::Everything
            {
                observer.on_decision(&passing_event(Cause::Nothing, request.rules.mode, took));
            }
        }
    }

    /// Counts a request that exceeds a bound, and reports it.
    #[cold]
    pub(in crate::engine) fn report_excess(
        &self,
        mode: Mode,
        what: BoundExceeded<'static>,
        telling: ReportOptions,
        backend: &impl Backend,
    ) {
        let started = telling.started_at;
        if let Some(tallies) = &self.tallies {
            tallies.count_excess(mode, telling.counts_request);
        }
        if let Some(observer) = &self.observer {
            let took = started.map_or(Duration::ZERO, |started| backend.now() - started);
            observer.on_decision(&Event {
                reason: Some(DenyReason::TooLarge),
                decision: BLOCKED,
                ..passing_event(Cause::TooMuch(what), mode, took)
            });
        }
    }
}

impl TreeDecision<'_, '_> {
    /// The findings of a request.
    pub(in crate::engine) fn findings(&self) -> (StatusCode, DescriptorFindings) {
        let TreeRequest { rules, found, met } = self.request;
        let each = || found.iter().zip(met).zip(&self.results);
        let statuses = || {
            each().map(|((lookup, met), result)| {
                let status = envoy::limit_status(*lookup, result.decision.as_slice());
                apply_overrides_to_status(status, met.as_ref())
            })
        };
        let told = each().zip(statuses());
        let told = told.map(|(((lookup, _), result), status)| DescriptorStatus {
            code: status.code,
            current_limit: status.current_limit.as_ref().map(CurrentLimit::of),
            remaining: status.remaining,
            limit: lookup.leaf().map(|leaf| rules.trees.name(leaf).to_owned()),
            decision: result.decision,
            would_deny: status.would_deny,
            charged: result.charged,
        });
        let told = told.collect();
        let code = match rules.mode {
            Mode::Enforce if !self.is_allowed => StatusCode::OverLimit,
            _ => StatusCode::Ok,
        };
        debug_assert_eq!(
            code,
            envoy::overall_code(&statuses().collect::<Vec<_>>(), rules.mode),
        );
        let is_denied = code == StatusCode::OverLimit;
        let has_decided = |number: &usize| is_denied && self.results[*number].decision.is_some();
        let decider = self.decider.filter(has_decided);
        let reason = decider.map_or(DenyReason::Rate, |number| self.deny_reason(number));
        let limit = decider.filter(|_| reason != DenyReason::Blocked);
        let findings = DescriptorFindings {
            statuses: told,
            decider: self.decider,
            reason: is_denied.then_some(reason),
            limit: limit.and_then(|number| Some(self.limit(number)?.kind().clone())),
            retry_after: if is_denied {
                self.retry_after
            } else {
                Duration::ZERO
            },
            fallback: self.unavailable.map(|store| store.fallback),
            unavailable: self.unavailable,
            too_much: None,
        };
        (code, findings)
    }

    /// Counts a denial by its limit and key.
    fn record_top_denials(&self, top: &TopDenials) {
        let TreeRequest { found, met, .. } = self.request;
        for (number, said) in self.outcomes() {
            let mode = match said {
                DescriptorOutcome::Denied(_) => Mode::Enforce,
                DescriptorOutcome::InShadow => Mode::Shadow,
                DescriptorOutcome::Passed { .. } => continue,
            };
            if let (Some(leaf), Some(met)) = (found[number].counts_as(), &met[number]) {
                let refusal = DeniedKey {
                    limiter: leaf,
                    fingerprint: met.key.fingerprint(),
                    mode,
                };
                top.add(refusal, LeafKey(leaf, met.key));
            }
        }
    }

    /// The outcome of each descriptor with a cost. For a denied request, only the decider and what was charged all
    /// the same count.
    fn outcomes(&self) -> impl Iterator<Item = (usize, DescriptorOutcome)> {
        let TreeRequest { rules, met, .. } = self.request;
        let refuses = rules.mode == Mode::Enforce && !self.is_allowed;
        let met = met.iter().enumerate();
        met.filter_map(move |(number, met)| {
            let (met, decision) = (met.as_ref()?, self.results[number].decision?);
            if met.cost() == 0 {
                return None;
            }
            let told = if decision.is_allowed() {
                let near_limit = is_near_limit(&decision, rules.near_limit_percent);
                (!refuses || self.results[number].charged > 0)
                    .then_some(DescriptorOutcome::Passed { near_limit })
            } else if refuses && self.decider == Some(number) {
                Some(DescriptorOutcome::Denied(self.deny_reason(number)))
            } else if !refuses || self.mode(number) != Mode::Enforce {
                Some(DescriptorOutcome::InShadow)
            } else {
                None
            };
            told.map(|told| (number, told))
        })
    }

    /// Why a descriptor is denied. If it has several limits, the reason is that of [`limit`](Self::limit).
    fn deny_reason(&self, number: usize) -> DenyReason {
        let (met, result) = (&self.request.met[number], &self.results[number]);
        if met.as_ref().is_some_and(|met| met.blocked.is_some()) {
            return DenyReason::Blocked;
        }
        if result.unavailable.is_some_and(|store| store.is_closed()) {
            return DenyReason::Store;
        }
        let decision = result.decision.unwrap_or(Decision::UNLIMITED);
        deny_reason(self.limit(number).map(Limit::kind), &decision)
    }

    /// The limit that made a descriptor's decision. If it has several, the first with the decision's size.
    fn limit(&self, number: usize) -> Option<&Limit> {
        let told = self.results[number].decision?.limit;
        let limits = self.request.met[number].as_ref()?.limits;
        let found = limits
            .iter()
            .find(|limit| limit.kind().quota() == Some(told));
        found.or(limits.first())
    }

    fn mode(&self, number: usize) -> Mode {
        let own = self.request.found[number].leaf().map(CompiledLimit::mode);
        self.request.rules.mode.max(own.unwrap_or_default())
    }

    /// Reports each descriptor with a limit. Returns whether there was any.
    fn notify_observer(
        &self,
        observer: &dyn Observer,
        told: &[DescriptorStatus],
        took: Duration,
    ) -> bool {
        let TreeRequest { rules, met, .. } = self.request;
        let wants_all = observer.wants() == ObserverInterest::Everything;
        let mut is_any = false;
        for (number, status) in told.iter().enumerate() {
            let Some(decision) = status.decision else {
                continue;
            };
            is_any = true;
            let is_refused = !decision.is_allowed();
            if !(is_refused || wants_all) {
                continue;
            }
            let (limit, mode) = (status.limit.as_deref(), self.mode(number));
            let cause = limit.map_or(Cause::RequestedLimit, Cause::Descriptor);
            observer.on_decision(&Event {
                key: met[number].as_ref().map(|met| met.key),
                reason: is_refused.then(|| self.deny_reason(number)),
                decision,
                fallback: self.results[number].unavailable.map(|store| store.fallback),
                near_limit: is_near_limit(&decision, rules.near_limit_percent),
                ..passing_event(cause, mode, took)
            });
        }
        is_any
    }
}

/// The event of an allowed request, without a rule.
fn passing_event(cause: Cause<'_>, mode: Mode, took: Duration) -> Event<'_> {
    Event {
        cause,
        key: None,
        reason: None,
        mode,
        enforced_percent: percent_of(mode),
        decision: Decision::UNLIMITED,
        fallback: None,
        near_limit: false,
        duration: took,
    }
}

/// Adapts the status of a descriptor to its overrides.
fn apply_overrides_to_status<'p>(
    mut status: LimitStatus<'p>,
    met: Option<&DescriptorMatch<'_>>,
) -> LimitStatus<'p> {
    let Some(met) = met else {
        return status;
    };
    status.quota_mode &= met.blocked.is_none();
    if let (Some(told), true) = (&mut status.current_limit, met.is_changed)
        && let Some(LimitKind::Rate { rate, .. }) = met.limits.first().map(Limit::kind)
    {
        told.requests_per_unit = u32::try_from(rate.count()).unwrap_or(u32::MAX);
        told.unit = rate.period().and_then(Unit::of);
    }
    status
}
