//! The orders over one policy, as decisions read them.
//!
//! A decision reads one flag that lies with the policy. It is written after the table, and read without any order to that
//! (relaxed): a decision that reads it late is one that came before the order, and one that reads it early finds the table
//! empty. The table itself is swapped whole.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use arc_swap::ArcSwapOption;
use foldhash::fast::RandomState;
use tollgate::Timestamp;

use super::override_table::{Limiter, Override, OverrideRef, Table, TargetOverrides, later};
use crate::engine::rules::Rules;
use crate::facts::Facts;

/// The orders over one policy, which may change while that is in force.
#[derive(Debug, Default)]
pub(crate) struct PolicyOverrides {
    is_any: AtomicBool,
    table: ArcSwapOption<Table>,
    /// All that orders may be for, by name: found when the first is made.
    names: OnceLock<HashMap<Box<str>, Limiter, RandomState>>,
}

impl PolicyOverrides {
    /// Whether there may be any.
    #[inline(always)]
    pub(crate) fn is_any(&self) -> bool {
        self.is_any.load(Ordering::Relaxed)
    }

    /// What has this name in a policy: a rule before a tier, and that before a limit of a tree.
    pub(super) fn limiter(&self, rules: &Rules, name: &str) -> Option<Limiter> {
        let names = self.names.get_or_init(|| {
            let applied = (0..).zip(rules.applied.iter());
            let applied =
                applied.map(|(number, rule)| (rule.name.clone(), Limiter::Applied(number)));
            let leaves = rules.trees.named();
            let leaves = leaves.map(|(leaf, _)| (leaf.to_string().into(), Limiter::Leaf(leaf.id)));
            let mut names = HashMap::default();
            for (name, limiter) in applied.chain(leaves) {
                names.entry(name).or_insert(limiter);
            }
            names
        });
        names.get(name).copied()
    }

    pub(super) fn set(&self, table: Option<Table>) {
        let is_any = table.is_some();
        self.table.store(table.map(Arc::new));
        self.is_any.store(is_any, Ordering::Relaxed);
    }

    /// The overrides, if there are any, at this time of day.
    pub(in crate::engine) fn held(&self, now: Timestamp) -> Option<Held> {
        let table = self.table.load_full()?;
        Some(Held {
            table,
            now,
            is_counted: true,
        })
    }
}

/// The orders over a policy at one time, for as long as a decision takes.
pub(crate) struct Held {
    table: Arc<Table>,
    pub(crate) now: Timestamp,
    /// Whether requests that they decide are counted.
    is_counted: bool,
}

/// What is ordered of a key of one rule.
#[derive(Clone, Copy, Default)]
pub(crate) struct OverrideMatch<'a> {
    pub(crate) block: Option<OverrideRef>,
    pub(crate) bypass: Option<OverrideRef>,
    pub(crate) changed: Option<&'a Arc<Override>>,
}

impl OverrideMatch<'_> {
    /// The numbers of the overrides.
    pub(crate) fn ids(&self) -> impl Iterator<Item = u64> + use<> {
        let changed = self.changed.map(|changed| changed.order);
        let all = [self.block, self.bypass, changed];
        all.into_iter().flatten().map(|timed| timed.id)
    }
}

impl Held {
    /// Whether they are to be put over the policy again, as some have ended.
    pub(in crate::engine) fn is_old(&self) -> bool {
        self.table.is_old(self.now)
    }

    /// How many orders are for a rule, or a key of it.
    pub(crate) fn count(&self, limiter: Limiter) -> usize {
        self.table.count(limiter)
    }

    /// The same for a request that isn't decided, or that was counted before.
    pub(crate) fn uncounted(self) -> Self {
        Self {
            is_counted: false,
            ..self
        }
    }

    /// Counts that an order has decided a request.
    pub(crate) fn note(&self, timed: OverrideRef) {
        if self.is_counted {
            self.table.note(timed, self.now);
        }
    }

    /// Of one key of a rule, which a request with these facts has.
    pub(crate) fn of(
        &self,
        limiter: Limiter,
        fingerprint: [u64; 2],
        facts: &Facts<'_>,
    ) -> OverrideMatch<'_> {
        if self.table.count(limiter) == 0 {
            return OverrideMatch::default();
        }
        let own = self.table.at(limiter, Some(fingerprint)).into_iter();
        let matching = self.table.matching_patterns(Some(limiter), facts);
        let all = self.table.at(limiter, None);
        // What is for one key goes before what is for several, and that before what is for all.
        let found: Vec<_> = own.chain(matching).chain(all).collect();
        let timed = |timed: Option<OverrideRef>| timed.filter(|timed| timed.until > self.now);
        let last = |of: fn(&TargetOverrides) -> Option<OverrideRef>| {
            let found = found.iter().filter_map(|acts| timed(of(acts)));
            found.max_by_key(|timed| timed.until)
        };
        OverrideMatch {
            block: last(|acts| acts.block),
            bypass: last(|acts| acts.bypass),
            changed: found.iter().find_map(|acts| {
                let mut latest = acts.changed.iter().rev();
                latest.find(|changed| changed.order.until > self.now)
            }),
        }
    }

    /// Of a request, whatever rules are for it.
    pub(crate) fn for_request(&self, facts: &Facts<'_>) -> OverrideMatch<'_> {
        let (mut block, mut bypass) = (None, self.table.everything);
        for acts in self.table.matching_facts(facts) {
            block = later(block, acts.block);
            bypass = later(bypass, acts.bypass);
        }
        let timed = |timed: &OverrideRef| timed.until > self.now;
        OverrideMatch {
            block: block.filter(timed),
            bypass: bypass.filter(timed),
            changed: None,
        }
    }

    /// Of all requests.
    pub(crate) fn global_bypass(&self) -> Option<OverrideRef> {
        let everything = self.table.everything;
        everything.filter(|timed| timed.until > self.now)
    }
}
