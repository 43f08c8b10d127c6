//! A leaf of a tree, with the classes above it, as a limit of a composite limiter.

use std::fmt;

use super::{ClassTree, Leaf};
use crate::clock::{Clock, Monotonic};

/// One leaf of a [`ClassTree`], with the classes above it, as a
/// [`CompositeLimiter`](crate::CompositeLimiter) takes it. Made by [`ClassTree::level`].
///
/// ```
/// use tollgate::{Limit, Rate, CompositeLimiter, ClassTree, tree::Class};
///
/// let tree = ClassTree::new(Rate::per_second(10));
/// let leaf = tree.add_leaf("search", tree.root(), Class::new(Rate::per_second(2)))?;
/// let (composite, search) = (CompositeLimiter::new(), tree.level(leaf));
/// let passed = (0..9).filter(|_| composite.allow(&[Limit::new("tree", &search)]).is_some());
/// assert_eq!(passed.count(), 2);
/// # Ok::<(), tollgate::tree::TreeError>(())
/// ```
pub struct TreeLevel<'a, C: Clock = Monotonic> {
    pub(crate) tree: &'a ClassTree<C>,
    pub(crate) leaf: Leaf,
}

impl<C: Clock> ClassTree<C> {
    /// A leaf, to be checked together with other limits.
    pub fn level(&self, leaf: Leaf) -> TreeLevel<'_, C> {
        TreeLevel { tree: self, leaf }
    }
}

impl<C: Clock> fmt::Debug for TreeLevel<'_, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TreeLevel")
            .field("path", &self.tree.path(self.leaf))
            .finish_non_exhaustive()
    }
}
