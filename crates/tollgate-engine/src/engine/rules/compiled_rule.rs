//! A compiled rule or tier: everything that a decision reads of it.

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
// Every field that a decision reads is inline, so that a rule costs one cache miss.
#[derive(Debug)]
pub(crate) struct CompiledRule {
    pub(crate) name: Box<str>,
    pub(crate) key: KeyPlan,
    /// What happens to requests without the key.
    pub(crate) on_missing_key: OnMissingKey,
    /// Whether the policy sets that to pass, so that nobody needs a warning if the key is never present.
    pub(crate) is_missing_expected: bool,
    /// Whether any request had the key.
    pub(crate) key_presence: FactPresence,
    pub(crate) limits: RuleLimits,
    pub(crate) cost_fact: Option<u32>,
    pub(crate) default_cost: u64,
    /// Whether any request stated its cost, if a fact should.
    pub(crate) cost_presence: FactPresence,
    pub(crate) mode: Mode,
    /// How long a request over the limit may wait.
    pub(crate) max_wait: Option<Duration>,
    /// Numbers of the rules that it replaces.
    pub(crate) replaces: Box<[u32]>,
    /// Whether its requests hold permits or an estimate while they run.
    pub(crate) holds_permits: bool,
    /// Whether its cost is an estimate. An estimate is at least one, or there would be nothing to settle.
    pub(crate) is_estimated: bool,
    pub(crate) is_tier: bool,
    /// Whether other rules may use the same counter.
    pub(crate) is_shared: bool,
    /// The keys for which it is enforced, if it is being rolled out.
    pub(crate) rollout: Option<Rollout>,
    /// Whether `warm_up` or `overload` is set, so that its limits aren't everything to check.
    pub(crate) has_gates: bool,
    /// The temporary limits beside its rates, until it is warm.
    pub(crate) warm_up: Option<Box<WarmUp>>,
    /// Its overload control.
    pub(crate) overload: Option<Box<OverloadControl>>,
    /// The row that counts its decisions.
    pub(crate) tally_row: u32,
}

impl CompiledRule {
    /// Whether the rule is enforced for one key, or only counts.
    #[inline]
    pub(crate) fn mode_for(&self, key: &RequestKey<'_>) -> Mode {
        match self.rollout {
            None => self.mode,
            Some(rollout) => rollout.mode_for_key(key),
        }
    }

    /// The percentage of keys for which it is enforced.
    pub(crate) fn enforced_percent(&self) -> u8 {
        let part = self.rollout.map(|rollout| rollout.percent);
        part.unwrap_or(percent_of(self.mode))
    }

    /// The temporary limits beside its rates at present.
    #[inline]
    pub(crate) fn warm_up_limits(&self, now: Option<Timestamp>) -> &[Limit] {
        let warm = self.warm_up.as_ref().zip(now);
        warm.map_or(&[], |(warm, now)| warm.gates(now))
    }

    /// The queue demand of a request that one of the rule's checks denied.
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

    /// The temporary limits beside its rates at a given time.
    pub(crate) fn warm_up_limits_at(&self, at: Option<Timestamp>) -> &[Limit] {
        let warm = self.warm_up.as_ref().zip(at);
        warm.map_or(&[], |(warm, at)| warm.gates_at(at))
    }
}

/// The limits of a rule. Most rules have one, which is stored inline.
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
    /// All limits of the policy, the adaptive one last.
    pub(crate) fn all_limits(&self) -> impl Iterator<Item = &Limit> {
        let adapting = self.adaptive_limiter().map(|own| &own.limit);
        self.limits.as_slice().iter().chain(adapting)
    }

    /// The adaptive concurrency limit, if it has one.
    pub(crate) fn adaptive_limiter(&self) -> Option<&AdaptiveLimiter> {
        self.overload.as_ref()?.adaptive.as_ref()
    }

    /// Whether a denial by this limit is load shedding.
    pub(crate) fn sheds(&self, limit: u64) -> bool {
        let overload = self.overload.as_ref();
        overload.is_some_and(|overload| overload.sheds(limit))
    }

    /// The criticality of a request under this limit, by the share of permits that it may use.
    pub(super) fn class_of(&self, limit: &Limit) -> Criticality {
        let overload = self.overload.as_ref();
        overload.map_or(Criticality::Critical, |overload| overload.class_of(limit))
    }

    /// Whether the backend's answer isn't the whole decision.
    pub(super) fn needs_engine_checks(&self) -> bool {
        self.max_wait.is_some() || self.adaptive_limiter().is_some()
    }
}

impl CompiledPolicy {
    /// Opens the gates of rules with an adaptive limit. A gate from the previous policy is reused, with the permits
    /// in flight. The new policy has to come into force after this, because the gates follow it from now on.
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
    /// Compiles the overload control of a rule, and rejects contradictions.
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
                    "it has a limit that adapts and another of how many concurrent requests",
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
