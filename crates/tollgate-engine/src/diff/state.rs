//! Predicts which counters a new policy keeps, by the same rules as a reload.

use std::collections::{HashMap, HashSet};
use std::hash::Hash;

use serde::Serialize;

use super::{FieldChange, PartKind};
use crate::engine::counters::{Counters, Sharing};
use crate::engine::overload_control::gate_counter_name;
use crate::engine::rules::{TIERS, counter_of, counter_of_leaf, limit_kinds};
use crate::envoy::DescriptorIndex;
use crate::limits::LimitKind;
use crate::policy::{Counting, Mode, Policy};

/// What happens to the counters of a limit when a policy is replaced.
///
/// ```
/// use tollgate_engine::Policy;
/// use tollgate_engine::diff::{PolicyDiff, CounterState};
/// use tollgate_engine::document::Format;
///
/// let read = |rule: &str| Policy::from_text(&format!("limits: [{{name: a, {rule}}}]"), Format::Yaml);
/// let state = |old: &str, new: &str| {
///     let diff = PolicyDiff::new(&read(old)?.policy, &read(new)?.policy);
///     Ok::<_, tollgate_engine::LoadError>(diff.changes[0].state)
/// };
/// assert_eq!(state("rate: 5/s", "rate: 9/s")?, Some(CounterState::Kept));
/// assert_eq!(state("rate: 5/s", "rate: 5/s, algorithm: sliding-log")?, Some(CounterState::Anew));
/// # Ok::<(), tollgate_engine::LoadError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, derive_more::Display)]
#[serde(rename_all = "kebab-case")]
pub enum CounterState {
    /// The counters stay.
    #[display("keeps what its keys have spent")]
    Kept,
    /// Some of its limits keep their counters. New limits start from zero.
    #[display("keeps what its keys have spent, and limits that are new start anew")]
    PartlyKept,
    /// The counters start from zero.
    #[display("starts anew")]
    Anew,
    /// The key changed, so there are other counters, and they start from zero.
    #[display("counts by other keys, which start anew")]
    OtherKeys,
    /// The limit is removed. Its counters are kept until they no longer matter, in case the limit returns.
    #[display("limits nobody, and what its keys have spent counts if it returns")]
    Retired,
}

/// The counter states of each limit: in memory by number, and in a store by name.
#[derive(Debug, Default)]
struct StatesByPlace {
    in_memory: PartStates<u64>,
    in_store: PartStates<String>,
}

/// The counter states of each part of a policy, and of all parts.
#[derive(Debug, Default)]
struct PartStates<T> {
    by_part: HashMap<(PartKind, String), Vec<T>>,
    all: HashSet<T>,
}

impl<T: Clone + Eq + Hash> PartStates<T> {
    fn add(&mut self, placed: &PlacedLimits<'_>, states: Vec<T>) {
        self.all.extend(states.iter().cloned());
        let own = self.by_part.entry((placed.kind, placed.name.to_owned()));
        own.or_default().extend(states);
    }

    /// What happens to the counters of a part when this policy replaces `old`.
    fn state_after_change(&self, old: &Self, part: &(PartKind, String)) -> Option<CounterState> {
        let own = |kept: &'_ Self| kept.by_part.get(part).cloned().unwrap_or_default();
        let (had, has) = (own(old), own(self));
        let kept = has.iter().filter(|state| old.all.contains(*state)).count();
        match (had.len(), has.len()) {
            (0, 0) => None,
            // Other limits still use these counters.
            (_, 0) if had.iter().all(|state| self.all.contains(state)) => Some(CounterState::Kept),
            (_, 0) => Some(CounterState::Retired),
            (_, all) if kept == all => Some(CounterState::Kept),
            _ if kept > 0 => Some(CounterState::PartlyKept),
            _ => Some(CounterState::Anew),
        }
    }
}

/// The counter states of two policies, of which the second replaces the first.
#[derive(Debug)]
pub(super) struct StateChanges {
    old: StatesByPlace,
    new: StatesByPlace,
    modes: [Mode; 2],
}

impl StateChanges {
    pub(super) fn between(old: &Policy, new: &Policy) -> Self {
        let mut first = Counters::continue_from(None);
        let held = StatesByPlace::of(old, &mut first);
        // The new policy's counters continue from the old ones, so equal numbers mean the same counter.
        let mut second = Counters::continue_from(Some(&first));
        Self {
            new: StatesByPlace::of(new, &mut second),
            old: held,
            modes: [old.mode, new.mode],
        }
    }

    /// What happens to the counters of a part, in memory and in a store.
    pub(super) fn of(
        &self,
        kind: PartKind,
        name: &str,
        fields: &[FieldChange],
    ) -> (Option<CounterState>, Option<CounterState>) {
        if kind == PartKind::Policy {
            let state = match self.modes {
                [Mode::Off, Mode::Off] => None,
                [Mode::Off, _] => Some(CounterState::Anew),
                // A store keeps the counters until they expire.
                [_, Mode::Off] => Some(CounterState::Retired),
                _ => None,
            };
            return (state, state);
        }
        let key = (kind, name.to_owned());
        let is_by_others = fields
            .iter()
            .any(|field| matches!(field.name, "key" | "share_threshold"));
        let (old, new) = (&self.old, &self.new);
        let here = new.in_memory.state_after_change(&old.in_memory, &key);
        let there = new.in_store.state_after_change(&old.in_store, &key);
        let with_keys = |state: Option<CounterState>| match state {
            Some(CounterState::Kept | CounterState::PartlyKept) if is_by_others => {
                Some(CounterState::OtherKeys)
            }
            state => state,
        };
        (with_keys(here), with_keys(there))
    }
}

/// Limits that count together, and how they are counted.
struct PlacedLimits<'a> {
    kind: PartKind,
    name: &'a str,
    counter: &'a str,
    sharing: Sharing,
    kinds: &'a [LimitKind],
    counting: Counting,
    slot: Option<&'a str>,
}

impl StatesByPlace {
    fn of(policy: &Policy, counters: &mut Counters) -> Self {
        let mut held = Self::default();
        if policy.mode != Mode::Off {
            for rule in policy.rules.iter().filter(|rule| rule.mode != Mode::Off) {
                let (counter, sharing) = counter_of(rule);
                let first = rule.key.first().map(|part| part.fact());
                let rates = PlacedLimits {
                    kind: PartKind::Rule,
                    name: &rule.name,
                    counter: &counter,
                    sharing,
                    kinds: &limit_kinds(&rule.limits, rule.algorithm),
                    counting: rule.counting,
                    slot: rule.hash_tag.as_deref().or(first),
                };
                held.place_limits(counters, &rates);
                if let Some(adaptive) = rule.adaptive {
                    // An adaptive limit is counted in each process, with or without a store.
                    let gate = PlacedLimits {
                        counter: &gate_counter_name(rule),
                        sharing: Sharing::Alone,
                        kinds: &[LimitKind::Adaptive(adaptive)],
                        counting: Counting::Local,
                        slot: None,
                        ..rates
                    };
                    held.place_limits(counters, &gate);
                }
            }
            for (name, tier) in &policy.tiers {
                let placed = PlacedLimits {
                    kind: PartKind::Tier,
                    name,
                    counter: TIERS,
                    sharing: Sharing::Shared,
                    kinds: &limit_kinds(&tier.limits, tier.algorithm),
                    counting: tier.counting,
                    slot: None,
                };
                held.place_limits(counters, &placed);
            }
        }
        for leaf in DescriptorIndex::new(&policy.domains).leaves() {
            let placed = PlacedLimits {
                kind: PartKind::Descriptor,
                name: &leaf.counter_name(),
                counter: &counter_of_leaf(leaf),
                sharing: Sharing::Alone,
                kinds: &limit_kinds(&leaf.limit.limits, leaf.limit.algorithm),
                counting: leaf.limit.counting,
                slot: None,
            };
            held.place_limits(counters, &placed);
        }
        counters.retire_unused();
        held
    }

    /// Records the counter states of some limits, in memory and in a store.
    fn place_limits(&mut self, counters: &mut Counters, placed: &PlacedLimits<'_>) {
        // A policy with a limit that can't be counted is rejected on load.
        let Ok(limits) = counters.assign_counters(placed.counter, placed.sharing, placed.kinds)
        else {
            return;
        };
        self.in_memory
            .add(placed, limits.iter().map(|limit| limit.id).collect());
        let there = limits.iter().map(|limit| {
            let what = match limit.kind() {
                LimitKind::Rate { rate, algorithm } => {
                    format!("{algorithm:?} {:?} {:?}", rate.period(), placed.counting)
                }
                LimitKind::Quota(quota) => format!("quota {}", quota.with_count(0)),
                LimitKind::Concurrency(_) | LimitKind::Adaptive(_) => "slots".to_owned(),
            };
            let (counter, slot) = (placed.counter, placed.slot);
            format!("{counter} {} {slot:?} {what}", limit.counter().ordinal)
        });
        self.in_store.add(placed, there.collect());
    }
}
