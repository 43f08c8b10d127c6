//! What becomes of all that was counted when another policy follows, by the same rules as when it is put in force.

use std::collections::{HashMap, HashSet};
use std::fmt;

use serde::Serialize;

use super::{Field, Kind};
use crate::engine::counters::{Counters, Sharing};
use crate::engine::overload::gate_of;
use crate::engine::rules::{TIERS, counter_of, counter_of_leaf, kinds};
use crate::envoy::Compiled;
use crate::limits::LimitKind;
use crate::policy::{Counting, Limits, Mode, Policy};

/// What becomes of what the keys of a limit have spent.
///
/// ```
/// use tollgate_engine::Policy;
/// use tollgate_engine::diff::{Diff, State};
/// use tollgate_engine::document::Format;
///
/// let read = |rule: &str| Policy::from_text(&format!("limits: [{{name: a, {rule}}}]"), Format::Yaml);
/// let state = |old: &str, new: &str| {
///     let diff = Diff::between(&read(old)?.policy, &read(new)?.policy);
///     Ok::<_, tollgate_engine::Rejected>(diff.changes[0].state)
/// };
/// assert_eq!(state("rate: 5/s", "rate: 9/s")?, Some(State::Kept));
/// assert_eq!(state("rate: 5/s", "rate: 5/s, algorithm: sliding-log")?, Some(State::Anew));
/// # Ok::<(), tollgate_engine::Rejected>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// It counts on.
    Kept,
    /// Some of its limits count on, and those that are new begin with nothing.
    PartlyKept,
    /// Nothing counts that was spent before.
    Anew,
    /// Other facts tell one counter from another, and each begins with nothing.
    OtherKeys,
    /// It limits nobody. What its keys have spent is kept until it no longer matters, so that it counts if the limit returns.
    Retired,
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Kept => "keeps what its keys have spent",
            Self::PartlyKept => {
                "keeps what its keys have spent, and limits that are new start anew"
            }
            Self::Anew => "starts anew",
            Self::OtherKeys => "counts by other keys, which start anew",
            Self::Retired => "limits nobody, and what its keys have spent counts if it returns",
        })
    }
}

/// The states of each limit: in memory by number, and in a store by name.
#[derive(Debug, Default)]
struct Held {
    here: HashMap<(Kind, String), Vec<u64>>,
    there: HashMap<(Kind, String), Vec<String>>,
    all_here: HashSet<u64>,
    all_there: HashSet<String>,
}

/// The states of two policies, of which one follows the other.
#[derive(Debug)]
pub(super) struct States {
    old: Held,
    new: Held,
    modes: [Mode; 2],
}

impl States {
    pub(super) fn between(old: &Policy, new: &Policy) -> Self {
        let mut first = Counters::following(None);
        let held = Held::of(old, &mut first);
        let mut second = Counters::following(Some(&first));
        Self {
            new: Held::of(new, &mut second),
            old: held,
            modes: [old.mode, new.mode],
        }
    }

    /// What becomes of what something has counted, in memory and in a store.
    pub(super) fn of(
        &self,
        kind: Kind,
        name: &str,
        fields: &[Field],
    ) -> (Option<State>, Option<State>) {
        if kind == Kind::Policy {
            let state = match self.modes {
                [Mode::Off, Mode::Off] => None,
                [Mode::Off, _] => Some(State::Anew),
                // A store keeps it for a while.
                [_, Mode::Off] => Some(State::Retired),
                _ => None,
            };
            return (state, state);
        }
        let key = (kind, name.to_owned());
        let is_by_others = fields
            .iter()
            .any(|field| matches!(field.name, "key" | "share_threshold"));
        let here = became(
            (self.old.here.get(&key), &self.old.all_here),
            (self.new.here.get(&key), &self.new.all_here),
        );
        let there = became(
            (self.old.there.get(&key), &self.old.all_there),
            (self.new.there.get(&key), &self.new.all_there),
        );
        let with_keys = |state: Option<State>| match state {
            Some(State::Kept | State::PartlyKept) if is_by_others => Some(State::OtherKeys),
            state => state,
        };
        (with_keys(here), with_keys(there))
    }
}

type Own<'a, T> = (Option<&'a Vec<T>>, &'a HashSet<T>);

/// What becomes of the states of a limit: those that it had, and those that it has.
fn became<T: Eq + std::hash::Hash>(
    (had, before): Own<'_, T>,
    (has, after): Own<'_, T>,
) -> Option<State> {
    let (had, has) = (
        had.map_or(&[][..], Vec::as_slice),
        has.map_or(&[][..], Vec::as_slice),
    );
    let kept = has.iter().filter(|state| before.contains(*state)).count();
    match (had.len(), has.len()) {
        (0, 0) => None,
        // What others go on with isn't forgotten.
        (_, 0) if had.iter().all(|state| after.contains(state)) => Some(State::Kept),
        (_, 0) => Some(State::Retired),
        (_, all) if kept == all => Some(State::Kept),
        _ if kept > 0 => Some(State::PartlyKept),
        _ => Some(State::Anew),
    }
}

impl Held {
    fn of(policy: &Policy, counters: &mut Counters) -> Self {
        let mut held = Self::default();
        if policy.mode != Mode::Off {
            for rule in policy.rules.iter().filter(|rule| rule.mode != Mode::Off) {
                let kinds = kinds(&rule.limits, rule.algorithm);
                let (counter, sharing) = counter_of(rule);
                let slot = rule
                    .slot
                    .as_deref()
                    .or(rule.key.first().map(|part| part.fact()));
                let kept = (rule.counting, slot);
                held.place(
                    counters,
                    (Kind::Rule, &rule.name),
                    (&counter, sharing),
                    &kinds,
                    kept,
                );
                if let Some(adaptive) = rule.adaptive {
                    // In each process, whether there is a store or not.
                    held.place(
                        counters,
                        (Kind::Rule, &rule.name),
                        (&gate_of(rule), Sharing::Alone),
                        &[LimitKind::Adaptive(adaptive)],
                        (Counting::Local, None),
                    );
                }
            }
            for (name, tier) in &policy.tiers {
                let kinds = kinds(&tier.limits, tier.algorithm);
                let kept = (tier.counting, None);
                held.place(
                    counters,
                    (Kind::Tier, name),
                    (TIERS, Sharing::Shared),
                    &kinds,
                    kept,
                );
            }
        }
        for leaf in Compiled::new(&policy.domains).leaves() {
            let limit = &leaf.limit;
            let own: &Limits = &limit.limits;
            let kinds = kinds(own, limit.algorithm);
            let (name, counter) = (leaf.counter_name(), counter_of_leaf(leaf));
            let kept = (limit.counting, None);
            held.place(
                counters,
                (Kind::Descriptor, &name),
                (&counter, Sharing::Alone),
                &kinds,
                kept,
            );
        }
        counters.settle();
        held
    }

    fn place(
        &mut self,
        counters: &mut Counters,
        (kind, name): (Kind, &str),
        (counter, sharing): (&str, Sharing),
        kinds: &[LimitKind],
        (counting, slot): (Counting, Option<&str>),
    ) {
        // A limit that can't be counted is in no policy that is in force.
        let Ok(limits) = counters.place(counter, sharing, kinds) else {
            return;
        };
        let here: Vec<_> = limits.iter().map(|limit| limit.id).collect();
        let there: Vec<_> = limits
            .iter()
            .map(|limit| {
                let what = match limit.kind() {
                    LimitKind::Rate { rate, algorithm } => {
                        format!("{algorithm:?} {:?} {counting:?}", rate.period())
                    }
                    LimitKind::Quota(quota) => format!("quota {}", quota.with_count(0)),
                    LimitKind::Concurrency(_) | LimitKind::Adaptive(_) => "slots".to_owned(),
                };
                format!("{counter} {} {slot:?} {what}", limit.counter().ordinal)
            })
            .collect();
        self.all_here.extend(&here);
        self.all_there.extend(there.iter().cloned());
        let own = || (kind, name.to_owned());
        self.here.entry(own()).or_default().extend(here);
        self.there.entry(own()).or_default().extend(there);
    }
}
