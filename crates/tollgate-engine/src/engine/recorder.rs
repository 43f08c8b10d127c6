//! What is recorded of a decision: counted, noted among the keys that are denied most, and told to an observer.

use std::time::Duration;

use tollgate::Timestamp;

use super::request_match::RequestMatch;
use super::rules::Rules;
use super::warnings::Warnings;
use crate::backend::Backend;
use crate::limits::Answer;
use crate::observer::{Event, Observer, Wants};
use crate::policy::Mode;
use crate::tally::Tallies;
use crate::top::{DeniedKey, TopDenials};
use crate::verdict::{Findings, RequestDecision, RuleDecision};

/// Whoever learns of decisions: what is counted of a request, noted of its key and told to an observer, is so here.
#[derive(Default)]
pub(super) struct Recorder {
    pub(super) observer: Option<Box<dyn Observer>>,
    pub(super) wants: Wants,
    pub(super) tallies: Option<Tallies>,
    pub(super) top: Option<TopDenials>,
    pub(super) warnings: Warnings,
}

impl Recorder {
    /// When a decision begins, if somebody is to know how long it takes.
    #[inline(always)]
    pub(super) fn started(&self, backend: &impl Backend) -> Option<Timestamp> {
        let is_timed = self.observer.is_some() && self.wants == Wants::Everything;
        is_timed.then(|| backend.now())
    }

    /// Counts a request that passed.
    #[inline(always)]
    pub(super) fn passed(
        &self,
        rules: &Rules,
        gathered: &RequestMatch<'_>,
        said: &RequestDecision,
    ) {
        if let Some(tallies) = &self.tallies {
            tallies.passed(rules, gathered, said);
        }
    }

    /// Counts a request that passes a rule in shadow.
    #[inline(always)]
    pub(super) fn count_shadow_passed(&self, rules: &Rules, number: u32, answer: &Answer) {
        if answer.allowed
            && let Some(tallies) = &self.tallies
        {
            tallies.count_shadow_passed(rules, number, answer);
        }
    }

    /// Counts a request that was denied, and tells of any that was decided.
    #[inline(always)]
    pub(super) fn report(
        &self,
        findings: &Findings<'_>,
        started: Option<Timestamp>,
        backend: &impl Backend,
    ) {
        let said = &findings.said;
        let is_noted = !said.allowed || !said.shadows.as_slice().is_empty();
        if !said.allowed
            && let Some(tallies) = &self.tallies
        {
            tallies.refused(&findings.rules, said);
        }
        if is_noted && let Some(top) = &self.top {
            note(top, findings);
        }
        let Some(observer) = &self.observer else {
            return;
        };
        if let Some(started) = started {
            tell(&**observer, findings, backend.now() - started);
        } else if is_noted {
            tell(&**observer, findings, Duration::ZERO);
        }
    }
}

/// Counts a refusal by the rule and the key, if it has them, and what rules in shadow would have refused.
#[cold]
fn note(top: &TopDenials, verdict: &Findings<'_>) {
    let (rules, said) = (&verdict.rules, &verdict.said);
    let add = |decided: &RuleDecision, mode| {
        if let (Some(rule), Some(key)) = (decided.by.rule(), decided.key(rules, verdict.facts)) {
            let refusal = DeniedKey {
                limiter: &rules.applied[rule as usize].name,
                fingerprint: key.fingerprint(),
                mode,
            };
            top.add(refusal, key);
        }
    };
    if !said.allowed {
        add(&said.decided, Mode::Enforce);
    }
    for shadowed in said.shadows.as_slice() {
        add(shadowed, Mode::Shadow);
    }
}

/// Tells of a verdict, and of what rules in shadow would have refused.
#[cold]
fn tell(observer: &dyn Observer, verdict: &Findings<'_>, took: Duration) {
    let (rules, said) = (&verdict.rules, &verdict.said);
    let event = |decided: &RuleDecision| Event {
        cause: decided.by.cause(rules),
        key: decided.key(rules, verdict.facts),
        reason: None,
        mode: Mode::Shadow,
        enforced_percent: decided.by.enforced_percent(rules),
        decision: decided.decision,
        fallback: None,
        near_limit: false,
        took,
    };
    if !said.allowed || observer.wants() == Wants::Everything {
        observer.decided(&Event {
            reason: verdict.reason(),
            mode: verdict.mode(),
            fallback: verdict.fallback(),
            near_limit: verdict.is_near_limit(),
            ..event(&said.decided)
        });
    }
    for shadowed in said.shadows.as_slice() {
        observer.decided(&Event {
            reason: Some(shadowed.reason(rules, said.at)),
            ..event(shadowed)
        });
    }
}
