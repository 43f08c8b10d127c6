//! What a tree answers, and what a charge is given back by.

use tollgate_core::Decision;

use super::node::NodeId;
use super::path_charge::PathCharge;

/// The answer of a [`ClassTree`](super::ClassTree): the decision, and the class that made it.
///
/// ```
/// use tollgate::{Rate, ClassTree, tree::Class, clock::Manual};
///
/// let tree = ClassTree::builder(Rate::per_second(100)).clock(Manual::new()).build()?;
/// let class = Class::new(Rate::per_second(10)).ceiling(Rate::per_second(30));
/// let leaf = tree.add_leaf("upload", tree.root(), class)?;
/// assert!(tree.check_n(leaf, 10).node == leaf.into()); // paid from its own rate
/// let lent = tree.check_n(leaf, 20);
/// assert_eq!(tree.path(lent.node).as_deref(), Some("root")); // lent by the root
/// let refused = tree.check(leaf);
/// assert!(!refused.is_allowed());
/// assert_eq!(tree.path(refused.node).as_deref(), Some("root/upload")); // at its ceil
/// # Ok::<(), tollgate::tree::TreeError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TreeDecision {
    /// Whether, how much is left, when to come back. The numbers are those of the whole way from the
    /// leaf to the root, the tightest of each.
    pub decision: Decision,
    /// The class that refused; or, if it passed, the lowest one whose own rate paid: the leaf itself,
    /// or who lent.
    pub node: NodeId,
}

impl TreeDecision {
    pub(super) const fn new(decision: Decision, node: NodeId) -> Self {
        Self { decision, node }
    }

    /// Whether the request may pass.
    pub const fn is_allowed(&self) -> bool {
        self.decision.is_allowed()
    }
}

/// What [`ClassTree::take`](super::ClassTree::take) charged, to be given back with
/// [`ClassTree::give_back`](super::ClassTree::give_back). Dropping it gives nothing back.
#[derive(Debug)]
#[must_use = "a receipt that is dropped gives nothing back"]
pub struct Receipt {
    pub(super) taken: PathCharge,
    pub(super) ruling: TreeDecision,
}

impl Receipt {
    /// What the tree said when it charged.
    pub const fn decision(&self) -> &TreeDecision {
        &self.ruling
    }
}
