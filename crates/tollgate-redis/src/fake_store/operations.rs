//! Operations on a single limit, without a store.

use std::sync::Arc;
use std::time::Duration;

use tollgate::clock::Clock;
use tollgate::{Algorithm, Decision, Outcome, StoredKeyLimiter, Timestamp};
use tollgate_engine::backend::{Check, LimitKind};

use super::{FakeState, FakeStore, MAX_KEYS, Pacer};
use crate::error::{StoreError, StoreLimitError};
use crate::lock::lock;
use crate::query::{StoreOp, check_supported, to_micros_ceil};

impl FakeStore {
    /// Runs one operation as the store would, and returns the number of its reply.
    pub(crate) fn run_operation(
        &self,
        check: &Check<'_>,
        op: StoreOp,
        at: Option<Timestamp>,
    ) -> Result<(Decision, Option<u64>), StoreError> {
        if let Some(at) = at {
            // A time before the clock's counts as now.
            self.clock.advance(at - self.clock.now());
        }
        let form = self.limit_form(check.limit)?;
        if let Some(known) = form.known_decision(check.cost) {
            return Ok((known, None));
        }
        if let Some(numbers) = form.params_at(self.clock.now().as_nanos() / 1000) {
            check_supported(op, &numbers, check.limit)?;
        }
        let (decision, number) =
            self.run_query(&mut lock(&self.state), 1, |state| match op {
                StoreOp::Reserve(longest) => self.reserve(state, check, longest),
                _ => Ok(apply_operation(state, check, op)),
            })??;
        Ok((decision, Some(number)))
    }

    fn reserve(
        &self,
        state: &mut FakeState,
        check: &Check<'_>,
        longest: u64,
    ) -> Result<(Decision, u64), StoreError> {
        let (paced, key) = (self.pacer(state, check)?, check.key.fingerprint());
        let (mut decision, mut delay) = (paced.check_n(&key, 0), Duration::ZERO);
        decision.outcome = Outcome::Denied;
        // Dropping the reservation refunds it.
        if let Ok(reserved) = paced.key(&key).reserve(check.cost)
            && reserved.delay() <= Duration::from_micros(longest)
        {
            (decision.outcome, delay) = (Outcome::Allowed, reserved.delay());
            reserved.keep();
        }
        Ok((decision, to_micros_ceil(delay)))
    }

    fn pacer(&self, state: &mut FakeState, check: &Check<'_>) -> Result<Arc<Pacer>, StoreError> {
        let id = check.limit.counter().id;
        if let Some(paced) = state.pacers.get(&id) {
            return Ok(Arc::clone(paced));
        }
        let kind = check.limit.kind();
        let LimitKind::Rate { rate, algorithm } = kind else {
            return Err(StoreLimitError::not_a_level("a reservation", kind).into());
        };
        let made = StoredKeyLimiter::builder(*rate, MAX_KEYS)
            .algorithm(match algorithm {
                Algorithm::Gcra => Algorithm::LeakyBucket,
                level => *level,
            })
            .longest_wait(Duration::from_secs(86_400))
            .clock(self.clock.clone())
            .build();
        let made = Arc::new(made.map_err(StoreLimitError::Rate)?);
        state.pacers.insert(id, Arc::clone(&made));
        Ok(made)
    }
}

/// Applies one operation as the store would, and returns how much it took.
fn apply_operation(state: &mut FakeState, check: &Check<'_>, op: StoreOp) -> (Decision, u64) {
    let memory = &state.memory;
    let ask = |cost| memory.answer(&[Check { cost, ..*check }]).decision;
    let decision = match op {
        StoreOp::Decide | StoreOp::Hold => ask(check.cost),
        StoreOp::Peek => {
            let said = memory.peek_each(&[*check]);
            said.first().copied().unwrap_or(Decision::UNLIMITED)
        }
        StoreOp::AtMost => {
            let most = ask(0).remaining.min(check.cost);
            return (ask(most.max(1)), most);
        }
        StoreOp::Refund | StoreOp::RefundCharge(_) | StoreOp::RefundHeldCharge { .. } => {
            memory.refund_checks(&[*check]);
            ask(0)
        }
        StoreOp::Reset => {
            memory.reset_checks(&[*check]);
            state.leases.forget(check);
            ask(0)
        }
        StoreOp::Reserve(_) | StoreOp::Renew | StoreOp::Release | StoreOp::RaiseUsage(_) => ask(0),
    };
    (decision, 0)
}
