//! What a stack needs of a limit, whatever its kind.

use std::fmt;

use tollgate_core::{Decision, Timestamp};

use super::Kind;
use super::pass::AnyPermit;
use crate::cell::Ticket;
use crate::keyed::KeyParts;
use crate::tree::Receipt;

/// A limit that can stand in a [`Stack`](super::Stack).
pub(crate) trait Limit: fmt::Debug {
    fn kind(&self) -> Kind;

    fn breadth(&self) -> Breadth;

    /// Which clock it reads; see [`Clock::identity`](crate::Clock::identity).
    fn clock(&self) -> Option<usize>;

    fn now(&self) -> Timestamp;

    /// Decides without charging.
    fn look(&self, now: Timestamp, cost: u64) -> Decision;

    /// Whether the cost would pass, without charging it.
    fn fits(&self, now: Timestamp, cost: u64) -> bool {
        self.look(now, cost).is_allowed()
    }

    /// Charges the cost, or says why not.
    fn take(&self, now: Timestamp, cost: u64) -> Result<Taken, Decision>;

    /// Gives back what was taken by a request that came to nothing, as far as nothing was built on
    /// it.
    fn put_back(&self, now: Timestamp, taken: Taken);

    /// Charges an estimate that is to be settled by `until`.
    fn hold(&self, now: Timestamp, cost: u64, until: Timestamp) -> Result<Taken, Decision> {
        let _ = until;
        self.take(now, cost)
    }

    /// Settles an estimate, of which `spent` was spent.
    fn settle(&self, now: Timestamp, taken: Taken, spent: u64);
}

/// A keyed limiter, whatever its clock, with the key given in each call.
pub(crate) trait KeyedBook {
    fn clock(&self) -> Option<usize>;
    fn now(&self) -> Timestamp;
    fn fits(&self, key: KeyParts, now: Timestamp, cost: u64) -> bool;
    fn look(&self, key: KeyParts, now: Timestamp, cost: u64) -> Decision;
    fn take(&self, key: KeyParts, now: Timestamp, cost: u64) -> Result<Taken, Decision>;
    fn put_back(&self, key: KeyParts, now: Timestamp, taken: Taken);
    fn settle(&self, key: KeyParts, now: Timestamp, taken: Taken, spent: u64);
}

/// Who shares a limit: in this order they are charged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Breadth {
    /// Those of one key.
    Key,
    /// All.
    Shared,
    /// All, and they are to be as short as can be: slots.
    Slots,
}

impl Breadth {
    pub(super) const fn next(self) -> Option<Self> {
        match self {
            Self::Key => Some(Self::Shared),
            Self::Shared => Some(Self::Slots),
            Self::Slots => None,
        }
    }
}

/// What a limit took, and is given back by.
#[derive(Debug)]
pub(crate) enum Taken {
    /// A charge of a rate.
    Charge(Ticket),
    /// A charge of a quota.
    #[cfg(feature = "quota")]
    Quota(crate::quota::QuotaReceipt),
    /// A charge of every class from a leaf to the root.
    Tree(Box<Receipt>),
    /// A slot.
    Slot(AnyPermit),
}
