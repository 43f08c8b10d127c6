//! The decision of a tree, and the receipt of a charge.

use tollgate_core::Decision;

use super::node::NodeId;
use super::path_charge::PathCharge;

/// The decision of a [`ClassTree`](super::ClassTree), and the class that made it.
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
/// let denied = tree.check(leaf);
/// assert!(!denied.is_allowed());
/// assert_eq!(tree.path(denied.node).as_deref(), Some("root/upload")); // at its ceil
/// # Ok::<(), tollgate::tree::TreeError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TreeDecision {
    /// Whether the request passes, the remaining tokens, and when to retry. The numbers are the
    /// tightest of each on the whole path from the leaf to the root.
    pub decision: Decision,
    /// The class that denied; or, if the request passed, the lowest one whose own rate paid: the leaf
    /// itself, or the lender.
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

/// A charge of [`ClassTree::charge`](super::ClassTree::charge), to be refunded with
/// [`ClassTree::refund`](super::ClassTree::refund). Dropping it refunds nothing.
#[derive(Debug)]
#[must_use = "dropping a receipt refunds nothing"]
pub struct Receipt {
    pub(super) taken: PathCharge,
    pub(super) ruling: TreeDecision,
}

impl Receipt {
    /// The tree's decision when it charged.
    pub const fn decision(&self) -> &TreeDecision {
        &self.ruling
    }
}
