//! All or none: what a request was charged so far, until all of its limits have passed.

use super::Direct;
use crate::lease::{Estimate, Stamp, Taken};
use crate::question::{Op, Question, Raw};
use crate::stored::LeaseKey;

/// A charge in the store.
pub(super) struct Charge {
    /// Which check it is of.
    pub(super) number: usize,
    /// What was asked.
    pub(super) question: Question,
    /// What gives it back.
    pub(super) back: Op,
}

impl Charge {
    /// A question that was answered so, at this time: the charge, and the answer without what only a charge reads.
    pub(super) fn new(number: usize, question: Question, raw: Raw, now: u64) -> (Self, Raw) {
        let (back, raw) = match question.op {
            Op::Hold => {
                let (generation, raw) = raw.held();
                let since = now;
                (Op::GiveBackHeld { since, generation }, raw)
            }
            _ => (Op::GiveBack(now), raw),
        };
        let charge = Self {
            number,
            question,
            back,
        };
        (charge, raw)
    }
}

/// What was charged so far, given back unless it is kept.
pub(super) struct Undo<'a> {
    direct: &'a Direct,
    /// Spent of leases, without asking anybody meanwhile.
    pub(super) leases: Vec<(LeaseKey, u64, Stamp)>,
    /// Taken of leases: dropped, it comes back.
    pub(super) taken: Vec<Taken>,
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
            taken: Vec::new(),
            charges: Vec::new(),
            estimates: Vec::new(),
            unsure: Vec::new(),
        }
    }

    /// All passed. Returns what was charged in the store, and what is held of leases.
    pub(super) fn keep(&mut self) -> (Vec<Charge>, Vec<(usize, Estimate)>) {
        self.leases.clear();
        self.taken.drain(..).for_each(Taken::spend);
        let estimates = std::mem::take(&mut self.estimates);
        (std::mem::take(&mut self.charges), estimates)
    }
}

impl Undo<'_> {
    /// Puts back what was spent of leases at once.
    pub(super) fn put_back(&mut self) {
        for (place, cost, stamp) in self.leases.drain(..) {
            self.direct.leases.put_back(place, cost, stamp);
        }
    }
}

impl Drop for Undo<'_> {
    fn drop(&mut self) {
        self.put_back();
        for question in self.unsure.drain(..) {
            self.direct.holders.forget(&question);
        }
        for Charge {
            mut question, back, ..
        } in self.charges.drain(..).rev()
        {
            if question.holder.is_some() {
                self.direct.holders.forget(&question);
                continue;
            }
            question.op = back;
            self.direct.tell_store(question);
        }
    }
}
