//! What was decided, as Envoy is told of it: by rules, or by trees.

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

/// What was decided.
#[derive(Debug, PartialEq)]
pub(crate) struct RlsOutcome {
    pub(crate) answer: DecisionReport<'static>,
    /// One for each descriptor.
    pub(crate) statuses: Vec<DescriptorAnswer>,
    /// Why it was refused if nothing was decided: a name, and what is told by it.
    pub(crate) failure: Option<(&'static str, String)>,
    /// Header fields for the client.
    pub(crate) headers: Vec<(&'static str, String)>,
}

/// What an answer shows beside the decision.
#[derive(Clone, Copy)]
pub(super) struct AnswerSettings<'a> {
    /// Header fields in these dialects.
    pub(super) dialects: &'a [HeaderDialect],
    pub(super) shadow: ShadowVisibility,
}

/// What is told of one descriptor.
#[derive(Debug, PartialEq)]
pub(crate) struct DescriptorAnswer {
    pub(crate) is_allowed: bool,
    pub(crate) limit: Option<CurrentLimit>,
    pub(crate) remaining: u32,
}

/// A limit, as Envoy is told of it.
#[derive(Debug, PartialEq)]
pub(crate) struct CurrentLimit {
    pub(crate) requests: u32,
    pub(crate) unit: Option<Unit>,
    pub(crate) name: Option<String>,
    pub(crate) reset_after: Duration,
}

impl RlsOutcome {
    /// Of so many descriptors, of none of which there is more to say.
    fn of(descriptors: usize, told: DecisionReport<'static>) -> Self {
        let status = || DescriptorAnswer {
            is_allowed: told.is_allowed,
            limit: None,
            remaining: 0,
        };
        Self {
            statuses: std::iter::repeat_with(status).take(descriptors).collect(),
            answer: told,
            failure: None,
            headers: Vec::new(),
        }
    }

    /// What the proxy can tell others of the decision: names and texts.
    pub(crate) fn metadata(&self) -> SmallVec<[(&'static str, Cow<'_, str>); 4]> {
        let told = &self.answer;
        let rule = told.rule.iter().map(|rule| ("rule", &**rule));
        let reason = told.reason.iter().map(|reason| ("reason", reason.name()));
        let limit = told.limited_by.iter();
        let limit = limit.map(|limit| ("limited_by", limit.as_str()));
        let failure = self.failure.iter();
        let failure = failure.map(|(name, text)| (*name, text.as_str()));
        let borrowed = rule.chain(reason).chain(limit).chain(failure);
        let all = borrowed.map(|(name, text)| (name, Cow::Borrowed(text)));
        let shadow = (!told.shadow.is_empty()).then(|| Cow::Owned(told.shadow.join(", ")));
        all.chain(shadow.map(|rules| ("shadow", rules))).collect()
    }

    /// Tells the client of a request that is denied when to come again, if it is told anything by header fields: Envoy adds them
    /// to its 429.
    pub(super) fn add_retry_after(&mut self, dialects: &[HeaderDialect]) {
        let wait = self.answer.decision.as_ref().and_then(retry_after);
        if let (false, false, Some(seconds)) = (self.answer.is_allowed, dialects.is_empty(), wait) {
            self.headers.push(("retry-after", seconds.to_string()));
        }
    }

    /// The answer of trees and rules that both let a request pass: a limit is told before no limit.
    pub(super) fn merge(self, by_rules: Self) -> Self {
        let (mut told, other) = if self.limits_nothing() {
            (by_rules, self)
        } else {
            (self, by_rules)
        };
        told.answer.shadow.extend(other.answer.shadow);
        told
    }

    fn limits_nothing(&self) -> bool {
        self.answer.is_allowed && self.statuses.iter().all(|status| status.limit.is_none())
    }
}

/// The fields that show a limit, in the dialects that were chosen.
fn headers(dialects: &[HeaderDialect], limits: &[ShownLimit<'_>]) -> Vec<(&'static str, String)> {
    let mut written = Vec::new();
    if !dialects.is_empty() {
        fields::write(dialects, limits, unix_time_for(dialects), |name, value| {
            written.push((name, value.to_owned()));
        });
    }
    written
}

/// What is told where nothing limits.
pub(super) fn unlimited(descriptors: usize) -> RlsOutcome {
    RlsOutcome::of(descriptors, DecisionReport::unlimited(true))
}

/// What is told of a request that no limit's decision denies.
pub(super) fn denied(descriptors: usize, reason: Option<DenyReason>) -> RlsOutcome {
    let told = DecisionReport::unlimited(false);
    RlsOutcome::of(descriptors, DecisionReport { reason, ..told })
}

/// A denial, as it is counted, of what could never pass: an error would let it pass.
fn too_large(descriptors: usize, what: &impl ToString) -> RlsOutcome {
    RlsOutcome {
        failure: Some(("failure", what.to_string())),
        ..denied(descriptors, Some(DenyReason::TooLarge))
    }
}

/// What rules have said: the first descriptor tells the limit.
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
    let told = DecisionReport::of(answered, shows.shadow).into_owned();
    let mut decided = RlsOutcome::of(descriptors, told);
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

/// What trees have said.
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

/// What header fields show of the limits of all descriptors: the one that decided first, then the one with the fewest left. Of
/// limits with one name the first.
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

/// What header fields show of a descriptor's limit. One that the request brought along has no name but its domain's.
fn header_limit<'a>(domain: &'a str, status: &'a DescriptorStatus) -> Option<ShownLimit<'a>> {
    let (limit, decision) = (status.current_limit.as_ref()?, status.decision.as_ref()?);
    let name = limit.name.as_deref().or(status.limit.as_deref());
    let shown = ShownLimit::of(name.unwrap_or(domain), decision);
    Some(match limit.unit {
        Some(unit) => shown.window(Duration::from_secs(unit.seconds())),
        None => shown,
    })
}
