//! What only one limit by itself can be asked, without a store.

use std::sync::Arc;
use std::time::Duration;

use tollgate::clock::Clock;
use tollgate::{Algorithm, Decision, ExactKeyedLimiter, Outcome, Timestamp};
use tollgate_engine::backend::{Check, LimitKind, SoleLimit};

use super::{KEYS, Paced, Rehearsal, State};
use crate::error::{StoreError, StoreLimitError};
use crate::question::{Op, Raw, possible};

impl Rehearsal {
    /// What the store would do.
    pub(crate) fn act(
        &self,
        limit: &SoleLimit,
        key: &str,
        check: &Check<'_>,
        op: Op,
        at: Option<Timestamp>,
    ) -> Result<(Decision, Option<Raw>), StoreError> {
        if let Some(at) = at {
            // A time before the clock's counts as now.
            self.clock.advance(at - self.clock.now());
        }
        let form = self.form(check.limit)?;
        if let Some(known) = form.known(check.cost) {
            return Ok((known, None));
        }
        if let Some(numbers) = form.numbers_at(self.clock.now().as_nanos() / 1000) {
            possible(op, &numbers, check.limit)?;
        }
        let (decision, wait) = self.asked(&mut self.lock(), 1, |state| match op {
            Op::Reserve(longest) => self.reserve(state, limit, key, check.cost, longest),
            _ => Ok(carry_out(state, check, op)),
        })??;
        Ok((decision, Some(raw(&decision, wait))))
    }

    fn reserve(
        &self,
        state: &mut State,
        limit: &SoleLimit,
        key: &str,
        cost: u64,
        longest: u64,
    ) -> Result<(Decision, Duration), StoreError> {
        let paced = self.paced(state, limit)?;
        let (left, mut delay) = (paced.check_n(key, 0), Duration::ZERO);
        let mut outcome = Outcome::Denied;
        // Dropped, what was reserved for later is given back.
        if let Ok(reserved) = paced.key(key).reserve(cost)
            && reserved.delay() <= Duration::from_micros(longest)
        {
            (outcome, delay) = (Outcome::Allowed, reserved.delay());
            reserved.keep();
        }
        let zero = Duration::ZERO;
        let decision = Decision::new(outcome, left.limit, left.remaining, zero, left.reset_after);
        Ok((decision, delay))
    }

    fn paced(&self, state: &mut State, limit: &SoleLimit) -> Result<Arc<Paced>, StoreError> {
        let id = limit.limit().counter().id;
        if let Some(paced) = state.paced.get(&id) {
            return Ok(Arc::clone(paced));
        }
        let LimitKind::Rate { rate, algorithm } = limit.limit().kind() else {
            let kind = limit.limit().kind();
            return Err(StoreLimitError::not_a_level("a reservation", kind).into());
        };
        let made = ExactKeyedLimiter::builder(*rate, KEYS)
            .algorithm(match algorithm {
                Algorithm::Gcra => Algorithm::LeakyBucket,
                level => *level,
            })
            .longest_wait(Duration::from_secs(86_400))
            .clock(self.clock.clone())
            .build();
        let made = Arc::new(made.map_err(StoreLimitError::Rate)?);
        state.paced.insert(id, Arc::clone(&made));
        Ok(made)
    }
}

/// What the store would do, and how long it says to wait.
fn carry_out(state: &mut State, check: &Check<'_>, op: Op) -> (Decision, Duration) {
    let memory = &state.memory;
    let ask = |cost| memory.answer(&[Check { cost, ..*check }]).decision;
    match op {
        Op::Decide | Op::Hold => {
            let decision = ask(check.cost);
            (decision, decision.wait())
        }
        Op::Look => {
            let said = memory.peek_each(&[*check]);
            let decision = said.first().copied().unwrap_or(Decision::UNLIMITED);
            (decision, decision.wait())
        }
        Op::AtMost => {
            let most = ask(0).remaining.min(check.cost);
            let decision = ask(most.max(1));
            let taken = if decision.is_allowed() { most } else { 0 };
            // What was taken stands where a wait would.
            (decision, Duration::from_micros(taken))
        }
        Op::Gift | Op::GiveBack(_) | Op::GiveBackHeld { .. } => {
            memory.give_back(&[*check]);
            (ask(0), Duration::ZERO)
        }
        Op::Reset => {
            memory.forget(&[*check]);
            let left = ask(0);
            state.leases.forget(check);
            (left, Duration::ZERO)
        }
        Op::Reserve(_) | Op::Renew | Op::Release | Op::Raise(_) => (ask(0), Duration::ZERO),
    }
}

fn raw(decision: &Decision, wait: Duration) -> Raw {
    let number = |number: u128| i64::try_from(number).unwrap_or(-1);
    Raw {
        outcome: match decision.outcome {
            Outcome::Denied => 0,
            Outcome::Allowed => 1,
            Outcome::Never => 2,
        },
        remaining: number(u128::from(decision.remaining)),
        wait: number(wait.as_micros()),
        reset: number(decision.reset_after.as_micros()),
    }
}
