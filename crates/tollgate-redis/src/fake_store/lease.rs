//! The leases of a node without a store.
//!
//! Leased tokens are still in the bucket, and charged when they are spent: the fake store is in this process,
//! and no other node could take them. So the limit itself decides what passes.

use std::collections::HashMap;
use std::time::Duration;

use tollgate::{Clock, Decision, Timestamp};
use tollgate_engine::backend::{Answer, Check, LimitKind};

use super::{FakeState, FakeStore, is_leased, peek_check};

/// A counter and the fingerprint of a key.
type CounterAndKey = (u64, [u64; 2]);

fn counter_and_key(check: &Check<'_>) -> CounterAndKey {
    (check.limit.counter().id, check.key.fingerprint())
}

/// The leases of all keys.
#[derive(Debug, Default)]
pub(super) struct FakeLeases(HashMap<CounterAndKey, FakeLease>);

/// The lease of one key.
#[derive(Debug)]
struct FakeLease {
    /// The limit that it was taken of. Another limit takes a new lease.
    kind: LimitKind,
    tokens: u64,
    until: Timestamp,
}

impl FakeLeases {
    pub(super) fn held(&self, now: Timestamp) -> u64 {
        let live = self.0.values().filter(|lease| now < lease.until);
        live.map(|lease| lease.tokens).sum()
    }

    /// Spends a check's cost, as far as tokens are held. Returns whether to take more: a quarter of a lease
    /// remains, or half of its duration.
    pub(super) fn spend(
        &mut self,
        check: &Check<'_>,
        now: Timestamp,
        part: u64,
        life: Duration,
    ) -> bool {
        let Some(lease) = self.0.get_mut(&counter_and_key(check)) else {
            return true;
        };
        lease.tokens = lease.tokens.saturating_sub(check.cost);
        lease.tokens < part.div_ceil(4) || now + life / 2 >= lease.until
    }

    pub(super) fn forget(&mut self, check: &Check<'_>) {
        self.0.remove(&counter_and_key(check));
    }

    /// Whether the held tokens cover this check too, in addition to those planned before.
    pub(super) fn covers(
        &self,
        check: &Check<'_>,
        now: Timestamp,
        planned: &mut HashMap<CounterAndKey, u64>,
    ) -> bool {
        let planned = planned.entry(counter_and_key(check)).or_default();
        *planned = planned.saturating_add(check.cost);
        let lease = self.live_lease(check, now);
        lease.is_some_and(|lease| lease.tokens >= *planned)
    }

    fn live_lease(&self, check: &Check<'_>, now: Timestamp) -> Option<&FakeLease> {
        let lease = self.0.get(&counter_and_key(check))?;
        (now < lease.until && lease.kind == *check.limit.kind()).then_some(lease)
    }
}

impl FakeStore {
    /// Takes up to `part` of what remains, for a lease's duration.
    pub(super) fn take_lease(&self, state: &mut FakeState, check: &Check<'_>, part: u64) {
        let left = state.memory.answer(&[peek_check(check)]).decision.remaining;
        let lease = FakeLease {
            kind: check.limit.kind().clone(),
            tokens: left.min(part),
            until: self.clock.now() + self.terms.duration,
        };
        state.leases.0.insert(counter_and_key(check), lease);
    }

    /// Shows the tokens that this node holds as the remaining ones of leased limits.
    pub(super) fn show_held_tokens(
        &self,
        state: &FakeState,
        checks: &[Check<'_>],
        answer: &mut Answer,
    ) {
        let decider = answer.decider.and_then(|decider| checks.get(decider));
        let Some(check) = decider.filter(|check| is_leased(check.limit)) else {
            return;
        };
        let held = state.leases.live_lease(check, self.clock.now());
        let said = answer.decision;
        answer.decision = Decision::new(
            said.outcome,
            said.limit,
            held.map_or(0, |lease| lease.tokens),
            said.wait_or_max(),
            Duration::ZERO,
        );
    }
}
