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
use tollgate_http::{Dialect, MOST_LISTED, Shown, fields, retry_after};

use super::question::{Question, Undecided};
use crate::answers::{Answered, LimitText, limited_by, unix_now};

/// What was decided.
#[derive(Debug, PartialEq)]
pub(crate) struct Decided {
    pub(crate) is_allowed: bool,
    /// One for each descriptor.
    pub(crate) statuses: Vec<Status>,
    /// What decided, and what it said: nothing if nothing limits.
    pub(crate) rule: Option<String>,
    pub(crate) decision: Option<Decision>,
    /// Why it was refused, and by which limit of the rule.
    pub(crate) reason: Option<DenyReason>,
    pub(crate) limited_by: Option<LimitText>,
    /// Limits in shadow that would have refused it, if an operator wants clients to see them.
    pub(crate) shadow: Vec<String>,
    /// Why it was refused if nothing was decided: a name, and what is told by it.
    pub(crate) failure: Option<(&'static str, String)>,
    /// Header fields for the client.
    pub(crate) headers: Vec<(&'static str, String)>,
}

/// What is told of one descriptor.
#[derive(Debug, PartialEq)]
pub(crate) struct Status {
    pub(crate) is_allowed: bool,
    pub(crate) limit: Option<Limit>,
    pub(crate) remaining: u32,
}

/// A limit, as Envoy is told of it.
#[derive(Debug, PartialEq)]
pub(crate) struct Limit {
    pub(crate) requests: u32,
    pub(crate) unit: Option<Unit>,
    pub(crate) name: Option<String>,
    pub(crate) reset_after: Duration,
}

impl Decided {
    /// What the proxy can tell others of the decision: names and texts.
    pub(crate) fn metadata(&self) -> SmallVec<[(&'static str, Cow<'_, str>); 4]> {
        let rule = self.rule.iter().map(|rule| ("rule", rule.as_str()));
        let reason = self.reason.iter().map(|reason| ("reason", reason.name()));
        let limit = self.limited_by.iter();
        let limit = limit.map(|limit| ("limited_by", limit.as_str()));
        let failure = self.failure.iter();
        let failure = failure.map(|(name, text)| (*name, text.as_str()));
        let borrowed = rule.chain(reason).chain(limit).chain(failure);
        let all = borrowed.map(|(name, text)| (name, Cow::Borrowed(text)));
        let shadow = (!self.shadow.is_empty()).then(|| Cow::Owned(self.shadow.join(", ")));
        all.chain(shadow.map(|rules| ("shadow", rules))).collect()
    }

    /// Tells the client of a request that is denied when to come again, if it is told anything by header fields: Envoy adds them
    /// to its 429.
    pub(super) fn tell_wait(&mut self, dialects: &[Dialect]) {
        let wait = self.decision.as_ref().and_then(retry_after);
        if let (false, false, Some(seconds)) = (self.is_allowed, dialects.is_empty(), wait) {
            self.headers.push(("retry-after", seconds.to_string()));
        }
    }

    /// The answer of trees and rules that both let a request pass: a limit is told before no limit.
    pub(super) fn joined(self, by_rules: Self) -> Self {
        let (mut told, other) = if self.limits_nothing() {
            (by_rules, self)
        } else {
            (self, by_rules)
        };
        told.shadow.extend(other.shadow);
        told
    }

    fn limits_nothing(&self) -> bool {
        self.is_allowed && self.statuses.iter().all(|status| status.limit.is_none())
    }
}

/// The fields that show a limit, in the dialects that were chosen.
fn headers(dialects: &[Dialect], limits: &[Shown<'_>]) -> Vec<(&'static str, String)> {
    let mut written = Vec::new();
    if !dialects.is_empty() {
        fields::write(dialects, limits, unix_now(dialects), |name, value| {
            written.push((name, value.to_owned()));
        });
    }
    written
}

/// What is told where nothing limits.
pub(super) fn unlimited(descriptors: usize) -> Decided {
    told(descriptors, true)
}

/// What is told of a request that no limit's decision denies.
pub(super) fn denied(descriptors: usize, reason: Option<DenyReason>) -> Decided {
    Decided {
        reason,
        ..told(descriptors, false)
    }
}

fn told(descriptors: usize, is_allowed: bool) -> Decided {
    let status = || Status {
        is_allowed,
        limit: None,
        remaining: 0,
    };
    Decided {
        is_allowed,
        statuses: std::iter::repeat_with(status).take(descriptors).collect(),
        rule: None,
        decision: None,
        reason: None,
        limited_by: None,
        shadow: Vec::new(),
        failure: None,
        headers: Vec::new(),
    }
}

/// A denial, as it is counted, of what could never pass: an error would let it pass.
fn too_large(descriptors: usize, what: &impl ToString) -> Decided {
    Decided {
        failure: Some(("failure", what.to_string())),
        ..denied(descriptors, Some(DenyReason::TooLarge))
    }
}

/// What rules have said: the first descriptor tells the limit.
pub(super) fn by_rule(
    descriptors: usize,
    answered: &Answered<'_>,
    dialects: &[Dialect],
) -> Result<Decided, Undecided> {
    if let Some(rule) = answered.failure() {
        return Err(Undecided::Unavailable(rule.to_owned()));
    }
    let is_allowed = answered.is_allowed;
    if let Some(what) = answered.too_much() {
        return Ok(too_large(descriptors, &what));
    }
    let mut decided = told(descriptors, is_allowed);
    let decision = &answered.decision;
    let small = |count: u64| u32::try_from(count).unwrap_or(u32::MAX);
    if !decision.is_unlimited()
        && let Some(first) = decided.statuses.first_mut()
    {
        let kind = answered.limit();
        first.limit = Some(Limit {
            requests: small(kind.and_then(LimitKind::quota).unwrap_or(decision.limit)),
            unit: kind.and_then(unit_of),
            name: answered.rule().map(str::to_owned),
            reset_after: decision.reset_after,
        });
        first.remaining = if is_allowed {
            small(decision.remaining)
        } else {
            0
        };
    }
    Ok(Decided {
        rule: answered.rule().map(str::to_owned),
        decision: Some(answered.decision),
        reason: (!is_allowed).then(|| answered.reason()),
        limited_by: limited_by(answered),
        headers: answered.show_limits(|limits| headers(dialects, limits)),
        ..decided
    })
}

/// The unit of a limit, if it is by one of theirs.
fn unit_of(kind: &LimitKind) -> Option<Unit> {
    Unit::of(kind.window()?)
}

/// What trees have said.
pub(super) fn by_tree(
    question: &Question<'_>,
    verdict: &DescriptorFindings,
    is_allowed: bool,
    dialects: &[Dialect],
) -> Result<Decided, Undecided> {
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
    let status = |status: &DescriptorStatus| Status {
        is_allowed: status.code == StatusCode::Ok,
        limit: status.current_limit.as_ref().map(|limit| Limit {
            requests: limit.requests_per_unit,
            unit: limit.unit,
            name: limit.name.clone(),
            reset_after: status
                .decision
                .map_or(Duration::ZERO, |decision| decision.reset_after),
        }),
        remaining: status.remaining,
    };
    Ok(Decided {
        is_allowed,
        statuses: verdict.statuses.iter().map(status).collect(),
        rule: rule.map(str::to_owned),
        decision: decider.and_then(|status| status.decision),
        reason: verdict.reason,
        limited_by: verdict.limit.as_ref().map(LimitText::of),
        shadow: Vec::new(),
        failure: None,
        headers: headers(dialects, &all_shown(domain, decider, &verdict.statuses)),
    })
}

/// What header fields show of the limits of all descriptors: the one that decided first, then the one with the fewest left. Of
/// limits with one name the first.
fn all_shown<'a>(
    domain: &'a str,
    decider: Option<&'a DescriptorStatus>,
    statuses: &'a [DescriptorStatus],
) -> Vec<Shown<'a>> {
    let mut others: Vec<_> = statuses
        .iter()
        .filter_map(|status| shown(domain, status))
        .collect();
    others.sort_by_key(|shown| shown.remaining);
    let decider = decider.and_then(|status| shown(domain, status));
    let mut all: Vec<Shown<'a>> = Vec::new();
    for one in decider.into_iter().chain(others) {
        if all.len() < MOST_LISTED && all.iter().all(|known| known.name != one.name) {
            all.push(one);
        }
    }
    all
}

/// What header fields show of a descriptor's limit. One that the request brought along has no name but its domain's.
fn shown<'a>(domain: &'a str, status: &'a DescriptorStatus) -> Option<Shown<'a>> {
    let (limit, decision) = (status.current_limit.as_ref()?, status.decision.as_ref()?);
    let name = limit.name.as_deref().or(status.limit.as_deref());
    let shown = Shown::of(name.unwrap_or(domain), decision);
    Some(match limit.unit {
        Some(unit) => shown.window(Duration::from_secs(unit.seconds())),
        None => shown,
    })
}
