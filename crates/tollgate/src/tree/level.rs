//! A leaf of a tree as a level of a stack.

use std::fmt;

use tollgate_core::{Decision, Timestamp};

use super::{Leaf, Tree};
use crate::clock::{Clock, Monotonic};
use crate::stack::Kind;
use crate::stack::limit::{Breadth, Limit, Seen, Taken};

/// One leaf of a [`Tree`], with the classes above it: what a [`Stack`](crate::Stack) meets. Made by
/// [`Tree::level`].
///
/// ```
/// use tollgate::{Level, Rate, Stack, Tree, tree::Class};
///
/// let tree = Tree::new(Rate::per_second(10));
/// let leaf = tree.add_leaf("search", tree.root(), Class::new(Rate::per_second(2)))?;
/// let (stack, search) = (Stack::new(), tree.level(leaf));
/// let passed = (0..9).filter(|_| stack.allow(&[Level::new("tree", &search)]).is_some());
/// assert_eq!(passed.count(), 2);
/// # Ok::<(), tollgate::tree::TreeError>(())
/// ```
pub struct TreeLevel<'a, C: Clock = Monotonic> {
    tree: &'a Tree<C>,
    leaf: Leaf,
}

impl<C: Clock> Tree<C> {
    /// A leaf, to be met together with other limits.
    pub fn level(&self, leaf: Leaf) -> TreeLevel<'_, C> {
        TreeLevel { tree: self, leaf }
    }
}

impl<C: Clock> Limit for TreeLevel<'_, C> {
    fn kind(&self) -> Kind {
        Kind::Rate
    }

    fn breadth(&self) -> Breadth {
        Breadth::Shared
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
        self.tree.would_pass_at(now, self.leaf, cost)
    }

    fn take(&self, now: Timestamp, cost: u64) -> Result<Taken, Decision> {
        match self.tree.take_at(now, self.leaf, cost) {
            // Boxed, because it holds a booking of every class up to the root.
            Ok(receipt) => Ok(Taken::Tree(Box::new(receipt))),
            Err(ruling) => Err(ruling.decision),
        }
    }

    fn put_back(&self, now: Timestamp, taken: Taken) {
        if let Taken::Tree(receipt) = taken {
            self.tree.give_back_at(now, *receipt);
        }
    }
}

impl<C: Clock> fmt::Debug for TreeLevel<'_, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TreeLevel")
            .field("path", &self.tree.path(self.leaf))
            .finish_non_exhaustive()
    }
}
