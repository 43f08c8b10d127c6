//! Leaves of a tree as levels.

use tollgate_core::{Decision, Timestamp};

use crate::clock::Clock;
use crate::stack::Kind;
use crate::stack::limit::{Breadth, Limit, Seen, Taken};
use crate::tree::TreeLevel;

impl<C: Clock> Limit for TreeLevel<'_, C> {
    fn class(&self) -> (Kind, Breadth) {
        (Kind::Rate, Breadth::Shared)
    }

    fn now(&self, seen: &mut Seen) -> Timestamp {
        seen.read(self.tree.clock())
    }

    fn look(&self, now: Timestamp, cost: u64) -> Decision {
        // A cost of 0 only looks; a refused one lets the tree know that its class wants.
        match cost {
            0 => self.tree.peek_at(now, self.leaf, 0).decision,
            _ => self.tree.ask_at(now, self.leaf, cost).decision,
        }
    }

    fn fits(&self, seen: &mut Seen, cost: u64) -> bool {
        let now = seen.read(self.tree.clock());
        self.tree.would_allow_at(now, self.leaf, cost)
    }

    fn take(&self, now: Timestamp, cost: u64) -> Result<Taken, Decision> {
        match self.tree.take_at(now, self.leaf, cost) {
            // Boxed, because it holds a booking of every class up to the root.
            Ok(receipt) => Ok(Taken::Tree(Box::new(receipt))),
            Err(ruling) => Err(ruling.decision),
        }
    }

    fn settle(&self, now: Timestamp, taken: Taken, spent: u64) {
        if let (Taken::Tree(receipt), 0) = (taken, spent) {
            self.tree.give_back_at(now, *receipt);
        }
    }
}
