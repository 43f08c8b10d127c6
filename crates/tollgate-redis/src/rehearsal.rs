//! The same limits without a store, for tests of what uses them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tollgate::clock::{Clock, Manual};
use tollgate::{Algorithm, Decision, ExactKeyedLimiter, Outcome, Timestamp};
use tollgate_engine::backend::{Check, LimitKind, Memory, SoleLimit};

use crate::error::{StoreError, StoreLimitError};
use crate::question::{Op, Raw};

/// Keys that a test may use.
const KEYS: usize = 10_000;

/// Limits in memory, by a clock that is set by hand.
pub(crate) struct Rehearsal {
    pub(crate) memory: Memory<Manual, Manual>,
    clock: Manual,
    /// Reservations are booked apart, by counter.
    paced: Mutex<HashMap<u64, Arc<Paced>>>,
}

type Paced = ExactKeyedLimiter<String, Manual>;

impl Rehearsal {
    pub(crate) fn new(clock: Manual) -> Self {
        let memory = Memory::builder().keys(KEYS).clock(clock.clone());
        Self {
            memory: memory.wall(clock.clone()).build(),
            clock,
            paced: Mutex::default(),
        }
    }

    /// What the store would do.
    pub(crate) fn act(
        &self,
        (limit, key): (&SoleLimit, &str),
        check: &Check<'_>,
        op: Op,
        at: Option<Timestamp>,
    ) -> Result<(Decision, Option<Raw>), StoreError> {
        if let Some(at) = at {
            // A time before the clock's counts as now.
            self.clock.advance(at - self.clock.now());
        }
        let asked = |cost| {
            let check = Check { cost, ..*check };
            self.memory.answer(&[check]).decision
        };
        let (decision, wait) = match op {
            Op::Decide => {
                let decision = asked(check.cost);
                (decision, decision.retry_after)
            }
            Op::AtMost => {
                let most = asked(0).remaining.min(check.cost);
                let decision = asked(most.max(1));
                let taken = if decision.is_allowed() { most } else { 0 };
                // Where a wait would be, what was taken.
                (decision, Duration::from_micros(taken))
            }
            Op::Reserve(longest) => return self.reserve((limit, key), check.cost, longest),
            Op::Gift | Op::GiveBack(_) => {
                self.memory.give_back(&[*check]);
                (asked(0), Duration::ZERO)
            }
            Op::Reset => {
                self.memory.forget(&[*check]);
                (asked(0), Duration::ZERO)
            }
            Op::Renew | Op::Release | Op::Raise(_) => (asked(0), Duration::ZERO),
        };
        Ok((decision, Some(raw(&decision, wait))))
    }

    fn reserve(
        &self,
        (limit, key): (&SoleLimit, &str),
        cost: u64,
        longest: u64,
    ) -> Result<(Decision, Option<Raw>), StoreError> {
        let paced = self.paced(limit)?;
        let decision = paced.check_n(key, 0);
        let longest = Duration::from_micros(longest);
        let reserved = match paced.reserve(key, cost) {
            Ok(reserved) if reserved.delay() <= longest => {
                let delay = reserved.delay();
                // Dropped, it would be given back.
                std::mem::forget(reserved);
                Some(delay)
            }
            // Dropped, it is given back.
            _ => None,
        };
        let outcome = match reserved {
            Some(_) => Outcome::Allowed,
            None => Outcome::Denied,
        };
        let decision = Decision::new(
            outcome,
            decision.limit,
            decision.remaining,
            Duration::ZERO,
            decision.reset_after,
        );
        Ok((decision, Some(raw(&decision, reserved.unwrap_or_default()))))
    }

    fn paced(&self, limit: &SoleLimit) -> Result<Arc<Paced>, StoreError> {
        let LimitKind::Rate { rate, algorithm } = limit.limit().kind() else {
            return Err(not_a_level(limit));
        };
        let algorithm = match algorithm {
            Algorithm::Gcra => Algorithm::LeakyBucket,
            Algorithm::TokenBucket | Algorithm::LeakyBucket => *algorithm,
            _ => return Err(not_a_level(limit)),
        };
        let mut paced = self.paced.lock().unwrap_or_else(PoisonError::into_inner);
        let id = limit.limit().counter().id;
        if let Some(paced) = paced.get(&id) {
            return Ok(Arc::clone(paced));
        }
        let made = ExactKeyedLimiter::builder(*rate, KEYS)
            .algorithm(algorithm)
            .longest_wait(Duration::from_secs(86_400))
            .clock(self.clock.clone())
            .build();
        let made = Arc::new(made.map_err(StoreLimitError::Rate)?);
        paced.insert(id, Arc::clone(&made));
        Ok(made)
    }
}

fn not_a_level(limit: &SoleLimit) -> StoreError {
    StoreError::Limit(StoreLimitError::NotALevel {
        what: "a reservation",
        limit: format!("{:?}", limit.limit().kind()),
    })
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
