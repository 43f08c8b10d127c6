//! All or none: what a request was charged so far, until all of its limits have passed.

use std::sync::Arc;

use super::Direct;
use crate::lease::{Estimate, LeaseKey};
use crate::question::{Op, Question};

/// Which check it is of, what was asked, and when.
type Charge = (usize, Question, u64);

/// What was charged so far, given back unless it is kept.
pub(super) struct Undo<'a> {
    direct: &'a Direct,
    pub(super) leases: Vec<(LeaseKey, u64, u64)>,
    /// Charged in the store.
    pub(super) charges: Vec<Charge>,
    /// Held of leases, by the number of the check: dropped, they come back.
    pub(super) estimates: Vec<(usize, Estimate)>,
    /// Slots that may have been taken.
    pub(super) unsure: Vec<Question>,
}

impl<'a> Undo<'a> {
    pub(super) fn new(direct: &'a Direct) -> Self {
        Self {
            direct,
            leases: Vec::new(),
            charges: Vec::new(),
            estimates: Vec::new(),
            unsure: Vec::new(),
        }
    }

    /// All passed. Returns what was charged in the store, and what is held of leases.
    pub(super) fn keep(&mut self) -> (Vec<Charge>, Vec<(usize, Estimate)>) {
        self.leases.clear();
        let estimates = std::mem::take(&mut self.estimates);
        (std::mem::take(&mut self.charges), estimates)
    }
}

impl Drop for Undo<'_> {
    fn drop(&mut self) {
        for (place, cost, plans) in self.leases.drain(..) {
            self.direct.leases.put_back(place, cost, plans);
        }
        for question in self.unsure.drain(..) {
            self.direct.holders.forget(&question);
        }
        for (_, mut question, since) in self.charges.drain(..).rev() {
            if question.holder.is_some() {
                self.direct.holders.forget(&question);
                continue;
            }
            question.op = Op::GiveBack(since);
            let (store, at) = (Arc::clone(&self.direct.store), self.direct.at());
            // If the store can't be told, it drains by itself.
            self.direct.host.spawn(async move {
                let _ = store.ask(vec![question], at).await;
            });
        }
    }
}
