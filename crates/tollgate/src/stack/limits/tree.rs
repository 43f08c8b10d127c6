//! Leaves of a tree in a composite limiter.

use tollgate_core::{Decision, Timestamp};

use crate::clock::Clock;
use crate::stack::LimitKind;
use crate::stack::limit::{ClockReading, ComposableLimit, LevelCharge, LimitScope};
use crate::tree::TreeLevel;

impl<C: Clock> ComposableLimit for TreeLevel<'_, C> {
    fn kind_and_scope(&self) -> (LimitKind, LimitScope) {
        (LimitKind::Rate, LimitScope::Shared)
    }

    fn now(&self, seen: &mut ClockReading) -> Timestamp {
        seen.read(self.tree.clock())
    }

    fn look(&self, now: Timestamp, cost: u64) -> Decision {
        // A cost of 0 only peeks. A denied cost registers the demand of its class with the tree.
        match cost {
            0 => self.tree.peek_at(now, self.leaf, 0).decision,
            _ => self.tree.peek_with_demand_at(now, self.leaf, cost).decision,
        }
    }

    fn fits(&self, seen: &mut ClockReading, cost: u64) -> bool {
        let now = seen.read(self.tree.clock());
        self.tree.would_allow_at(now, self.leaf, cost)
    }

    fn take(&self, now: Timestamp, cost: u64) -> Result<LevelCharge, Decision> {
        match self.tree.charge_at(now, self.leaf, cost) {
            // Boxed, because it holds a charge of every class up to the root.
            Ok(receipt) => Ok(LevelCharge::Tree(Box::new(receipt))),
            Err(ruling) => Err(ruling.decision),
        }
    }

    fn settle(&self, now: Timestamp, taken: LevelCharge, spent: u64) {
        if let (LevelCharge::Tree(receipt), 0) = (taken, spent) {
            self.tree.refund_at(now, *receipt);
        }
    }
}
