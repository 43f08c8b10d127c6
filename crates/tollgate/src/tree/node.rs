//! The nodes of a tree and the handles to them.

use std::sync::Arc;

use tollgate_core::{Arithmetic, LimitLedger, Timestamp, TokenBucket};

use super::class::{Class, CompiledClass};
use super::lending::Lending;

/// The number of priorities.
pub(super) const PRIORITIES: usize = 8;
/// The most levels of a tree, including root and leaf.
pub(super) const MAX_DEPTH: usize = 8;

/// A class that can have children: the root, or one made by
/// [`ClassTree::add_branch`](super::ClassTree::add_branch).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Branch {
    pub(super) slot: u32,
    pub(super) generation: u64,
}

/// A class that requests are charged to; made by [`ClassTree::add_leaf`](super::ClassTree::add_leaf),
/// or one key of a [`LeafSet`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Leaf(pub(super) LeafAddress);

/// A class in which each key has its own leaf; made by
/// [`ClassTree::add_leaves`](super::ClassTree::add_leaves).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LeafSet {
    pub(super) set: u32,
    pub(super) generation: u64,
}

/// The location of a leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum LeafAddress {
    Single { slot: u32, birth: u64 },
    Keyed { leaves: LeafSet, hash: u64 },
}

/// Any class of a tree, for [`ClassTree::path`](super::ClassTree::path),
/// [`ClassTree::set_class`](super::ClassTree::set_class) and similar methods.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NodeId(pub(super) NodeAddress);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum NodeAddress {
    Node { slot: u32, birth: u64 },
    Set(LeafSet),
}

impl From<Branch> for NodeId {
    fn from(
        Branch {
            slot,
            generation: birth,
        }: Branch,
    ) -> Self {
        Self(NodeAddress::Node { slot, birth })
    }
}

impl From<LeafSet> for NodeId {
    fn from(leaves: LeafSet) -> Self {
        Self(NodeAddress::Set(leaves))
    }
}

/// One key of a [`LeafSet`] stands for all of them, because they are one class.
impl From<Leaf> for NodeId {
    fn from(leaf: Leaf) -> Self {
        Self(match leaf.0 {
            LeafAddress::Single { slot, birth } => NodeAddress::Node { slot, birth },
            LeafAddress::Keyed { leaves, .. } => NodeAddress::Set(leaves),
        })
    }
}

/// One class with its buckets.
#[derive(Clone, Debug)]
pub(super) struct Node {
    pub(super) name: Arc<str>,
    pub(super) generation: u64,
    pub(super) parent: Option<u32>,
    pub(super) class: Class,
    pub(super) priority: Option<u8>,
    pub(super) stride: u64,
    /// The guaranteed rate.
    pub(super) rate: LimitLedger<TokenBucket>,
    /// The ceil up to which it may borrow; without one it can't.
    pub(super) ceil: Option<LimitLedger<TokenBucket>>,
    /// The virtual time of a leaf's loans.
    pub(super) tag: u128,
    /// Only for a class with children.
    pub(super) lending: Option<Box<Lending>>,
    /// Only for a key's leaf.
    pub(super) member: Option<KeyedMember>,
}

/// A key's leaf.
#[derive(Clone, Copy, Debug)]
pub(super) struct KeyedMember {
    pub(super) leaves: LeafSet,
    pub(super) hash: u64,
    /// Its position in the heap of leaves by idle time.
    pub(super) place: u32,
    /// The version of its class's settings that it has applied.
    pub(super) version: u64,
}

impl Node {
    pub(super) fn new(
        name: Arc<str>,
        birth: u64,
        parent: Option<u32>,
        class: &CompiledClass,
    ) -> Self {
        Self {
            name,
            generation: birth,
            parent,
            class: class.class,
            priority: class.level,
            stride: class.stride,
            rate: LimitLedger::new(class.rate),
            ceil: class.ceil.map(LimitLedger::new),
            tag: 0,
            lending: None,
            member: None,
        }
    }

    pub(super) fn id(&self, slot: u32) -> NodeId {
        NodeId(match self.member {
            Some(member) => NodeAddress::Set(member.leaves),
            None => NodeAddress::Node {
                slot,
                birth: self.generation,
            },
        })
    }

    /// Applies a change of its class as of a time. What was spent stays spent.
    pub(super) fn change(&mut self, now: Timestamp, class: &CompiledClass) {
        self.class = class.class;
        self.priority = class.level;
        self.stride = class.stride;
        self.rate.set_limit(now, class.rate);
        match (&mut self.ceil, class.ceil) {
            (Some(ceil), Some(limit)) => ceil.set_limit(now, limit),
            (ceil, limit) => *ceil = limit.map(LimitLedger::new),
        }
    }

    /// The guaranteed burst.
    pub(super) fn burst(&self) -> u64 {
        self.rate.limit().limit()
    }

    /// The most that can pass it in one instant.
    pub(super) fn max_burst(&self) -> u64 {
        self.ceil.as_ref().unwrap_or(&self.rate).limit().limit()
    }

    /// The time from which it is like an unused class.
    pub(super) fn idle_at(&self) -> Timestamp {
        let of = |book: &LimitLedger<TokenBucket>| book.limit().idle_at(book.state());
        self.ceil
            .as_ref()
            .map_or(Timestamp::ZERO, of)
            .max(of(&self.rate))
    }

    /// The virtual time of its loans at a priority.
    pub(super) fn tag(&self, level: usize) -> u128 {
        self.lending
            .as_ref()
            .map_or(self.tag, |own| own.tags[level])
    }

    pub(super) fn tag_mut(&mut self, level: usize) -> &mut u128 {
        match &mut self.lending {
            Some(own) => &mut own.tags[level],
            None => &mut self.tag,
        }
    }
}
