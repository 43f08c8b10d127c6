//! Looking without charging.

use tollgate::{Decision, Outcome};
use tollgate_engine::backend::{Answer, Check};

use super::Direct;
use super::plan::{Need, Plan};
use crate::error::StoreError;
use crate::question::Op;

impl Direct {
    /// What each check would say by itself, after a refusal that didn't ask them all.
    pub(super) async fn look_at_each(
        &self,
        checks: &[Check<'_>],
        answer: &Answer,
    ) -> Result<Vec<Decision>, StoreError> {
        let peeks: Vec<_> = checks
            .iter()
            .map(|check| Check { cost: 0, ..*check })
            .collect();
        let mut each = Vec::with_capacity(checks.len());
        if let Plan::Ask(mut needs) = self.plan(&peeks)? {
            for need in &mut needs {
                if let Need::Answer(question) = need {
                    // Also of slots, of which a decision takes one at any cost.
                    question.cost = 0;
                }
            }
            let left = self.carry_out(&peeks, needs).await?.each;
            each = left.unwrap_or_default();
        }
        each.resize(checks.len(), Decision::UNLIMITED);
        for (number, (check, decision)) in checks.iter().zip(&mut each).enumerate() {
            if answer.decider == Some(number) {
                *decision = answer.decision;
            } else if decision.remaining < check.cost {
                decision.outcome = Outcome::Denied;
                decision.retry_after = answer.decision.retry_after;
            }
        }
        Ok(each)
    }

    /// What each check would say by itself.
    pub(super) async fn look_at_all(
        &self,
        checks: &[Check<'_>],
    ) -> Result<Vec<Decision>, StoreError> {
        let now = self.store_time();
        // However many are asked, one after the other.
        let mut patience = self.store.patience();
        let mut each = Vec::with_capacity(checks.len());
        for (number, check) in checks.iter().enumerate() {
            let stored = self.stored(check.limit)?;
            each.push(match (self.known(check, stored), &stored.leased) {
                (Some(known), _) => known,
                (None, Some(leased)) => {
                    let key = || stored.key(check).into();
                    self.leases.look(check, leased, key, &mut patience).await?
                }
                (None, None) => {
                    let mut question = self.decide(check, stored, now)?;
                    question.op = Op::Look;
                    let limit = question.numbers.limit;
                    let asked = (vec![question], self.at());
                    let answers = self.ask(checks, &[number], asked, &mut patience).await?;
                    answers.each[0].decision(limit)
                }
            });
        }
        Ok(each)
    }
}
