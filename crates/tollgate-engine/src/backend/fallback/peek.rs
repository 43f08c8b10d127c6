//! Looking without charging, at the store or without it.

use tollgate::{Clock, Decision};

use super::{COME_BACK_AFTER, Fallback, breaks, is_counted_here, refusal_of};
use crate::backend::Backend;
use crate::limits::Check;
use crate::policy::OnStoreFailure;

impl<B: Backend, C: Clock + 'static, W: Clock + 'static> Fallback<B, C, W> {
    /// What each check would say by itself. A look neither opens nor closes a circuit.
    pub(super) async fn look_at_each(&self, checks: &[Check<'_>]) -> Vec<Decision> {
        let (here, there): (Vec<_>, Vec<_>) = checks
            .iter()
            .copied()
            .partition(|check| is_counted_here(check));
        let mut here = self.local.memory().look_ahead(&here).into_iter();
        let is_asked = self.circuit.is_closed() || !there.iter().all(breaks);
        let asked = if is_asked && !there.is_empty() {
            self.backend.peek(&there).await.ok()
        } else {
            None
        };
        let there = asked.unwrap_or_else(|| self.look_without(&there));
        let mut there = there.into_iter();
        let said = |check: &Check<'_>| {
            if is_counted_here(check) {
                here.next()
            } else {
                there.next()
            }
        };
        let each = checks.iter().map(said);
        each.map(|said| said.unwrap_or(Decision::UNLIMITED))
            .collect()
    }

    /// The same without a store, as each limit has chosen.
    fn look_without(&self, checks: &[Check<'_>]) -> Vec<Decision> {
        let said = |check: &Check<'_>| match check.limit.on_store_failure() {
            OnStoreFailure::Open => Decision::UNLIMITED,
            OnStoreFailure::Closed => refusal_of(COME_BACK_AFTER),
            OnStoreFailure::Local | OnStoreFailure::CircuitBreak => self.local.look(check),
        };
        checks.iter().map(said).collect()
    }
}
