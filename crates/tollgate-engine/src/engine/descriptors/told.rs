//! What is counted and told of a request of descriptors.

use std::time::Duration;

use tollgate::{Decision, Timestamp};

use super::charge::Decided;
use super::trees::{LeafKey, Met};
use super::{DescriptorStatus, TooMuch};
use crate::backend::Backend;
use crate::engine::counting::Told;
use crate::engine::recorder::Recorder;
use crate::engine::rules::Rules;
use crate::envoy::{Leaf, Lookup};
use crate::limits::{Limit, LimitKind};
use crate::observer::{Event, Observer, Wants};
use crate::policy::{Mode, OnStoreFailure};
use crate::top::{Refusal, Top};
use crate::verdict::{BLOCKED, Cause, DenyReason, is_near, percent_of, reason_of};

/// A request of descriptors, with the limits that they match.
#[derive(Clone, Copy)]
pub(in crate::engine) struct TreeRequest<'r, 'a> {
    pub(in crate::engine) rules: &'r Rules,
    pub(in crate::engine) found: &'r [Lookup<'a>],
    pub(in crate::engine) met: &'r [Option<Met<'a>>],
}

/// How a request of descriptors is reported.
#[derive(Clone, Copy)]
pub(in crate::engine) struct Telling {
    /// When its decision began, if somebody is to know how long it took.
    pub(in crate::engine) started: Option<Timestamp>,
    /// Whether the trees alone decide it, or deny it: it is counted here then. Otherwise the rules count it.
    pub(in crate::engine) counts_request: bool,
}

impl Recorder {
    /// Whether anybody wants to know what was decided.
    pub(super) fn is_told(&self) -> bool {
        self.tallies.is_some() || self.observer.is_some() || self.top.is_some()
    }

    /// Counts a request, and tells of it.
    #[cold]
    pub(super) fn tell_descriptors(
        &self,
        request: &TreeRequest<'_, '_>,
        decided: &Decided,
        told: &[DescriptorStatus],
        telling: Telling,
        backend: &impl Backend,
    ) {
        if let Some(tallies) = &self.tallies {
            match decided.allowed || request.rules.mode != Mode::Enforce {
                _ if !telling.counts_request => {}
                true => tallies.add_passed(),
                false => tallies.add_refused(),
            }
            for (number, said) in request.said(decided) {
                tallies.descriptor(request.rules, &request.found[number], said);
            }
            if telling.counts_request && request.met.iter().all(Option::is_none) {
                tallies.nothing_met(request.rules, request.found);
            }
        }
        if let Some(top) = &self.top {
            request.note(top, decided);
        }
        if let Some(observer) = &self.observer {
            let started = telling.started;
            let took = started.map_or(Duration::ZERO, |started| backend.now() - started);
            let is_any = request.tell(&**observer, decided, told, took);
            if !is_any && telling.counts_request && observer.wants() == Wants::Everything {
                observer.decided(&request.no_match(took));
            }
        }
    }

    /// Counts a request that has too much of something, and tells of it.
    #[cold]
    pub(super) fn tell_exceeded(
        &self,
        mode: Mode,
        what: TooMuch<'static>,
        telling: Telling,
        backend: &impl Backend,
    ) {
        let started = telling.started;
        if let Some(tallies) = &self.tallies {
            tallies.exceeded(mode, telling.counts_request);
        }
        if let Some(observer) = &self.observer {
            observer.decided(&Event {
                cause: Cause::TooMuch(what),
                key: None,
                reason: Some(DenyReason::TooLarge),
                mode,
                enforced_percent: percent_of(mode),
                decision: BLOCKED,
                fallback: None,
                near_limit: false,
                took: started.map_or(Duration::ZERO, |started| backend.now() - started),
            });
        }
    }
}

impl TreeRequest<'_, '_> {
    /// Counts a refusal by the limit and the key that refused.
    fn note(&self, top: &Top, decided: &Decided) {
        for (number, said) in self.said(decided) {
            let mode = match said {
                Told::Refused(_) => Mode::Enforce,
                Told::InShadow => Mode::Shadow,
                Told::Passed { .. } => continue,
            };
            if let (Some(leaf), Some(met)) = (self.found[number].counts_as(), &self.met[number]) {
                let refusal = Refusal {
                    limiter: leaf,
                    fingerprint: met.key.fingerprint(),
                    mode,
                };
                top.add(refusal, LeafKey(leaf, met.key));
            }
        }
    }

    /// What each descriptor that takes something counts. Of a request that is refused, that is what decided, and what
    /// was charged all the same.
    fn said<'d>(&'d self, decided: &'d Decided) -> impl Iterator<Item = (usize, Told)> + 'd {
        let refuses = self.rules.mode == Mode::Enforce && !decided.allowed;
        let met = self.met.iter().enumerate();
        met.filter_map(move |(number, met)| {
            let (met, decision) = (met.as_ref()?, decided.each[number]?);
            if met.cost() == 0 {
                return None;
            }
            let told = if decision.is_allowed() {
                let near_limit = is_near(&decision, self.rules.near_limit_percent);
                (!refuses || decided.charged[number] > 0).then_some(Told::Passed { near_limit })
            } else if refuses && decided.decider == Some(number) {
                Some(Told::Refused(self.reason(number, &decision, decided)))
            } else if !refuses || self.mode(number) != Mode::Enforce {
                Some(Told::InShadow)
            } else {
                None
            };
            told.map(|told| (number, told))
        })
    }

    /// Why a descriptor is refused: of several limits, the first that has as much as is told.
    fn reason(&self, number: usize, decision: &Decision, decided: &Decided) -> DenyReason {
        let met = self.met[number].as_ref();
        if met.is_some_and(|met| met.blocked.is_some()) {
            return DenyReason::Blocked;
        }
        if decided.fallbacks[number] == Some(OnStoreFailure::Closed) {
            return DenyReason::Store;
        }
        reason_of(self.limit(number, decision).map(Limit::kind), decision)
    }

    /// The limit of a descriptor that a decision is of: of several, the first that has as much as is told.
    fn limit(&self, number: usize, decision: &Decision) -> Option<&Limit> {
        let limits = self.met[number].as_ref().map_or(&[][..], |met| met.limits);
        let mut all = limits.iter();
        let told = all.find(|limit| limit.kind().quota() == Some(decision.limit));
        told.or(limits.first())
    }

    /// Why a request was refused, and by which limit.
    #[cold]
    pub(super) fn why(&self, decided: &Decided) -> (Option<DenyReason>, Option<LimitKind>) {
        let decider = decided.decider;
        let Some((number, decision)) =
            decider.and_then(|number| Some((number, decided.each[number]?)))
        else {
            return (Some(DenyReason::Rate), None);
        };
        let reason = self.reason(number, &decision, decided);
        let limit = self.limit(number, &decision);
        let limit = limit.filter(|_| reason != DenyReason::Blocked);
        (Some(reason), limit.map(|limit| limit.kind().clone()))
    }

    fn mode(&self, number: usize) -> Mode {
        let own = self.found[number].leaf().map(Leaf::mode);
        self.rules.mode.max(own.unwrap_or_default())
    }

    /// Reports each descriptor that matches a limit; whether any does.
    fn tell(
        &self,
        observer: &dyn Observer,
        decided: &Decided,
        told: &[DescriptorStatus],
        took: Duration,
    ) -> bool {
        let rules = self.rules;
        let wants_all = observer.wants() == Wants::Everything;
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
            observer.decided(&Event {
                cause: limit.map_or(Cause::Asked, Cause::Descriptor),
                key: self.met[number].as_ref().map(|met| met.key),
                reason: is_refused.then(|| self.reason(number, &decision, decided)),
                mode,
                enforced_percent: percent_of(mode),
                decision,
                fallback: decided.fallbacks[number],
                near_limit: is_near(&decision, rules.near_limit_percent),
                took,
            });
        }
        is_any
    }

    /// The event of a request that no limit is for.
    fn no_match(&self, took: Duration) -> Event<'static> {
        let mode = self.rules.mode;
        Event {
            cause: Cause::Nothing,
            key: None,
            reason: None,
            mode,
            enforced_percent: percent_of(mode),
            decision: Decision::UNLIMITED,
            fallback: None,
            near_limit: false,
            took,
        }
    }
}
