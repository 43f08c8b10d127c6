//! `ClassTree`: classes with a guaranteed rate each, which lend each other what they leave idle.

use std::fmt;
use std::hash::Hash;
use std::time::Duration;

use tollgate_core::{Decision, Outcome, Rate, Timestamp};

use crate::clock::{Clock, Monotonic};
use crate::key_table::hasher::KeyHasher;
use crate::sync::{Mutex, MutexGuard, ignore_poison};

mod builder;
mod class;
mod decision;
mod lending;
mod level;
mod node;
mod nodes;
mod path;
mod path_charge;
mod receipt;
#[cfg(test)]
mod tests;

pub use builder::{Builder, Settings};
pub use class::{Class, TreeError};
pub use level::TreeLevel;
pub use node::{Branch, Leaf, LeafSet, NodeId};
pub use receipt::{Receipt, TreeDecision};

use nodes::NodeTable;
use path::PathEvaluation;
use path_charge::PathCharge;

/// A hierarchical token bucket: a tree of classes, each with a guaranteed rate, that share one root.
///
/// A request is charged to a leaf and to every class above it, all or none, under one lock. Each class
/// has a guaranteed [`rate`](Class::new), and may have a [`ceil`](Class::ceiling), up to which it may
/// borrow from its parent what others leave idle. The words mean what they mean in Linux' HTB, with two
/// differences: a class above never passes more than its own ceil, even if more is guaranteed below it;
/// and there is no queue, each request is decided as it comes.
/// than its own ceil, even if more was promised below it; and there is no queue, each request is
/// decided as it comes.
///
/// ```
/// use tollgate::{Rate, ClassTree, tree::Class, clock::Manual};
///
/// let clock = Manual::new();
/// let tree = ClassTree::builder(Rate::per_second(10_000)).clock(clock).build()?;
/// let rate = Rate::per_second;
/// let search = tree.add_branch("search", tree.root(), Class::new(rate(5_000)).ceiling(rate(9_000)))?;
/// let upload = tree.add_leaf("upload", tree.root(), Class::new(rate(1_000)))?;
/// let users = tree.add_leaves("user", search, Class::new(rate(10)), 1_000)?;
///
/// assert!(tree.allow(upload));
/// let alice = tree.leaf(users, "alice");
/// assert_eq!((0..20).filter(|_| tree.allow(alice)).count(), 10);
/// let denied = tree.check(alice);
/// assert_eq!(tree.path(denied.node).as_deref(), Some("root/search/user"));
/// # Ok::<(), tollgate::tree::TreeError>(())
/// ```
///
/// # What is guaranteed
/// A request within its class's rate passes if the classes above have the tokens. They have, whatever
/// others borrow, if at each branch the rates of its children add up to at most its own rate, and their
/// bursts to at most three quarters of its own burst: a loan leaves in the bucket what children could
/// claim, up to that much. Keyed leaves count with their capacity. With larger bursts (a burst is one
/// second's worth by default) the rates are still met in the long run, and only simultaneous bursts of
/// several classes may be denied in part. If the *rates* of the children add up to more than their
/// parent's, guarantees are served first come, first served, up to what the parent has (each child
/// still gets at most its rate), and nothing is lent until they are met.
///
/// # What is lent
/// What a branch has beyond its children's claims is lent to classes with a ceil: by
/// [priority](Class::priority), lower numbers first, and in proportion to [weight](Class::weight) among
/// equals. For one second after it requested a loan, a class has *demand*. A borrower must leave a
/// little in the lender's bucket for classes with demand that have precedence (a 32nd of the burst for
/// each such priority, and among equals a 64th, more or less by how far the borrower is ahead of its
/// share or behind). These classes find it there when they come. If none comes, the next request gets
/// it, so no token is lost: a full bucket lends to every class. Give a branch a burst of 64 or more
/// where shares have to be exact. A loan of more than a quarter of the lender's burst may have to wait
/// until the bucket is full, and then takes guaranteed tokens, too.
///
/// # What a denial writes
/// No tokens move. If there were too few tokens to lend, the demand of the class is recorded, because
/// otherwise no later request could be held back for it. That can only change how much *borrowers*
/// leave in the bucket, for a second; never what is guaranteed, and never how much passes in total. In
/// a tree that lends nothing, [strict](Builder::strict) or without ceils, a denial writes nothing.
///
/// # Time
/// A time before the latest charge counts as the time of that charge.
pub struct ClassTree<C: Clock = Monotonic> {
    nodes: Mutex<NodeTable>,
    root: Branch,
    hasher: KeyHasher,
    clock: C,
}

impl ClassTree {
    /// A tree with a root of this rate, on the default clock.
    ///
    /// # Panics
    /// If the rate can't be represented; [`builder`](Self::builder) returns the error instead.
    pub fn new(rate: Rate) -> Self {
        match Self::builder(rate).build() {
            Ok(tree) => tree,
            Err(error) => panic!("{error}"),
        }
    }

    /// A builder for the clock, and for a tree without borrowing.
    pub const fn builder(rate: Rate) -> Builder {
        Builder::new(rate)
    }
}

impl<C: Clock> ClassTree<C> {
    // Build and change the tree, at any time.

    /// The root class.
    pub const fn root(&self) -> Branch {
        self.root
    }

    /// Adds a class that can have children.
    ///
    /// # Errors
    /// [`TreeError`] if the class is invalid or the parent was removed.
    pub fn add_branch(
        &self,
        name: &str,
        parent: Branch,
        class: Class,
    ) -> Result<Branch, TreeError> {
        let (slot, birth) = self
            .lock()
            .add(name, parent, &class, Some(Box::default()))?;
        Ok(Branch {
            slot,
            generation: birth,
        })
    }

    /// Adds a class that requests are charged to.
    ///
    /// # Errors
    /// As [`add_branch`](Self::add_branch).
    pub fn add_leaf(&self, name: &str, parent: Branch, class: Class) -> Result<Leaf, TreeError> {
        let (slot, birth) = self.lock().add(name, parent, &class, None)?;
        Ok(Leaf(node::LeafAddress::Single { slot, birth }))
    }

    /// Adds a class in which each key has a leaf of its own, made at the key's first request.
    ///
    /// At most `capacity` keys have a leaf. An idle leaf is like an unused one, and a new key takes it
    /// over when there is no room; if none is idle, new keys share one leaf. Keys are distinguished by
    /// a 64-bit fingerprint with a secret seed, as in [`KeyedLimiter`](crate::KeyedLimiter).
    ///
    /// # Errors
    /// As [`add_branch`](Self::add_branch).
    ///
    /// ```
    /// use tollgate::{Rate, ClassTree, tree::Class, clock::Manual};
    ///
    /// let tree = ClassTree::builder(Rate::per_second(100)).clock(Manual::new()).build()?;
    /// let users = tree.add_leaves("user", tree.root(), Class::new(Rate::per_second(2)), 1_000)?;
    /// let (alice, bob) = (tree.leaf(users, "alice"), tree.leaf(users, "bob"));
    /// assert!(tree.allow(alice) && tree.allow(alice) && !tree.allow(alice));
    /// assert!(tree.allow(bob));
    /// assert_eq!(tree.keys(users), 2);
    /// # Ok::<(), tollgate::tree::TreeError>(())
    /// ```
    pub fn add_leaves(
        &self,
        name: &str,
        parent: Branch,
        class: Class,
        capacity: u32,
    ) -> Result<LeafSet, TreeError> {
        self.lock().add_set(name, parent, &class, capacity)
    }

    /// The leaf of a key. The handle may be kept: it stays the key's.
    pub fn leaf<K: Hash + ?Sized>(&self, leaves: LeafSet, key: &K) -> Leaf {
        Leaf(node::LeafAddress::Keyed {
            leaves,
            hash: self.hasher.fingerprint(key),
        })
    }

    /// The number of keys with a leaf, idle or not.
    pub fn keys(&self, leaves: LeafSet) -> u32 {
        self.lock().keys(leaves)
    }

    /// Changes the rate, ceil, priority and weight of a class; what was spent stays spent. The root
    /// takes a rate only.
    ///
    /// A keyed leaf follows at its next use, as of the time of the change. A leaf that isn't used
    /// between two changes follows only the later one.
    ///
    /// # Errors
    /// [`TreeError`] if the class is invalid; then nothing changes.
    ///
    /// ```
    /// use tollgate::{Rate, ClassTree, tree::Class, clock::Manual};
    ///
    /// let tree = ClassTree::builder(Rate::per_second(100)).clock(Manual::new()).build()?;
    /// let leaf = tree.add_leaf("upload", tree.root(), Class::new(Rate::per_second(10)))?;
    /// assert_eq!((0..50).filter(|_| tree.allow(leaf)).count(), 10);
    /// tree.set_class(leaf, Class::new(Rate::per_second(10)).ceiling(Rate::per_second(30)))?;
    /// assert_eq!((0..50).filter(|_| tree.allow(leaf)).count(), 30);
    /// # Ok::<(), tollgate::tree::TreeError>(())
    /// ```
    pub fn set_class(&self, node: impl Into<NodeId>, class: Class) -> Result<(), TreeError> {
        self.set_class_at(self.clock.now(), node, class)
    }

    /// Changes a class as of a time on the tree's clock.
    ///
    /// # Errors
    /// As [`set_class`](Self::set_class).
    pub fn set_class_at(
        &self,
        now: Timestamp,
        node: impl Into<NodeId>,
        class: Class,
    ) -> Result<(), TreeError> {
        self.lock().change(now, node.into(), &class)
    }

    /// The settings of a class; none if it was removed.
    pub fn class(&self, node: impl Into<NodeId>) -> Option<Class> {
        self.lock().class(node.into())
    }

    /// Removes a class. From then on, requests for it are denied as [`Outcome::Never`].
    ///
    /// # Errors
    /// If it is the root, was removed already, or has children.
    pub fn remove(&self, node: impl Into<NodeId>) -> Result<(), TreeError> {
        self.lock().remove(node.into())
    }

    /// The names of a class and all classes above it, in readable form: `root/search/user`. None if it
    /// was removed.
    pub fn path(&self, node: impl Into<NodeId>) -> Option<String> {
        self.lock().path(node.into())
    }

    // Methods that decide.

    /// Whether one request passes now; it is charged if so.
    #[must_use = "a request that isn't allowed mustn't pass"]
    pub fn allow(&self, leaf: Leaf) -> bool {
        self.allow_at(self.clock.now(), leaf, 1)
    }

    /// Whether a request of this cost passes now; it is charged if so.
    #[must_use = "a request that isn't allowed mustn't pass"]
    pub fn allow_n(&self, leaf: Leaf, cost: u64) -> bool {
        self.allow_at(self.clock.now(), leaf, cost)
    }

    /// Whether a request passes at a time on the tree's clock; it is charged if so.
    #[must_use = "a request that isn't allowed mustn't pass"]
    pub fn allow_at(&self, now: Timestamp, leaf: Leaf, cost: u64) -> bool {
        self.passes(now, leaf, cost, Effect::Charge)
    }

    /// Decides one request, and returns the deciding class.
    pub fn check(&self, leaf: Leaf) -> TreeDecision {
        self.check_n(leaf, 1)
    }

    /// Decides a request of this cost. A cost of 0 peeks.
    pub fn check_n(&self, leaf: Leaf, cost: u64) -> TreeDecision {
        self.check_at(self.clock.now(), leaf, cost)
    }

    /// Decides a request of this cost at a time on the tree's clock.
    pub fn check_at(&self, now: Timestamp, leaf: Leaf, cost: u64) -> TreeDecision {
        self.decision_for(now, leaf, cost, Effect::Charge)
    }

    /// The decision about a request of this cost now. Nothing is charged, and a denial records no
    /// demand.
    pub fn peek(&self, leaf: Leaf, cost: u64) -> TreeDecision {
        self.peek_at(self.clock.now(), leaf, cost)
    }

    /// The decision about a request of this cost at a time on the tree's clock, without charging it.
    pub fn peek_at(&self, now: Timestamp, leaf: Leaf, cost: u64) -> TreeDecision {
        self.decision_for(now, leaf, cost, Effect::Peek)
    }

    /// As [`peek`](Self::peek), but for a real request: a denial records demand, as if the request had
    /// been checked.
    ///
    /// For callers that peek at several limits first, and charge them only if all allow. With `peek`,
    /// the demand of a class would be invisible while it is denied, and other classes would borrow its
    /// share.
    ///
    /// ```
    /// use tollgate::{Rate, ClassTree, tree::Class, clock::Manual};
    ///
    /// let tree = ClassTree::builder(Rate::per_second(1_000)).clock(Manual::new()).build()?;
    /// let class = Class::new(Rate::per_second(1)).ceiling(Rate::per_second(1_000));
    /// let [a, b] = ["a", "b"].map(|name| tree.add_leaf(name, tree.root(), class));
    /// let (a, b) = (a?, b?);
    /// assert!(tree.allow_n(a, 900));
    /// let spare = tree.peek(a, 0).decision.remaining;
    /// assert!(!tree.peek(b, 500).is_allowed());
    /// assert_eq!(tree.peek(a, 0).decision.remaining, spare);
    /// // Now b has demand, and a must leave a little for it.
    /// assert!(!tree.peek_with_demand(b, 500).is_allowed());
    /// assert!(tree.peek(a, 0).decision.remaining < spare);
    /// # Ok::<(), tollgate::tree::TreeError>(())
    /// ```
    pub fn peek_with_demand(&self, leaf: Leaf, cost: u64) -> TreeDecision {
        self.peek_with_demand_at(self.clock.now(), leaf, cost)
    }

    /// The decision about a request of this cost at a time on the tree's clock, without charging it. A
    /// denial records demand.
    pub fn peek_with_demand_at(&self, now: Timestamp, leaf: Leaf, cost: u64) -> TreeDecision {
        self.decision_for(now, leaf, cost, Effect::Ask)
    }

    /// Whether a request of this cost would pass now: [`peek_with_demand`](Self::peek_with_demand)
    /// without the details, which take most of its time. A denial records demand.
    pub fn would_allow(&self, leaf: Leaf, cost: u64) -> bool {
        self.would_allow_at(self.clock.now(), leaf, cost)
    }

    /// Whether a request of this cost would pass at a time on the tree's clock. A denial records
    /// demand.
    pub fn would_allow_at(&self, now: Timestamp, leaf: Leaf, cost: u64) -> bool {
        self.passes(now, leaf, cost, Effect::Ask)
    }

    /// Charges a cost, and returns a receipt to refund it if another limit denies after all.
    ///
    /// # Errors
    /// The denial; nothing was charged.
    ///
    /// ```
    /// use tollgate::{Rate, ClassTree, tree::Class, clock::Manual};
    ///
    /// let tree = ClassTree::builder(Rate::per_second(10)).clock(Manual::new()).build()?;
    /// let leaf = tree.add_leaf("upload", tree.root(), Class::new(Rate::per_second(5)))?;
    /// let receipt = tree.charge(leaf, 5).expect("it is unused");
    /// assert!(!tree.allow(leaf));
    /// tree.refund(receipt);
    /// assert_eq!(tree.peek(leaf, 0).decision.remaining, 5);
    /// # Ok::<(), tollgate::tree::TreeError>(())
    /// ```
    pub fn charge(&self, leaf: Leaf, cost: u64) -> Result<Receipt, TreeDecision> {
        self.charge_at(self.clock.now(), leaf, cost)
    }

    /// Charges a cost at a time on the tree's clock.
    ///
    /// # Errors
    /// As [`charge`](Self::charge).
    pub fn charge_at(
        &self,
        now: Timestamp,
        leaf: Leaf,
        cost: u64,
    ) -> Result<Receipt, TreeDecision> {
        let mut taken = PathCharge::new(cost);
        let ruling = self.decision_for(now, leaf, cost, Effect::Take(&mut taken));
        if ruling.is_allowed() {
            Ok(Receipt { taken, ruling })
        } else {
            Err(ruling)
        }
    }

    /// Refunds a charge, as far as no later decision relies on it: all of it at the time of the charge,
    /// nothing later.
    pub fn refund(&self, receipt: Receipt) {
        self.refund_at(self.clock.now(), receipt);
    }

    /// Refunds at a time on the tree's clock. A caller that peeks, charges and refunds in one step
    /// passes the same time to all three.
    #[expect(clippy::needless_pass_by_value, reason = "a receipt is refunded once")]
    pub fn refund_at(&self, now: Timestamp, receipt: Receipt) {
        self.lock().refund(now, &receipt.taken);
    }

    /// The tree's clock.
    pub const fn clock(&self) -> &C {
        &self.clock
    }

    /// Decides, and returns only whether the request passes.
    fn passes(&self, now: Timestamp, leaf: Leaf, cost: u64, act: Effect<'_>) -> bool {
        let decided = decide(&mut self.lock(), now, leaf, cost, act);
        decided.is_some_and(|(_, look)| look.is_allowed())
    }

    /// Decides, and returns the deciding class.
    fn decision_for(&self, now: Timestamp, leaf: Leaf, cost: u64, act: Effect<'_>) -> TreeDecision {
        let nodes = &mut *self.lock();
        let Some((slot, look)) = decide(nodes, now, leaf, cost, act) else {
            let never = Decision::new(Outcome::Never, 0, 0, Duration::MAX, Duration::ZERO);
            return TreeDecision::new(never, leaf.into());
        };
        let way = nodes.path_of(slot);
        let decision = way.decision(&look, now, nodes.latest, cost);
        TreeDecision::new(decision, way.deciding_node(&look))
    }

    fn lock(&self) -> MutexGuard<'_, NodeTable> {
        ignore_poison(self.nodes.lock())
    }
}

/// What a decision writes.
enum Effect<'t> {
    /// Nothing.
    Peek,
    /// A denial records demand.
    Ask,
    /// The same, and an allowed request is charged.
    Charge,
    /// The same, with the data for a refund.
    Take(&'t mut PathCharge),
}

/// Decides, and writes by `act`; none if the leaf was removed.
fn decide(
    nodes: &mut NodeTable,
    now: Timestamp,
    leaf: Leaf,
    cost: u64,
    act: Effect<'_>,
) -> Option<(u32, PathEvaluation)> {
    let now = now.max(nodes.latest);
    let slot = nodes.slot(leaf, now)?;
    let way = nodes.path_of(slot);
    let (path, look) = (way.path, way.evaluate(now, cost));
    match act {
        _ if cost == 0 => {}
        Effect::Peek => {}
        _ if !look.is_allowed() => nodes.note_demand(&path, &look, now),
        Effect::Ask => {}
        Effect::Charge => nodes.charge(&path, &look, now, cost, None),
        Effect::Take(taken) => nodes.charge(&path, &look, now, cost, Some(taken)),
    }
    Some((slot, look))
}

impl<C: Clock> fmt::Debug for ClassTree<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tree")
            .field("root", &self.class(self.root))
            .finish_non_exhaustive()
    }
}
