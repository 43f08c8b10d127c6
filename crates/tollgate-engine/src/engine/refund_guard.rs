//! A guard for a request that is charged while further checks are in progress. If the caller drops the request
//! meanwhile, it never ran, so its charges are refunded.

use std::mem;

use crate::backend::{Backend, refund_detached};
use crate::limits::{Check, LimitKind};
use crate::verdict::Permits;

/// An allowed request that isn't answered yet. Unless it is [disarmed](Self::disarm), dropping it refunds its charges
/// and releases its permits.
#[must_use = "dropped, it gives back what the request was charged"]
pub(super) struct RefundGuard<'a, 'c, B: Backend> {
    backend: &'a B,
    /// The permits of the request.
    pub(super) held: Permits,
    /// The charges to refund. `None` once disarmed.
    charged: Option<Vec<Check<'c>>>,
}

impl<'a, 'c, B: Backend> RefundGuard<'a, 'c, B> {
    /// A request with these permits, and no charges so far.
    pub(super) fn new(backend: &'a B, held: Permits) -> Self {
        Self {
            backend,
            held,
            charged: Some(Vec::new()),
        }
    }

    /// Adds charges. Permits and estimates aren't among them: their holder releases them.
    pub(super) fn record_charge(&mut self, checks: &[Check<'c>]) {
        let is_spent = |check: &&Check<'_>| {
            let is_permit = matches!(check.limit.kind(), LimitKind::Concurrency(_));
            check.cost > 0 && !is_permit && !check.limit.is_estimated
        };
        let charged = self.charged.get_or_insert_default();
        charged.extend(checks.iter().filter(is_spent).copied());
    }

    /// Keeps the charges, and hands the permits to the caller.
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
