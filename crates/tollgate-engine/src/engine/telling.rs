//! Telling an observer of what was decided.

use std::time::Duration;

use tollgate::Timestamp;

use super::Engine;
use crate::backend::Backend;
use crate::limits::RequestKey;
use crate::observer::{Event, Observer, Wants};
use crate::policy::Mode;
use crate::top::{Refusal, Top};
use crate::verdict::Findings;

impl<B: Backend> Engine<B> {
    /// The time, if somebody is to be told how long a decision took.
    pub(super) fn started(&self) -> Option<Timestamp> {
        let is_timed = self.observer.is_some() && self.wants == Wants::Everything;
        is_timed.then(|| self.backend.now())
    }

    #[inline]
    pub(super) fn tell(&self, verdict: &Findings<'_>, started: Option<Timestamp>) {
        let is_noted = !verdict.said.allowed || !verdict.said.shadows.as_slice().is_empty();
        if is_noted && let Some(top) = &self.top {
            note(top, verdict);
        }
        let Some(observer) = &self.observer else {
            return;
        };
        if let Some(started) = started {
            tell(&**observer, verdict, self.backend.now() - started);
        } else if !verdict.said.allowed || !verdict.said.shadows.as_slice().is_empty() {
            tell(&**observer, verdict, Duration::ZERO);
        }
    }
}

/// Counts a refusal by the rule and the key, if it has them, and what rules in shadow would have refused.
#[cold]
fn note(top: &Top, verdict: &Findings<'_>) {
    let (rules, said) = (&verdict.rules, &verdict.said);
    let add = |rule: Option<u32>, key: Option<RequestKey<'_>>, mode| {
        if let (Some(rule), Some(key)) = (rule, key) {
            let refusal = Refusal {
                limiter: &rules.applied[rule as usize].name,
                fingerprint: key.fingerprint(),
                mode,
            };
            top.add(refusal, key);
        }
    };
    if !said.allowed {
        add(said.by.rule(), verdict.key(), Mode::Enforce);
    }
    for shadowed in said.shadows.as_slice() {
        let key = shadowed.by.key(rules, verdict.facts, shadowed.fingerprint);
        add(shadowed.by.rule(), key, Mode::Shadow);
    }
}

/// Tells of a verdict, and of what rules in shadow would have refused.
#[cold]
fn tell(observer: &dyn Observer, verdict: &Findings<'_>, took: Duration) {
    let (rules, said) = (&verdict.rules, &verdict.said);
    if !said.allowed || observer.wants() == Wants::Everything {
        observer.decided(&Event {
            cause: verdict.cause(),
            key: verdict.key(),
            reason: verdict.reason(),
            mode: verdict.mode(),
            enforced_percent: verdict.enforced_percent(),
            decision: said.decision,
            fallback: verdict.fallback(),
            near_limit: verdict.is_near_limit(),
            took,
        });
    }
    for (shadowed, refusal) in said
        .shadows
        .as_slice()
        .iter()
        .zip(verdict.shadow_refusals())
    {
        let facts = verdict.facts.set_number(shadowed.set);
        let key = shadowed.by.key(rules, facts, shadowed.fingerprint);
        observer.decided(&Event {
            cause: refusal.cause,
            key,
            reason: Some(shadowed.reason(rules, said.at)),
            mode: Mode::Shadow,
            enforced_percent: refusal.enforced_percent,
            decision: refusal.decision,
            fallback: None,
            near_limit: false,
            took,
        });
    }
}
