//! Costs that are estimates: held in the tables that keep track of them, until the request says what it did cost.

use tollgate::{
    Clock, Decision, Level,
    stack::{Hold, Terms},
};

use super::Memory;
use super::keys::{CounterKey, QuotaBytes, UNNAMED};
use crate::limits::{Answer, Check, CoreForm};
use crate::policy::{Settle, Unsettled};

/// Estimates that are held for a request that isn't sure to run: unless it does, they come back.
pub(crate) struct HeldEstimates(Option<Hold<'static>>);

impl HeldEstimates {
    /// The request runs.
    pub(crate) fn keep(mut self) -> Option<Hold<'static>> {
        self.0.take()
    }
}

impl Drop for HeldEstimates {
    fn drop(&mut self) {
        if let Some(hold) = self.0.take() {
            hold.cancel();
        }
    }
}

/// Whether a check's cost is held until it is settled.
#[inline]
pub(crate) fn is_held(check: &Check<'_>) -> bool {
    check.limit.is_estimated && check.cost > 0
}

fn terms(settle: Settle) -> Terms {
    let terms = Terms::within(settle.within);
    match settle.unsettled {
        Unsettled::Charge => terms,
        Unsettled::Refund => terms.refund_unsettled(),
    }
}

impl<C: Clock + 'static, W: Clock + 'static> Memory<C, W> {
    /// Charges all checks, or none, where some costs are estimates. All are looked at first; if another request
    /// comes between, what was held is as if it had never been.
    #[inline(never)]
    pub(super) fn answer_estimated(&self, checks: &[Check<'_>]) -> Answer {
        let looked = Answer::over(checks, &self.look_ahead(checks));
        if !looked.allowed {
            return looked;
        }
        let held = match self.hold_estimates(checks) {
            Ok(held) => held,
            Err((number, decision)) => return Answer::new(Some(number), decision),
        };
        let plain = |(_, check): &(usize, Check<'_>)| !is_held(check);
        let (numbers, others): (Vec<usize>, Vec<Check<'_>>) =
            checks.iter().copied().enumerate().filter(plain).unzip();
        let mut answer = self.answer(&others);
        answer.decider = answer
            .decider
            .and_then(|decider| numbers.get(decider).copied());
        if answer.allowed {
            if let Some(hold) = held.keep() {
                answer.pass = answer.pass.and(hold.into_pass());
            }
            let left = Answer::over(checks, &self.look_at(checks));
            (answer.decider, answer.decision) = (left.decider, left.decision);
        }
        answer
    }

    /// Holds the estimates among these checks, all or none; which refused, and what it said.
    pub(crate) fn hold_estimates(
        &self,
        checks: &[Check<'_>],
    ) -> Result<HeldEstimates, (usize, Decision)> {
        let of = |(number, check): (usize, &Check<'_>)| {
            let terms = terms(check.limit.settle().filter(|_| is_held(check))?);
            let (key, cost) = (CounterKey::of(check), check.cost);
            let level = match &check.limit.form {
                CoreForm::Exact(table, tier) => {
                    let key = self.exact[*table].key_owned(&key);
                    let key = key.at(tier).unwrap_or(key);
                    Level::estimated(UNNAMED, key, cost)
                }
                CoreForm::Window(tier) => {
                    let key = self.windows.key_owned(&key);
                    let key = key.at(tier).unwrap_or(key);
                    Level::estimated(UNNAMED, key, cost)
                }
                CoreForm::Quota(quota) => {
                    let bytes = QuotaBytes::of(check);
                    let key = self.quotas.key_owned(bytes.as_slice()).at(quota);
                    Level::estimated(UNNAMED, key, cost)
                }
                // Kept in the table of buckets where it is estimated; and slots are never.
                CoreForm::Gcra(_) | CoreForm::Concurrency(_) => return None,
            };
            Some((number, level.on(terms)))
        };
        let held = checks.iter().enumerate().filter_map(of);
        let (numbers, levels): (Vec<usize>, Vec<Level<'static>>) = held.unzip();
        if levels.is_empty() {
            return Ok(HeldEstimates(None));
        }
        match self
            .stack
            .hold(&levels, Terms::within(std::time::Duration::MAX))
        {
            Ok(hold) => Ok(HeldEstimates(Some(hold))),
            Err(refusal) => Err((numbers[refusal.index], refusal.decision)),
        }
    }
}
