//! The overrides of one policy, in the form that decisions read.
//!
//! A decision first reads one flag that is stored with the policy. The flag is written after the table, and both
//! orders are relaxed. That is safe: a decision that reads the flag late counts as one from before the override, and
//! one that reads it early finds the table empty. The table itself is swapped as a whole.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use arc_swap::ArcSwapOption;
use foldhash::fast::RandomState;
use tollgate::Timestamp;

use super::override_table::{
    LimitOverride, Limiter, OverrideRef, OverrideTable, TargetOverrides, latest_expiry,
};
use crate::engine::rules::CompiledPolicy;
use crate::facts::Facts;

/// The overrides of one policy, which may change while it is in force.
#[derive(Debug, Default)]
pub(crate) struct PolicyOverrides {
    is_any: AtomicBool,
    table: ArcSwapOption<OverrideTable>,
    /// The limiters that overrides may name. Filled when the first override is added.
    names: OnceLock<HashMap<Box<str>, Limiter, RandomState>>,
}

impl PolicyOverrides {
    /// Whether there may be any override.
    #[inline(always)]
    pub(crate) fn is_any(&self) -> bool {
        self.is_any.load(Ordering::Relaxed)
    }

    /// The limiter with this name: a rule before a tier, and a tier before a limit of a tree.
    pub(super) fn limiter(&self, rules: &CompiledPolicy, name: &str) -> Option<Limiter> {
        let names = self.names.get_or_init(|| {
            let applied = (0..).zip(rules.rules.iter());
            let applied =
                applied.map(|(number, rule)| (rule.name.clone(), Limiter::Applied(number)));
            let leaves = rules.trees.leaves();
            let leaves = leaves.map(|(leaf, _)| (leaf.to_string().into(), Limiter::Leaf(leaf.id)));
            let mut names = HashMap::default();
            for (name, limiter) in applied.chain(leaves) {
                names.entry(name).or_insert(limiter);
            }
            names
        });
        names.get(name).copied()
    }

    pub(super) fn set(&self, table: Option<OverrideTable>) {
        let is_any = table.is_some();
        self.table.store(table.map(Arc::new));
        self.is_any.store(is_any, Ordering::Relaxed);
    }

    /// The overrides, if there are any, at this time of day.
    pub(in crate::engine) fn active_at(&self, now: Timestamp) -> Option<ActiveOverrides> {
        let table = self.table.load_full()?;
        Some(ActiveOverrides {
            table,
            now,
            is_counted: true,
        })
    }
}

/// The overrides of a policy at one time, for the length of a decision.
pub(crate) struct ActiveOverrides {
    table: Arc<OverrideTable>,
    pub(crate) now: Timestamp,
    /// Whether their use is counted.
    is_counted: bool,
}

/// The overrides of one key of a rule.
#[derive(Clone, Copy, Default)]
pub(crate) struct OverrideMatch<'a> {
    pub(crate) block: Option<OverrideRef>,
    pub(crate) bypass: Option<OverrideRef>,
    pub(crate) limits: Option<&'a Arc<LimitOverride>>,
}

impl OverrideMatch<'_> {
    /// The numbers of the overrides.
    pub(crate) fn ids(&self) -> impl Iterator<Item = u64> + use<> {
        let changed = self.limits.map(|changed| changed.order);
        let all = [self.block, self.bypass, changed];
        all.into_iter().flatten().map(|timed| timed.id)
    }
}

impl ActiveOverrides {
    /// Whether some have expired, so that they should be applied to the policy again.
    pub(in crate::engine) fn is_outdated(&self) -> bool {
        self.table.is_old(self.now)
    }

    /// How many overrides a rule and its keys have.
    pub(crate) fn count(&self, limiter: Limiter) -> usize {
        self.table.count(limiter)
    }

    /// The same without counting, for a request that isn't decided, or was counted before.
    pub(crate) fn without_counting(self) -> Self {
        Self {
            is_counted: false,
            ..self
        }
    }

    /// Counts a request that an override decided.
    pub(crate) fn record_use(&self, timed: OverrideRef) {
        if self.is_counted {
            self.table.record_use(timed, self.now);
        }
    }

    /// The overrides of one key of a rule, for a request with these facts.
    pub(crate) fn for_key(
        &self,
        limiter: Limiter,
        fingerprint: [u64; 2],
        facts: &Facts<'_>,
    ) -> OverrideMatch<'_> {
        if self.table.count(limiter) == 0 {
            return OverrideMatch::default();
        }
        let own = self.table.at_key(limiter, Some(fingerprint)).into_iter();
        let matching = self.table.matching_patterns(Some(limiter), facts);
        let all = self.table.at_key(limiter, None);
        // An override for one key precedes one for several, and that precedes one for the whole rule.
        let found: Vec<_> = own.chain(matching).chain(all).collect();
        let timed = |timed: Option<OverrideRef>| timed.filter(|timed| timed.until > self.now);
        let last = |of: fn(&TargetOverrides) -> Option<OverrideRef>| {
            let found = found.iter().filter_map(|acts| timed(of(acts)));
            found.max_by_key(|timed| timed.until)
        };
        OverrideMatch {
            block: last(|acts| acts.block),
            bypass: last(|acts| acts.bypass),
            limits: found.iter().find_map(|acts| {
                let mut latest = acts.limit_overrides.iter().rev();
                latest.find(|changed| changed.order.until > self.now)
            }),
        }
    }

    /// The overrides of a request, whichever rules match it.
    pub(crate) fn for_request(&self, facts: &Facts<'_>) -> OverrideMatch<'_> {
        let (mut block, mut bypass) = (None, self.table.global_bypass);
        for acts in self.table.matching_facts(facts) {
            block = latest_expiry(block, acts.block);
            bypass = latest_expiry(bypass, acts.bypass);
        }
        let timed = |timed: &OverrideRef| timed.until > self.now;
        OverrideMatch {
            block: block.filter(timed),
            bypass: bypass.filter(timed),
            limits: None,
        }
    }

    /// The bypass of all requests.
    pub(crate) fn global_bypass(&self) -> Option<OverrideRef> {
        let everything = self.table.global_bypass;
        everything.filter(|timed| timed.until > self.now)
    }
}
