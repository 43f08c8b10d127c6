//! What a node holds of leased limits, without a store.
//!
//! What is held is still in the bucket, and charged as it is spent: the store of a test is in this process,
//! and there is no other node that could take it. So what passes is what the limit itself lets pass.

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

/// What is held of all keys.
#[derive(Debug, Default)]
pub(super) struct FakeLeases(HashMap<CounterAndKey, FakeLease>);

/// What is held of one key.
#[derive(Debug)]
struct FakeLease {
    /// What it was taken of: another limit is leased anew.
    kind: LimitKind,
    tokens: u64,
    until: Timestamp,
}

impl FakeLeases {
    pub(super) fn held(&self, now: Timestamp) -> u64 {
        let live = self.0.values().filter(|lease| now < lease.until);
        live.map(|lease| lease.tokens).sum()
    }

    /// Spends what a check costs, as far as it is held. Returns whether it is time to take more: a quarter of
    /// a part is left, or half of its life.
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

    /// Whether what is held covers this check too, beside those that were planned before.
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
    /// Takes a part of what there is, for a lease's life.
    pub(super) fn take_lease(&self, state: &mut FakeState, check: &Check<'_>, part: u64) {
        let left = state.memory.answer(&[peek_check(check)]).decision.remaining;
        let lease = FakeLease {
            kind: check.limit.kind().clone(),
            tokens: left.min(part),
            until: self.clock.now() + self.terms.duration,
        };
        state.leases.0.insert(counter_and_key(check), lease);
    }

    /// Of a leased limit, what is left is what this node holds.
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
