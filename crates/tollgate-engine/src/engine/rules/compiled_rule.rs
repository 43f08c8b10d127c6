//! A rule or a tier, compiled: all that a decision reads of it.

use std::slice;
use std::sync::Arc;
use std::time::Duration;

use tollgate::{OnMissingKey, Timestamp};
use tollgate_adaptive::shed::Criticality;

use super::{CompiledPolicy, PolicyCompiler, PolicyError, rate_error};
use crate::backend::Clocks;
use crate::engine::overload_control::{
    self, AdaptiveLimiter, OverloadControl, PreviousGates, RetiredGates,
};
use crate::engine::presence::FactPresence;
use crate::engine::rollout::Rollout;
use crate::engine::wait_queue::QueueDemand;
use crate::engine::warm_up::{WarmUp, is_gate};
use crate::limits::{Check, KeyPlan, Limit, RequestKey};
use crate::policy::{Mode, Rule};
use crate::verdict::percent_of;

/// A rule or a tier, ready to be applied to a request.
// All that a decision reads lies in here, so that one wait for memory is enough for a rule.
#[derive(Debug)]
pub(crate) struct CompiledRule {
    pub(crate) name: Box<str>,
    pub(crate) key: KeyPlan,
    /// What happens to requests without the key.
    pub(crate) on_missing_key: OnMissingKey,
    /// Whether that was chosen, so that nobody has to be told that the key is never there.
    pub(crate) is_missing_expected: bool,
    /// Whether any request had the key.
    pub(crate) key_presence: FactPresence,
    pub(crate) limits: RuleLimits,
    pub(crate) cost_fact: Option<u32>,
    pub(crate) default_cost: u64,
    /// Whether any request said its cost, if a fact should.
    pub(crate) cost_presence: FactPresence,
    pub(crate) mode: Mode,
    /// For how long a request that is over it may wait.
    pub(crate) max_wait: Option<Duration>,
    /// Numbers of the rules that it takes the place of.
    pub(crate) replaces: Box<[u32]>,
    /// Whether it has slots or an estimate to hold while the request runs.
    pub(crate) holds_permits: bool,
    /// Whether its cost is an estimate: at least one, or there would be nothing to settle.
    pub(crate) is_estimated: bool,
    pub(crate) is_tier: bool,
    /// Whether other rules may count in the same state.
    pub(crate) is_shared: bool,
    /// For which keys it is enforced, if for a part of them.
    pub(crate) rollout: Option<Rollout>,
    /// Whether more than its limits is to be looked at: one of the next two is there.
    pub(crate) has_gates: bool,
    /// What stands beside its rates until it is warm.
    pub(crate) warm_up: Option<Box<WarmUp>>,
    /// What it does about overload.
    pub(crate) overload: Option<Box<OverloadControl>>,
    /// Where it is counted.
    pub(crate) tally_row: u32,
}

impl CompiledRule {
    /// Whether it is enforced for one key, or only counts.
    #[inline]
    pub(crate) fn mode_for(&self, key: &RequestKey<'_>) -> Mode {
        match self.rollout {
            None => self.mode,
            Some(rollout) => rollout.mode_for_key(key),
        }
    }

    /// For how many keys in a hundred it is enforced.
    pub(crate) fn enforced_percent(&self) -> u8 {
        let part = self.rollout.map(|rollout| rollout.percent);
        part.unwrap_or(percent_of(self.mode))
    }

    /// What stands beside its rates now.
    #[inline]
    pub(crate) fn warm_up_limits(&self, now: Option<Timestamp>) -> &[Limit] {
        let warm = self.warm_up.as_ref().zip(now);
        warm.map_or(&[], |(warm, now)| warm.gates(now))
    }

    /// What a request that one of its checks refused asks for in line.
    pub(crate) fn queue_demand(&self, check: &Check<'_>, now: Option<Timestamp>) -> QueueDemand {
        let demand = QueueDemand::of(check).of_class(self.class_of(check.limit));
        let own = self.limits.as_slice().first();
        match (own, self.warm_up.as_ref().zip(now)) {
            (Some(own), Some((warm, now))) if is_gate(check.limit) => {
                demand.in_queue_of(own.id, warm.changes_at(now))
            }
            _ => demand,
        }
    }

    /// What stood beside them at a time.
    pub(crate) fn warm_up_limits_at(&self, at: Option<Timestamp>) -> &[Limit] {
        let warm = self.warm_up.as_ref().zip(at);
        warm.map_or(&[], |(warm, at)| warm.gates_at(at))
    }
}

/// The limits of a rule: the only one, as most have, in place.
#[derive(Debug)]
pub(crate) enum RuleLimits {
    One(Limit),
    Others(Box<[Limit]>),
}

impl RuleLimits {
    pub(super) fn new(mut limits: Vec<Limit>) -> Self {
        match (limits.pop(), limits.is_empty()) {
            (Some(only), true) => Self::One(only),
            (last, _) => {
                limits.extend(last);
                Self::Others(limits.into())
            }
        }
    }

    #[inline]
    pub(crate) fn as_slice(&self) -> &[Limit] {
        match self {
            Self::One(limit) => slice::from_ref(limit),
            Self::Others(limits) => limits,
        }
    }
}

impl CompiledRule {
    /// All limits of the policy, the one that adapts last.
    pub(crate) fn all_limits(&self) -> impl Iterator<Item = &Limit> {
        let adapting = self.adaptive_limiter().map(|own| &own.limit);
        self.limits.as_slice().iter().chain(adapting)
    }

    /// The slots that a law finds, if it has such.
    pub(crate) fn adaptive_limiter(&self) -> Option<&AdaptiveLimiter> {
        self.overload.as_ref()?.adaptive.as_ref()
    }

    /// Whether a refusal by this limit is for want of capacity.
    pub(crate) fn sheds(&self, limit: u64) -> bool {
        let overload = self.overload.as_ref();
        overload.is_some_and(|overload| overload.sheds(limit))
    }

    /// How critical a request is that asks for this limit, by the part of the slots that it may use.
    pub(super) fn class_of(&self, limit: &Limit) -> Criticality {
        let overload = self.overload.as_ref();
        overload.map_or(Criticality::Critical, |overload| overload.class_of(limit))
    }

    /// Whether a backend's answer isn't all there is to it.
    pub(super) fn needs_engine_checks(&self) -> bool {
        self.max_wait.is_some() || self.adaptive_limiter().is_some()
    }
}

impl CompiledPolicy {
    /// Opens the gates of rules whose limit adapts: those that they had before, with all who are inside. It is to come into
    /// force then, as they go by it from now on.
    pub(crate) fn open_gates(&mut self, before: Option<&Self>, clocks: &Clocks) {
        let none = RetiredGates::default();
        let retired = before.map_or(&none, |before| &before.retired_gates);
        let open = before.into_iter().flat_map(|before| before.rules.iter());
        let open = open
            .filter_map(|rule| Some((rule.name.clone(), rule.adaptive_limiter()?.gate_state()?)));
        let mut gates = PreviousGates::new(retired, open);
        for rule in &mut self.rules {
            if let Some(overload) = &mut rule.overload
                && overload.adaptive.is_some()
            {
                overload.open_gate(gates.take(&rule.name), || Arc::clone(&clocks.clock));
            }
        }
        self.retired_gates = gates.retire();
    }
}

impl PolicyCompiler<'_> {
    /// What a rule does about overload, if that makes sense.
    pub(super) fn compile_overload(
        &mut self,
        rule: &Rule,
        limits: &[Limit],
    ) -> Result<Option<Box<OverloadControl>>, PolicyError> {
        let wrong = |why: &str| PolicyError::Overload {
            rule: rule.name.clone(),
            why: why.to_owned(),
        };
        if let Some(own) = rule.adaptive {
            if rule.limits.concurrency.is_some() || rule.limits.unlimited {
                return Err(wrong(
                    "it has a limit that adapts and another of how many at once",
                ));
            }
            overload_control::make_law(own, 0).map_err(|error| wrong(&error.to_string()))?;
        } else if rule.shed.is_some() && rule.limits.concurrency.is_none() {
            return Err(wrong("there is nothing to shed by: give it a concurrency"));
        }
        if rule.shared.is_some() && (rule.adaptive.is_some() || rule.shed.is_some()) {
            return Err(wrong("a rule that adapts or sheds can't share its counter"));
        }
        let by = rule.shed.as_ref();
        let by = by.map(|shed| self.slots.number(&shed.by));
        let overload = OverloadControl::from_rule(rule, by, limits, &mut self.counters);
        overload.map_err(rate_error(&rule.name))
    }
}
