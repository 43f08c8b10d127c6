//! Decides one request on virtual time: facts or descriptors, as its policy takes them.

use std::collections::VecDeque;
use std::time::Duration;

use serde::{Serialize, Serializer};
use tollgate::{Decision, Outcome};
use tollgate_engine::engine::{
    AllowedDescriptors, DescriptorDecision, DescriptorStatus, LimitRemaining,
};
use tollgate_engine::envoy::StatusCode;
use tollgate_engine::facts::Descriptor;
use tollgate_engine::policy::{Charging, OnStoreFailure, OverLimitAction};
use tollgate_engine::verdict::{AllowedRequest, Cause, Permits};
use tollgate_engine::{Facts, Policy, RequestDecision};

use super::facts::{
    DescriptorArg, FactArg, HitsArg, PerDescriptor, RequestedLimit, escape_commas, facts,
};
use super::simulated_engine::SimulatedEngine;
use crate::outcome::CliError;

/// The request to explain.
#[derive(Debug)]
pub(crate) enum ExplainedRequest<'a> {
    /// For a policy in the native form.
    Facts(Box<Facts<'a>>),
    /// For a policy in envoyproxy/ratelimit's form.
    Descriptors(DescriptorRequestArgs<'a>),
}

/// A request as a proxy describes it.
#[derive(Debug)]
pub(crate) struct DescriptorRequestArgs<'a> {
    pub(super) domain: &'a str,
    pub(super) entries: Vec<Vec<(&'a str, &'a str)>>,
    pub(super) charging: Charging,
    pub(super) extras: DescriptorOptions<'a>,
}

/// What a proxy may send besides the entries of a descriptor.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct DescriptorOptions<'a> {
    /// Costs of the request, and of single descriptors.
    pub(crate) hits: &'a [PerDescriptor<HitsArg>],
    /// Limits in place of the configured ones.
    pub(crate) limits: &'a [PerDescriptor<RequestedLimit>],
    /// Whether each descriptor's status is shown, even where the outcome already has the charge.
    pub(crate) shows_statuses: bool,
}

impl<'a> ExplainedRequest<'a> {
    /// Fails if the arguments are for the other form.
    pub(crate) fn new(
        policy: &Policy,
        known: &'a [FactArg],
        domain: Option<&'a str>,
        descriptors: &'a [DescriptorArg],
        extras: DescriptorOptions<'a>,
    ) -> Result<Self, CliError> {
        let usage = |message: &str| Err(CliError::usage(message));
        match (policy.domains.is_empty(), domain) {
            (true, None) => Ok(Self::Facts(Box::new(facts(known)))),
            (false, Some(_)) if !known.is_empty() => {
                usage("the file has domains: a request to it has a --descriptor, and no --fact")
            }
            (false, Some(domain)) => {
                extras.check_descriptor_numbers(descriptors.len())?;
                let charging = policy.domains.get(domain).map(|domain| domain.charging);
                Ok(Self::Descriptors(DescriptorRequestArgs {
                    domain,
                    entries: descriptors.iter().map(DescriptorArg::pairs).collect(),
                    charging: charging.unwrap_or_default(),
                    extras,
                }))
            }
            (true, Some(_)) => {
                usage("the file has no domains: say what is known of the request with --fact")
            }
            (false, None) => usage(
                "the file has domains: say which with --domain, and what the proxy sends with --descriptor",
            ),
        }
    }

    /// Decides the request at the time of the engine's clock. An allowed request runs from then on.
    pub(crate) fn decide(
        &self,
        stage: &SimulatedEngine,
        at: Duration,
        running: &mut RunningRequests,
    ) -> DecidedRequest {
        running.release_until(at);
        match self {
            Self::Facts(facts) => {
                let verdict = stage.decide(facts);
                let mut step = DecidedRequest::new(at, &verdict);
                let left = stage.left(facts);
                if left.len() > 1 {
                    step.left = left.into_iter().map(RemainingLimit::new).collect();
                }
                running.add(at, verdict.allowed().map(AllowedRequest::into_permits));
                step
            }
            Self::Descriptors(request) => {
                let descriptors = request.descriptors();
                let hits = request.extras.of(None, request.extras.hits);
                let hits = hits.map_or(1, |HitsArg(hits)| hits);
                let verdict = stage.decide_descriptors(request.domain, &descriptors, hits);
                let mut step = DecidedRequest::of(at, &verdict);
                // With all-or-none charging, the outcome alone describes the charges.
                if request.charging == Charging::Each || request.extras.shows_statuses {
                    let each = request.entries.iter().zip(&verdict.statuses);
                    let each = each.map(|(entries, said)| DescriptorCharge::of(entries, said));
                    step.descriptors = each.collect();
                }
                running.add(at, verdict.allowed().map(AllowedDescriptors::into_permits));
                step
            }
        }
    }
}

impl DescriptorRequestArgs<'_> {
    /// The descriptors for the engine.
    pub(super) fn descriptors(&self) -> Vec<Descriptor<'_>> {
        let numbered = (1..).zip(&self.entries);
        let descriptors = numbered.map(|(number, entries)| {
            let mut descriptor = Descriptor::new(entries);
            let extras = &self.extras;
            let asked = extras.of(Some(number), extras.limits);
            let asked = asked.or_else(|| extras.of(None, extras.limits));
            descriptor.limit = asked.map(|RequestedLimit(count, unit)| (count, unit));
            let hits = extras.of(Some(number), extras.hits);
            descriptor.cost = hits.map(|HitsArg(hits)| u64::from(hits));
            descriptor
        });
        descriptors.collect()
    }
}

impl DescriptorOptions<'_> {
    fn of<T: Copy>(&self, number: Option<usize>, all: &[PerDescriptor<T>]) -> Option<T> {
        let mut all = all.iter().rev();
        all.find(|one| one.number == number).map(|one| one.value)
    }

    /// Fails if an argument names a descriptor that doesn't exist.
    fn check_descriptor_numbers(&self, descriptors: usize) -> Result<(), CliError> {
        let hits = self.hits.iter().map(|one| one.number);
        let limits = self.limits.iter().map(|one| one.number);
        let mut numbers = hits.chain(limits).flatten();
        match numbers.find(|number| *number > descriptors) {
            Some(number) => Err(CliError::usage(format_args!(
                "there is no descriptor {number}: the request has {descriptors}"
            ))),
            None => Ok(()),
        }
    }
}

/// Allowed requests that still run and hold their permits, each for the same duration.
#[derive(Debug)]
pub(crate) struct RunningRequests {
    hold: Duration,
    /// When each request ends, in ascending order.
    ends: VecDeque<(Duration, Permits)>,
}

impl RunningRequests {
    pub(crate) fn new(hold: Duration) -> Self {
        Self {
            hold,
            ends: VecDeque::new(),
        }
    }

    fn release_until(&mut self, at: Duration) {
        while self.ends.front().is_some_and(|(end, _)| *end <= at) {
            self.ends.pop_front();
        }
    }

    fn add(&mut self, at: Duration, permits: Option<Permits>) {
        if let Some(permits) = permits.filter(|_| !self.hold.is_zero()) {
            self.ends.push_back((at + self.hold, permits));
        }
    }
}

const ALLOWED: &str = "allowed";

const fn outcome_text(is_allowed: bool) -> &'static str {
    if is_allowed { ALLOWED } else { "denied" }
}

pub(super) const OVER_LIMIT: &str = "over-limit";

/// A decided request.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct DecidedRequest {
    #[serde(rename = "at_ms", serialize_with = "in_millis")]
    pub(crate) at: Duration,
    pub(crate) outcome: &'static str,
    /// The rule that decided.
    pub(crate) rule: Option<String>,
    pub(crate) remaining: Option<u64>,
    /// `None` if the request can never pass.
    #[serde(rename = "retry_after_ms", serialize_with = "in_millis_or_null")]
    pub(crate) retry_after: Option<Duration>,
    /// The limit of the rule that decided.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) limit: Option<String>,
    /// The failure mode that decided, if the store is unreachable.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) without_store: Option<&'static str>,
    /// The result of waiting, if the rule lets requests wait.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) waits: Option<WaitOutcome>,
    /// The remaining tokens of each limit, if the request has several.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) left: Vec<RemainingLimit>,
    /// The bound that the request exceeds. No rule was checked then.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) too_much: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) shadow: Vec<String>,
    /// The charge of each descriptor, if descriptors are charged one by one.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) descriptors: Vec<DescriptorCharge>,
}

/// A request that is over a limit whose rule lets requests wait.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct WaitOutcome {
    /// The longest wait.
    #[serde(rename = "longest_ms", serialize_with = "in_millis")]
    pub(crate) longest: Duration,
    /// Whether the request passes within that time if no other request arrives.
    pub(crate) passes: bool,
}

/// The remaining tokens of one limit.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct RemainingLimit {
    pub(crate) rule: String,
    pub(crate) limit: String,
    pub(crate) remaining: Option<u64>,
}

/// The charge of one descriptor.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct DescriptorCharge {
    pub(crate) descriptor: String,
    /// The descriptor's own status: `ok` or `over-limit`.
    pub(crate) status: &'static str,
    /// The limit of the descriptor.
    pub(crate) limit: Option<String>,
    pub(crate) charged: u64,
    pub(crate) remaining: Option<u64>,
}

impl RemainingLimit {
    fn new(left: LimitRemaining) -> Self {
        Self {
            limit: if left.is_warm_up {
                format!("{} while it warms up", left.kind)
            } else {
                left.kind.to_string()
            },
            remaining: remaining(&left.decision),
            rule: left.rule,
        }
    }
}

impl DescriptorCharge {
    fn of(entries: &[(&str, &str)], said: &DescriptorStatus) -> Self {
        Self {
            descriptor: descriptor_text(entries),
            status: match said.code {
                StatusCode::Ok => "ok",
                StatusCode::OverLimit => OVER_LIMIT,
            },
            limit: said.limit.clone(),
            charged: said.charged,
            remaining: said.decision.as_ref().and_then(remaining),
        }
    }
}

/// A descriptor as an argument.
pub(super) fn descriptor_text(entries: &[(&str, &str)]) -> String {
    let entries = entries.iter();
    let entries: Vec<_> = entries
        .map(|(key, value)| format!("{key}={}", escape_commas(value)))
        .collect();
    entries.join(",")
}

// Serde passes references.
fn in_millis<S: Serializer>(length: &Duration, out: S) -> Result<S::Ok, S::Error> {
    // Dividing whole nanoseconds keeps 2780 from becoming 2780.0000000000005.
    #[expect(
        clippy::cast_precision_loss,
        reason = "waits are shorter than 104 days, or rounded"
    )]
    let nanos = length.as_nanos() as f64;
    out.serialize_f64(nanos / 1e6)
}

pub(super) fn in_millis_or_null<S: Serializer>(
    wait: &Option<Duration>,
    out: S,
) -> Result<S::Ok, S::Error> {
    match wait {
        Some(wait) => in_millis(wait, out),
        None => out.serialize_none(),
    }
}

impl DecidedRequest {
    /// Whether the request passes.
    pub(crate) fn is_allowed(&self) -> bool {
        self.outcome == ALLOWED
    }

    fn new(at: Duration, verdict: &RequestDecision<'_>) -> Self {
        let decision = verdict.decision();
        let retry_after = match (verdict.denied().is_none(), decision.outcome) {
            (true, _) => Some(Duration::ZERO),
            (false, Outcome::Never) => None,
            (false, _) => never_as_none(decision.wait_or_max()),
        };
        let shadow = verdict.shadow_denials();
        let shadow = shadow.filter_map(|refusal| cause_name(refusal.cause));
        let too_much = match verdict.cause() {
            Cause::TooMuch(what) => Some(what.to_string()),
            _ => None,
        };
        Self {
            at,
            outcome: outcome_text(verdict.denied().is_none()),
            rule: cause_name(verdict.cause()).filter(|_| too_much.is_none()),
            remaining: remaining(decision),
            retry_after,
            limit: verdict.limit().map(|limit| limit.kind().to_string()),
            without_store: verdict.fallback().map(OnStoreFailure::name),
            too_much,
            shadow: shadow.collect(),
            ..Self::default()
        }
    }

    /// Adds the result of waiting to a denial, if its rule lets requests wait.
    pub(super) fn add_wait_outcome(mut self, policy: &Policy) -> Self {
        let name = self.rule.as_deref().unwrap_or("");
        let rule = policy.rules.iter().find(|rule| rule.name == name);
        let tier = || {
            let mut tiers = policy.tiers.iter();
            tiers.find(|(tier, _)| cause_name(Cause::Tier(tier)).as_deref() == Some(name))
        };
        let over = rule.map(|rule| rule.over);
        let over = over.or_else(|| tier().map(|(_, tier)| tier.over));
        if let (Some(OverLimitAction::Wait(longest)), false) = (over, self.is_allowed()) {
            let passes = self.retry_after.is_some_and(|wait| wait <= longest);
            self.waits = Some(WaitOutcome { longest, passes });
        }
        self
    }

    /// A request of descriptors. The fields are about the descriptor that decided.
    fn of(at: Duration, verdict: &DescriptorDecision) -> Self {
        let told = verdict.decider.map(|decider| &verdict.statuses[decider]);
        let shadow = verdict.statuses.iter().filter(|status| status.would_deny);
        Self {
            at,
            outcome: outcome_text(matches!(verdict, DescriptorDecision::Allowed(_))),
            rule: told.and_then(|status| status.limit.clone()),
            remaining: told.and_then(|status| remaining(status.decision.as_ref()?)),
            retry_after: never_as_none(verdict.retry_after),
            without_store: verdict.fallback.map(OnStoreFailure::name),
            too_much: verdict.too_much.map(|what| what.to_string()),
            shadow: shadow.filter_map(|status| status.limit.clone()).collect(),
            ..Self::default()
        }
    }
}

/// The remaining tokens. `None` if the decision has no limit.
fn remaining(decision: &Decision) -> Option<u64> {
    (!decision.is_unlimited()).then_some(decision.remaining)
}

/// The name of the part that decided. `None` if no rule did.
pub(crate) fn cause_name(cause: Cause<'_>) -> Option<String> {
    match cause {
        Cause::Nothing => None,
        Cause::Rule(name) => Some(name.to_owned()),
        other => Some(other.to_string()),
    }
}

/// Maps the longest duration, which means never, to `None`.
fn never_as_none(wait: Duration) -> Option<Duration> {
    (wait < Duration::MAX).then_some(wait)
}
