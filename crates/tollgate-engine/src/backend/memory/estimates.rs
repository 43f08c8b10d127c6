//! Estimated costs: held in the tables that keep estimates, until the request reports its actual cost.

use std::future::Future;
use std::time::Duration;

use tollgate::{
    Clock, Decision, Limit as ComposedLimit,
    stack::{CostReservation, ReservationTerms},
};

use super::Memory;
use super::keys::{CounterKey, KeyStorage, QuotaBytes, UNNAMED, level};
use crate::limits::{Answer, Check, CompiledLimit};
use crate::policy::{Settlement, UnsettledAction};

/// A charge that is held during another query counts as spent after this time. The request isn't served before then.
const PENDING_TERMS: ReservationTerms =
    ReservationTerms::for_at_most(Duration::from_secs(60)).refund_on_drop();

/// Estimates held for a request that may not run. Dropping the guard refunds them.
struct EstimateGuard(Option<CostReservation<'static>>);

impl EstimateGuard {
    /// Keeps the estimates, because the request runs.
    fn keep(mut self) -> Option<CostReservation<'static>> {
        self.0.take()
    }
}

impl Drop for EstimateGuard {
    fn drop(&mut self) {
        if let Some(estimates) = self.0.take() {
            estimates.cancel();
        }
    }
}

/// Whether a check's cost is held until it is settled.
#[inline]
pub(super) fn is_estimated_check(check: &Check<'_>) -> bool {
    check.limit.is_estimated && check.cost > 0
}

/// The checks whose costs are final, with their numbers among all.
fn without_estimates<'a>(checks: &[Check<'a>]) -> (Vec<usize>, Vec<Check<'a>>) {
    let all = checks.iter().copied().enumerate();
    all.filter(|(_, check)| !is_estimated_check(check)).unzip()
}

fn hold_terms(settle: Settlement) -> ReservationTerms {
    let terms = ReservationTerms::for_at_most(settle.within);
    match settle.unsettled {
        UnsettledAction::Charge => terms,
        UnsettledAction::Refund => terms.refund_unsettled(),
    }
}

impl<C: Clock + 'static, W: Clock + 'static> Memory<C, W> {
    /// Charges all checks, or none, where some costs are estimates. All limits are peeked first. If another request
    /// is charged in between, the estimates are released without a trace.
    #[inline(never)]
    pub(super) fn charge_estimated(&self, checks: &[Check<'_>]) -> Answer {
        let looked = Answer::from_decisions(checks, &self.peek_each(checks));
        if !looked.allowed {
            return looked;
        }
        let held = match self.hold_estimates(checks) {
            Ok(held) => held,
            Err((number, decision)) => return Answer::new(Some(number), decision),
        };
        let (numbers, others) = without_estimates(checks);
        let mut answer = self.answer(&others);
        answer.decider = answer
            .decider
            .and_then(|decider| numbers.get(decider).copied());
        if answer.allowed {
            if let Some(hold) = held.keep() {
                answer.pass = answer.pass.merge(hold.into_permits());
            }
            let left = Answer::from_decisions(checks, &self.left_of_each(checks));
            (answer.decider, answer.decision) = (left.decider, left.decision);
        }
        answer
    }

    /// Charges these checks if `rest`, which checks other limits, allows the request. The charges are held while
    /// `rest` runs, and refunded if it denies or the future is dropped.
    ///
    /// # Errors
    /// The number of the check that denies the request, and its decision. `rest` isn't polled then.
    ///
    /// ```
    /// # use std::{pin::pin, task::{Context, Poll, Waker}};
    /// # use tollgate::{Algorithm, Decision, Rate, clock::Manual};
    /// use tollgate_engine::backend::{Answer, LimitKind, Memory, StandaloneLimit};
    ///
    /// # let memory = Memory::builder().clock(Manual::new()).wall(Manual::new()).build();
    /// let kind = LimitKind::Rate { rate: Rate::per_hour(2), algorithm: Algorithm::Gcra };
    /// let (limit, ada) = (StandaloneLimit::new("mails", kind)?, StandaloneLimit::facts("ada"));
    /// let checks = [limit.check(&ada, 1)];
    /// # let mut asking = pin!(async {
    /// let rest = async {
    ///     assert_eq!(memory.left_of_each(&checks)[0].remaining, 1);
    ///     Answer::new(None, Decision::UNLIMITED)
    /// };
    /// assert!(memory.hold_while(&checks, rest).await.is_ok_and(|answer| answer.allowed));
    /// # });
    /// # assert!(asking.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready());
    /// assert_eq!(memory.left_of_each(&checks)[0].remaining, 1);
    /// # Ok::<(), tollgate::LimitError>(())
    /// ```
    pub async fn hold_while(
        &self,
        checks: &[Check<'_>],
        rest: impl Future<Output = Answer>,
    ) -> Result<Answer, (usize, Decision)> {
        let (numbers, plain) = without_estimates(checks);
        let owned: Vec<_> = plain
            .iter()
            .map(|check| KeyStorage::of(Some(check)))
            .collect();
        let keys: Vec<_> = (plain.iter().zip(&owned))
            .map(|(check, owned)| self.table_key(Some(check), owned))
            .collect();
        let levels: Vec<_> = (keys.iter().zip(&plain))
            .filter_map(|(key, check)| level(key, check))
            .collect();
        let estimates = self.hold_estimates(checks)?;
        let hold = self.stack.hold(&levels, PENDING_TERMS);
        let hold = hold.map_err(|denied| (numbers[denied.index], denied.decision))?;
        let mut answer = rest.await;
        if answer.allowed {
            answer.pass = hold.keep().merge(answer.pass);
            if let Some(estimates) = estimates.keep() {
                answer.pass = answer.pass.merge(estimates.into_permits());
            }
        } else {
            hold.cancel();
        }
        Ok(answer)
    }

    /// Holds the estimates among these checks, all or none. The error is the number of the check that denied, and its
    /// decision.
    fn hold_estimates(&self, checks: &[Check<'_>]) -> Result<EstimateGuard, (usize, Decision)> {
        let of = |(number, check): (usize, &Check<'_>)| {
            let terms = hold_terms(check.limit.settle().filter(|_| is_estimated_check(check))?);
            let (key, cost) = (CounterKey::of(check), check.cost);
            let level = match &check.limit.compiled {
                CompiledLimit::Exact(table, tier) => {
                    let key = self.exact_tables[*table].key_owned(&key);
                    let key = key.at(tier).unwrap_or(key);
                    ComposedLimit::estimated(UNNAMED, key, cost)
                }
                CompiledLimit::Window(tier) => {
                    let key = self.windows.key_owned(&key);
                    let key = key.at(tier).unwrap_or(key);
                    ComposedLimit::estimated(UNNAMED, key, cost)
                }
                CompiledLimit::Quota(quota) => {
                    let bytes = QuotaBytes::of(check);
                    let key = self.quotas.key_owned(bytes.as_slice()).at(quota);
                    ComposedLimit::estimated(UNNAMED, key, cost)
                }
                // An estimated GCRA limit is kept in the table of token buckets, and permits are never estimates.
                CompiledLimit::Gcra(_) | CompiledLimit::Concurrency(_) => return None,
            };
            Some((number, level.with_terms(terms)))
        };
        let held = checks.iter().enumerate().filter_map(of);
        let (numbers, levels): (Vec<usize>, Vec<ComposedLimit<'static>>) = held.unzip();
        if levels.is_empty() {
            return Ok(EstimateGuard(None));
        }
        match self
            .stack
            .hold(&levels, ReservationTerms::for_at_most(Duration::MAX))
        {
            Ok(hold) => Ok(EstimateGuard(Some(hold))),
            Err(refusal) => Err((numbers[refusal.index], refusal.decision)),
        }
    }
}
