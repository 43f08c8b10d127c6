//! Looking without charging.

use tollgate::Decision;
use tollgate_engine::backend::Check;

use super::Direct;
use crate::error::StoreError;
use crate::question::Op;
use crate::store::Patience;

impl Direct {
    /// What one of these checks would say by itself.
    pub(super) async fn look(
        &self,
        checks: &[Check<'_>],
        number: usize,
        patience: &mut Patience,
    ) -> Result<Decision, StoreError> {
        let check = &checks[number];
        let stored = self.stored(check.limit)?;
        // What is remembered of denials isn't read: another process may have reset the key.
        Ok(match (stored.form.known(check.cost), &stored.leased) {
            (Some(known), _) => known,
            (None, Some(leased)) => {
                let key = || stored.key(check).into();
                self.leases.look(check, leased, key, patience).await?
            }
            (None, None) => {
                let mut question = self.decide(check, stored, self.store_time())?;
                question.op = Op::Look;
                let numbers = question.numbers;
                let asked = (vec![question], self.at());
                let answers = self.ask(checks, &[number], asked, patience).await?;
                answers.each[0].decision(&numbers)
            }
        })
    }
}
