//! Telling an observer of what was decided.

use std::time::Duration;

use tollgate::Timestamp;

use super::Engine;
use crate::backend::Backend;
use crate::observer::{Event, Observer, Wants};
use crate::policy::Mode;
use crate::top::Top;
use crate::verdict::Findings;

impl<B: Backend> Engine<B> {
    /// The time, if somebody is to be told how long a decision took.
    pub(super) fn started(&self) -> Option<Timestamp> {
        let is_timed = self.observer.is_some() && self.wants == Wants::Everything;
        is_timed.then(|| self.backend.now())
    }

    #[inline]
    pub(super) fn tell(&self, verdict: &Findings<'_>, started: Option<Timestamp>) {
        if !verdict.said.allowed
            && let Some(top) = &self.top
        {
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

/// Counts a refusal by the rule and the key, if it has them.
#[cold]
fn note(top: &Top, verdict: &Findings<'_>) {
    let rule = verdict.said.by.rule();
    if let (Some(rule), Some(key)) = (rule, verdict.key()) {
        let rule = &verdict.rules.applied[rule as usize];
        top.add(&rule.name, key.fingerprint(), key);
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
        let key = shadowed.by.key(rules, verdict.facts, shadowed.fingerprint);
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
