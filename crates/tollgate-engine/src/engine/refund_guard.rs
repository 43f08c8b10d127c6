//! A request that is charged while something is still asked for it: if nobody waits for the answer any more, it has never
//! run, so what it cost comes back.

use std::mem;

use crate::backend::{Backend, refund_detached};
use crate::limits::{Check, LimitKind};
use crate::verdict::Permits;

/// A request that passed and isn't answered yet. Dropped before it is [answered](Self::answered), it gives back what it
/// was charged, and holds nothing.
#[must_use = "dropped, it gives back what the request was charged"]
pub(super) struct RefundGuard<'a, 'c, B: Backend> {
    backend: &'a B,
    /// What it holds.
    pub(super) held: Permits,
    /// What it was charged, until it is answered.
    charged: Option<Vec<Check<'c>>>,
}

impl<'a, 'c, B: Backend> RefundGuard<'a, 'c, B> {
    /// A request that holds this, and was charged nothing so far.
    pub(super) fn new(backend: &'a B, held: Permits) -> Self {
        Self {
            backend,
            held,
            charged: Some(Vec::new()),
        }
    }

    /// It was charged these. Permits and estimates come back with what holds them.
    pub(super) fn record_charge(&mut self, checks: &[Check<'c>]) {
        let is_spent = |check: &&Check<'_>| {
            let is_permit = matches!(check.limit.kind(), LimitKind::Concurrency(_));
            check.cost > 0 && !is_permit && !check.limit.is_estimated
        };
        let charged = self.charged.get_or_insert_default();
        charged.extend(checks.iter().filter(is_spent).copied());
    }

    /// All is asked: what was charged stays so, and what it holds is the caller's.
    pub(super) fn disarm(mut self) -> Permits {
        self.charged = None;
        mem::take(&mut self.held)
    }
}

impl<B: Backend> Drop for RefundGuard<'_, '_, B> {
    fn drop(&mut self) {
        if let Some(charged) = self.charged.take() {
            mem::take(&mut self.held).cancel();
            if !charged.is_empty() {
                refund_detached(self.backend, &charged);
            }
        }
    }
}
