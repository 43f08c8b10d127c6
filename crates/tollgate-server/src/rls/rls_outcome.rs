//! The outcome of a descriptor request, in Envoy's terms: from rules, or from trees.

use std::borrow::Cow;
use std::time::Duration;

use smallvec::SmallVec;
use tollgate::Decision;
use tollgate_engine::backend::LimitKind;
use tollgate_engine::engine::{DescriptorFindings, DescriptorStatus};
use tollgate_engine::envoy::StatusCode;
use tollgate_engine::facts::Unit;
use tollgate_engine::policy::OnStoreFailure;
use tollgate_engine::verdict::DenyReason;
use tollgate_http::{HeaderDialect, MAX_LISTED_LIMITS, ShownLimit, fields, retry_after};

use super::rls_request::{RlsRequest, Undecided};
use crate::decision_answer::{DecisionAnswer, DecisionReport, LimitText, unix_time_for};
use crate::settings::ShadowVisibility;

/// The outcome of a request.
#[derive(Debug, PartialEq)]
pub(crate) struct RlsOutcome {
    pub(crate) answer: DecisionReport<'static>,
    /// One for each descriptor.
    pub(crate) statuses: Vec<DescriptorAnswer>,
    /// Why the request was denied without a decision: a name and a text for the metadata.
    pub(crate) failure: Option<(&'static str, String)>,
    /// Header fields for Envoy's client.
    pub(crate) headers: Vec<(&'static str, String)>,
}

/// The settings of an answer.
#[derive(Clone, Copy)]
pub(super) struct AnswerSettings<'a> {
    /// The dialects of the header fields.
    pub(super) dialects: &'a [HeaderDialect],
    pub(super) shadow: ShadowVisibility,
}

/// The answer for one descriptor.
#[derive(Debug, PartialEq)]
pub(crate) struct DescriptorAnswer {
    pub(crate) is_allowed: bool,
    pub(crate) limit: Option<CurrentLimit>,
    pub(crate) remaining: u32,
}

/// A limit, in Envoy's terms.
#[derive(Debug, PartialEq)]
pub(crate) struct CurrentLimit {
    pub(crate) requests: u32,
    pub(crate) unit: Option<Unit>,
    pub(crate) name: Option<String>,
    pub(crate) reset_after: Duration,
}

impl RlsOutcome {
    /// An outcome for this many descriptors, without their limits.
    fn of(descriptors: usize, report: DecisionReport<'static>) -> Self {
        let status = || DescriptorAnswer {
            is_allowed: report.is_allowed,
            limit: None,
            remaining: 0,
        };
        Self {
            statuses: std::iter::repeat_with(status).take(descriptors).collect(),
            answer: report,
            failure: None,
            headers: Vec::new(),
        }
    }

    /// The dynamic metadata for the proxy: names and texts.
    pub(crate) fn metadata(&self) -> SmallVec<[(&'static str, Cow<'_, str>); 4]> {
        let report = &self.answer;
        let rule = report.rule.iter().map(|rule| ("rule", &**rule));
        let reason = report.reason.iter().map(|reason| ("reason", reason.name()));
        let limit = report.limited_by.iter();
        let limit = limit.map(|limit| ("limited_by", limit.as_str()));
        let failure = self.failure.iter();
        let failure = failure.map(|(name, text)| (*name, text.as_str()));
        let borrowed = rule.chain(reason).chain(limit).chain(failure);
        let all = borrowed.map(|(name, text)| (name, Cow::Borrowed(text)));
        let shadow = (!report.shadow.is_empty()).then(|| Cow::Owned(report.shadow.join(", ")));
        all.chain(shadow.map(|rules| ("shadow", rules))).collect()
    }

    /// Adds `retry-after` to a denial, if header fields are enabled: Envoy adds them to its 429.
    pub(super) fn add_retry_after(&mut self, dialects: &[HeaderDialect]) {
        let wait = self.answer.decision.as_ref().and_then(retry_after);
        if let (false, false, Some(seconds)) = (self.answer.is_allowed, dialects.is_empty(), wait) {
            self.headers.push(("retry-after", seconds.to_string()));
        }
    }

    /// Merges the outcomes of trees and rules that both allow a request. An outcome with a limit is shown before one
    /// without.
    pub(super) fn merge(self, by_rules: Self) -> Self {
        let (mut shown, other) = if self.limits_nothing() {
            (by_rules, self)
        } else {
            (self, by_rules)
        };
        shown.answer.shadow.extend(other.answer.shadow);
        shown
    }

    fn limits_nothing(&self) -> bool {
        self.answer.is_allowed && self.statuses.iter().all(|status| status.limit.is_none())
    }
}

/// The rate-limit header fields, in the configured dialects.
fn headers(dialects: &[HeaderDialect], limits: &[ShownLimit<'_>]) -> Vec<(&'static str, String)> {
    let mut written = Vec::new();
    if !dialects.is_empty() {
        fields::write(dialects, limits, unix_time_for(dialects), |name, value| {
            written.push((name, value.to_owned()));
        });
    }
    written
}

/// The outcome where no limit applies.
pub(super) fn unlimited(descriptors: usize) -> RlsOutcome {
    RlsOutcome::of(descriptors, DecisionReport::unlimited(true))
}

/// A denial that no limit has decided.
pub(super) fn denied(descriptors: usize, reason: Option<DenyReason>) -> RlsOutcome {
    let report = DecisionReport::unlimited(false);
    RlsOutcome::of(descriptors, DecisionReport { reason, ..report })
}

/// The denial of a request that could never pass. An error instead could let it pass.
fn too_large(descriptors: usize, what: &impl ToString) -> RlsOutcome {
    RlsOutcome {
        failure: Some(("failure", what.to_string())),
        ..denied(descriptors, Some(DenyReason::TooLarge))
    }
}

/// The outcome of rules: the first descriptor shows the limit.
pub(super) fn outcome_of_rules(
    descriptors: usize,
    answered: &DecisionAnswer<'_>,
    shows: AnswerSettings<'_>,
) -> Result<RlsOutcome, Undecided> {
    if let Some(rule) = answered.failure() {
        return Err(Undecided::Unavailable(rule.to_owned()));
    }
    if let Some(what) = answered.too_much() {
        return Ok(too_large(descriptors, &what));
    }
    let report = DecisionReport::of(answered, shows.shadow).into_owned();
    let mut decided = RlsOutcome::of(descriptors, report);
    let decision = &answered.decision;
    let small = |count: u64| u32::try_from(count).unwrap_or(u32::MAX);
    if !decision.is_unlimited()
        && let Some(first) = decided.statuses.first_mut()
    {
        let kind = answered.limit();
        first.limit = Some(CurrentLimit {
            requests: small(kind.and_then(LimitKind::quota).unwrap_or(decision.limit)),
            unit: kind.and_then(|kind| Unit::of(kind.window()?)),
            name: answered.rule().map(str::to_owned),
            reset_after: decision.reset_after,
        });
        if answered.is_allowed {
            first.remaining = small(decision.remaining);
        }
    }
    decided.headers = answered.with_limits(|limits| headers(shows.dialects, limits));
    Ok(decided)
}

/// The outcome of trees.
pub(super) fn outcome_of_trees(
    question: &RlsRequest<'_>,
    verdict: &DescriptorFindings,
    is_allowed: bool,
    shows: AnswerSettings<'_>,
) -> Result<RlsOutcome, Undecided> {
    let domain = question.domain;
    if let Some(what) = verdict.too_much.filter(|_| !is_allowed) {
        return Ok(too_large(question.descriptors.len(), &what));
    }
    let decider = verdict
        .decider
        .and_then(|place| verdict.statuses.get(place));
    let rule = decider.and_then(|status| status.limit.as_deref());
    if !is_allowed && verdict.fallback == Some(OnStoreFailure::Closed) {
        return Err(Undecided::Unavailable(rule.unwrap_or(domain).to_owned()));
    }
    let status = |status: &DescriptorStatus| DescriptorAnswer {
        is_allowed: status.code == StatusCode::Ok,
        limit: status.current_limit.as_ref().map(|limit| CurrentLimit {
            requests: limit.requests_per_unit,
            unit: limit.unit,
            name: limit.name.clone(),
            reset_after: status
                .decision
                .map_or(Duration::ZERO, |decision| decision.reset_after),
        }),
        remaining: status.remaining,
    };
    let shadows = verdict.statuses.iter().filter(|one| one.would_deny);
    let shadows = shadows.filter_map(|one| one.limit.clone());
    Ok(RlsOutcome {
        statuses: verdict.statuses.iter().map(status).collect(),
        answer: DecisionReport {
            is_allowed,
            rule: rule.map(|rule| Cow::Owned(rule.to_owned())),
            decision: Some(
                decider
                    .and_then(|status| status.decision)
                    .unwrap_or(Decision::UNLIMITED),
            ),
            reason: verdict.reason,
            limited_by: verdict.limit.as_ref().map(LimitText::of),
            shadow: match shows.shadow {
                ShadowVisibility::Shown if is_allowed => shadows.collect(),
                _ => Vec::new(),
            },
        },
        failure: None,
        headers: headers(
            shows.dialects,
            &header_limits(domain, decider, &verdict.statuses),
        ),
    })
}

/// The limits that header fields show: the deciding one first, then those with the fewest remaining tokens. Of several
/// limits with one name the first is shown.
fn header_limits<'a>(
    domain: &'a str,
    decider: Option<&'a DescriptorStatus>,
    statuses: &'a [DescriptorStatus],
) -> Vec<ShownLimit<'a>> {
    let mut others: Vec<_> = statuses
        .iter()
        .filter_map(|status| header_limit(domain, status))
        .collect();
    others.sort_by_key(|shown| shown.remaining);
    let decider = decider.and_then(|status| header_limit(domain, status));
    let mut all: Vec<ShownLimit<'a>> = Vec::new();
    for one in decider.into_iter().chain(others) {
        if all.len() < MAX_LISTED_LIMITS && all.iter().all(|known| known.name != one.name) {
            all.push(one);
        }
    }
    all
}

/// The limit of a descriptor for header fields. A limit that the request brought along has its domain's name.
fn header_limit<'a>(domain: &'a str, status: &'a DescriptorStatus) -> Option<ShownLimit<'a>> {
    let (limit, decision) = (status.current_limit.as_ref()?, status.decision.as_ref()?);
    let name = limit.name.as_deref().or(status.limit.as_deref());
    let shown = ShownLimit::of(name.unwrap_or(domain), decision);
    Some(match limit.unit {
        Some(unit) => shown.window(Duration::from_secs(unit.seconds())),
        None => shown,
    })
}
