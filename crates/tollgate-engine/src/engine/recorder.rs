//! Records decisions: in counters, among the keys with the most denials, and to an observer.

use std::time::Duration;

use tollgate::Timestamp;

use super::request_match::RequestMatch;
use super::rules::CompiledPolicy;
use super::warnings::Warnings;
use crate::backend::Backend;
use crate::counters::Tallies;
use crate::limits::Answer;
use crate::observer::{Event, Observer, ObserverInterest};
use crate::policy::Mode;
use crate::top_keys::{DeniedKey, TopDenials};
use crate::verdict::{DecisionBasis, DecisionDetails, RuleDecision};

/// All recipients of decisions: counters, the keys with the most denials, warnings, and the observer.
#[derive(Default)]
pub(super) struct Recorder {
    pub(super) observer: Option<Box<dyn Observer>>,
    pub(super) wants: ObserverInterest,
    pub(super) tallies: Option<Tallies>,
    pub(super) top: Option<TopDenials>,
    pub(super) warnings: Warnings,
}

impl Recorder {
    /// When a decision begins, if its duration is reported.
    #[inline(always)]
    pub(super) fn start_time(&self, backend: &impl Backend) -> Option<Timestamp> {
        let is_timed = self.observer.is_some() && self.wants == ObserverInterest::Everything;
        is_timed.then(|| backend.now())
    }

    /// Counts an allowed request.
    #[inline(always)]
    pub(super) fn count_passed(
        &self,
        rules: &CompiledPolicy,
        gathered: &RequestMatch<'_>,
        said: &DecisionBasis,
    ) {
        if let Some(tallies) = &self.tallies {
            tallies.count_passed(rules, gathered, said);
        }
    }

    /// Counts a request that a rule in shadow mode allows.
    #[inline(always)]
    pub(super) fn count_shadow_passed(&self, rules: &CompiledPolicy, number: u32, answer: &Answer) {
        if answer.allowed
            && let Some(tallies) = &self.tallies
        {
            tallies.count_shadow_passed(rules, number, answer);
        }
    }

    /// Counts a denied request, and reports every decision.
    #[inline(always)]
    pub(super) fn report_verdict(
        &self,
        findings: &DecisionDetails<'_>,
        started: Option<Timestamp>,
        backend: &impl Backend,
    ) {
        let said = &findings.decision_data;
        let is_noted = !said.is_allowed || !said.shadows.as_slice().is_empty();
        if !said.is_allowed
            && let Some(tallies) = &self.tallies
        {
            tallies.count_denied(&findings.rules, said);
        }
        if is_noted && let Some(top) = &self.top {
            record_top_denials(top, findings);
        }
        let Some(observer) = &self.observer else {
            return;
        };
        if let Some(started) = started {
            notify_observer(&**observer, findings, backend.now() - started);
        } else if is_noted {
            notify_observer(&**observer, findings, Duration::ZERO);
        }
    }
}

/// Counts a denial by its rule and key, if it has them, and what rules in shadow mode would have denied.
#[cold]
fn record_top_denials(top: &TopDenials, verdict: &DecisionDetails<'_>) {
    let (rules, said) = (&verdict.rules, &verdict.decision_data);
    let add = |decided: &RuleDecision, mode| {
        if let (Some(rule), Some(key)) = (decided.by.rule(), decided.key(rules, verdict.facts)) {
            let refusal = DeniedKey {
                limiter: &rules.rules[rule as usize].name,
                fingerprint: key.fingerprint(),
                mode,
            };
            top.add(refusal, key);
        }
    };
    if !said.is_allowed {
        add(&said.rule_decision, Mode::Enforce);
    }
    for shadowed in said.shadows.as_slice() {
        add(shadowed, Mode::Shadow);
    }
}

/// Reports a decision, and what rules in shadow mode would have denied.
#[cold]
fn notify_observer(observer: &dyn Observer, verdict: &DecisionDetails<'_>, took: Duration) {
    let (rules, said) = (&verdict.rules, &verdict.decision_data);
    let event = |decided: &RuleDecision| Event {
        cause: decided.by.cause(rules),
        key: decided.key(rules, verdict.facts),
        reason: None,
        mode: Mode::Shadow,
        enforced_percent: decided.by.enforced_percent(rules),
        decision: decided.decision,
        fallback: None,
        near_limit: false,
        duration: took,
    };
    if !said.is_allowed || observer.wants() == ObserverInterest::Everything {
        observer.on_decision(&Event {
            reason: verdict.reason(),
            mode: verdict.mode(),
            fallback: verdict.fallback(),
            near_limit: verdict.is_near_limit(),
            ..event(&said.rule_decision)
        });
    }
    for shadowed in said.shadows.as_slice() {
        observer.on_decision(&Event {
            reason: Some(shadowed.reason(rules, said.decided_at)),
            ..event(shadowed)
        });
    }
}
